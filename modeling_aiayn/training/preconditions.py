"""What must hold before a model is trained: its dtype, the devices, and whole weights."""

import logging
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainingArguments
from transformers.integrations import is_deepspeed_zero3_enabled

from .bfloat16 import has_bfloat16_instructions

logger = logging.getLogger(__name__)


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


def warn_of_slow_training(args: TrainingArguments) -> None:
    """Warn if a CPU has no instructions for bf16, or ignores fp16."""
    if args.fp16 and args.device.type == "cpu":
        logger.warning("fp16 has no effect on a CPU: the run trains in float32.")
    if args.bf16 and not has_bfloat16_instructions(args.device.type):
        logger.warning(
            "This CPU has no fast products in bfloat16: with bf16, training is many times slower "
            "than in float32. Leave out bf16 (--bf16 true)."
        )


def use_one_gpu(args: TrainingArguments, model: Any) -> None:
    """Use one of the GPUs of a process, with a warning: transformers would use DataParallel.

    A model that accelerate has divided among GPUs stays there.
    """
    if args.n_gpu < 2:
        return
    if len({*getattr(model, "hf_device_map", {}).values()}) < 2:
        logger.warning(
            "One process trains on one of %d GPUs. To use all, start it with torchrun "
            "--nproc_per_node %d.",
            *(args.n_gpu, args.n_gpu),
        )
    args._n_gpu = 1


def check_whole_weights(trainer: Trainer, option: str) -> None:
    """Check that each process has all weights; option is the flag that needs this.

    Raises:
        ValueError: Each process holds only a part of the weights.
    """
    is_sharded = getattr(trainer, "is_distributed_loading_by_transformers", False)
    if trainer.is_fsdp_enabled or is_sharded or is_deepspeed_zero3_enabled():
        raise ValueError(
            f"{option} needs whole weights on each process, which FSDP, tensor parallelism and "
            "DeepSpeed ZeRO-3 do not keep. Leave it out, or train without them."
        )
