"""The dtypes of training: bfloat16 where it is fast, and no parameters in float16."""

import logging
from functools import lru_cache

import torch
from torch import nn
from transformers import TrainingArguments

logger = logging.getLogger(__name__)


@lru_cache
def has_bfloat16_instructions(device_type: str) -> bool:
    """Whether products in bfloat16 are fast: on a CPU, whether oneDNN has kernels for them.

    On other CPUs torch multiplies number by number, up to 100 times slower than in float32.
    """
    if device_type != "cpu":
        return True
    try:
        # The function has no public name. torch's compiler asks it, too.
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):  # torch without oneDNN, as on a Mac
        return False


def warn_of_slow_training(args: TrainingArguments) -> None:
    """Warn if bf16 is set on a CPU that has no instructions for it."""
    if args.bf16 and not has_bfloat16_instructions(args.device.type):
        logger.warning(
            "This CPU has no fast products in bfloat16: with bf16, training is many times slower "
            "than in float32. Leave out bf16 (--bf16 true)."
        )


def check_trained_dtype(model: nn.Module) -> None:
    """Check that no parameter in float16 is trained: its updates would ruin the model.

    Raises:
        ValueError: A parameter that requires a gradient is in float16.
    """
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype == torch.float16:
            raise ValueError(
                f"Parameters in float16 cannot be trained, and {name} is in float16. Load the "
                "model with dtype=torch.float32. For speed, train with bf16=True (--bf16 true)."
            )
