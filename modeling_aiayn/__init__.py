"""The Transformer of "Attention Is All You Need" as a Hugging Face model."""

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTextEncoding,
)
from transformers.utils import is_triton_available

from .attention_kernels import blockwise_operation  # noqa: F401
from .configuration_aiayn import AiaynConfig
from .modeling_aiayn import (
    AiaynDecoderModel,
    AiaynEncoderModel,
    AiaynForCausalLM,
    AiaynForConditionalGeneration,
    AiaynForSequenceClassification,
    AiaynModel,
)
from .stacks import AiaynDecoder, AiaynEncoder

__version__ = "0.2.0"

__all__ = [
    "AiaynConfig",
    "AiaynEncoderModel",
    "AiaynForCausalLM",
    "AiaynForConditionalGeneration",
    "AiaynForSequenceClassification",
    "AiaynModel",
]

BASE_MODELS = (AiaynModel, AiaynEncoderModel, AiaynDecoderModel, AiaynEncoder, AiaynDecoder)
HEADS = {
    AutoModelForSeq2SeqLM: AiaynForConditionalGeneration,
    AutoModelForSequenceClassification: AiaynForSequenceClassification,
    AutoModelForCausalLM: AiaynForCausalLM,
    AutoModelForTextEncoding: AiaynEncoderModel,
}

AutoConfig.register(AiaynConfig.model_type, AiaynConfig, exist_ok=True)
# AutoModel builds the class that config.architectures names.
AutoModel.register(AiaynConfig, BASE_MODELS, exist_ok=True)
for auto_class, head in HEADS.items():
    auto_class.register(AiaynConfig, head, exist_ok=True)

# torch built for GPUs includes triton. Blockwise attention then runs Triton kernels.
if (torch.version.cuda or torch.version.hip) and is_triton_available("3.4"):
    from .attention_kernels import triton_attention  # noqa: F401
