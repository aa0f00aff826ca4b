"""The Transformer of "Attention Is All You Need" as a Hugging Face model."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)

from .configuration_aiayn import AiaynConfig
from .modeling_aiayn import (
    AiaynDecoderModel,
    AiaynEncoderModel,
    AiaynForCausalLM,
    AiaynForConditionalGeneration,
    AiaynForSequenceClassification,
    AiaynModel,
)

__version__ = "0.1.0"

__all__ = [
    "AiaynConfig",
    "AiaynEncoderModel",
    "AiaynForCausalLM",
    "AiaynForConditionalGeneration",
    "AiaynForSequenceClassification",
    "AiaynModel",
]

BASE_MODELS = (AiaynModel, AiaynEncoderModel, AiaynDecoderModel)
HEADS = {
    AutoModelForSeq2SeqLM: AiaynForConditionalGeneration,
    AutoModelForSequenceClassification: AiaynForSequenceClassification,
    AutoModelForCausalLM: AiaynForCausalLM,
}

AiaynConfig.register_for_auto_class()
AutoConfig.register(AiaynConfig.model_type, AiaynConfig, exist_ok=True)
for base_model in BASE_MODELS:
    base_model.register_for_auto_class("AutoModel")
# AutoModel takes the one that config.architectures names.
AutoModel.register(AiaynConfig, BASE_MODELS, exist_ok=True)
for auto_class, head in HEADS.items():
    head.register_for_auto_class(auto_class.__name__)
    auto_class.register(AiaynConfig, head, exist_ok=True)
