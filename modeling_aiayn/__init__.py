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

AiaynConfig.register_for_auto_class()
AiaynModel.register_for_auto_class("AutoModel")
AiaynEncoderModel.register_for_auto_class("AutoModel")
AiaynDecoderModel.register_for_auto_class("AutoModel")
AiaynForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")
AiaynForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")
AiaynForCausalLM.register_for_auto_class("AutoModelForCausalLM")

AutoConfig.register(AiaynConfig.model_type, AiaynConfig, exist_ok=True)
# Of the three, AutoModel takes the one that config.architectures names.
AutoModel.register(AiaynConfig, (AiaynModel, AiaynEncoderModel, AiaynDecoderModel), exist_ok=True)
AutoModelForSeq2SeqLM.register(AiaynConfig, AiaynForConditionalGeneration, exist_ok=True)
AutoModelForSequenceClassification.register(
    AiaynConfig, AiaynForSequenceClassification, exist_ok=True
)
AutoModelForCausalLM.register(AiaynConfig, AiaynForCausalLM, exist_ok=True)
