"""Errors that end a run: divergence, and a batch that does not fit into memory."""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer

from .resume.checkpoints import newest_whole_checkpoint

# Training has diverged if its loss is this many times the loss of random guessing.
DIVERGED_LOSS_RATIO = 10.0
OUT_OF_MEMORY = re.compile("out of memory|can't allocate memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory was not enough, on a CPU or on an accelerator."""
    is_torch = isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(str(error)) is not None
    return isinstance(error, MemoryError) or is_torch


@contextmanager
def explained_out_of_memory(update: int, inputs: dict[str, Any]) -> Iterator[None]:
    """Raise a ValueError with a batch's shapes if the block runs out of memory."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        shapes = {name: tuple(x.shape) for name, x in inputs.items() if isinstance(x, Tensor)}
        raise ValueError(
            f"Out of memory at update {update}, in a batch of {shapes}. Lower "
            "--max_tokens_per_batch or --per_device_train_batch_size, and raise "
            "--gradient_accumulation_steps by the same factor."
        ) from error


class DivergenceGuard:
    """Stops training before an update with a bad loss or gradient changes the weights."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.worst_loss = worst_loss(trainer.model)
        self.loss: Tensor | float = 0.0

    def add(self, loss: Tensor) -> None:
        """Add a batch's loss, [], to the update's loss."""
        self.loss = self.loss + loss

    def check(self, gradient_norm: Tensor | float | None) -> None:
        """Check an update whose gradients are complete; if it is bad, log it and raise."""
        loss, norm = self._mean_of_processes(gradient_norm)
        # With loss scaling, infinite norms are normal: the scaler skips such updates.
        has_scaler = getattr(self.trainer.accelerator, "scaler", None) is not None
        is_finite = math.isfinite(loss) and (has_scaler or math.isfinite(norm))
        # A user's own loss function may have another scale.
        is_own = self.trainer.compute_loss_func is not None
        if is_finite and (is_own or loss <= self.worst_loss):
            return
        self.trainer.state.global_step += 1
        self.trainer.log({"loss": loss, "grad_norm": norm})
        newest = newest_whole_checkpoint(Path(self.trainer.args.output_dir))
        kept = f"Its newest checkpoint is {newest.folder}" if newest else "There is no checkpoint"
        raise ValueError(
            f"Training diverged at update {self.trainer.state.global_step}: loss {loss:.4g}, "
            f"gradient norm {norm:.4g}. {kept}. Lower --learning_rate, raise --warmup_steps, or "
            "clip by --max_grad_norm 1."
        )

    def _mean_of_processes(self, gradient_norm: Tensor | float | None) -> tuple[float, float]:
        accelerator = self.trainer.accelerator
        norm = torch.as_tensor(0.0 if gradient_norm is None else gradient_norm)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        measured = torch.stack([torch.as_tensor(x).cpu().double() for x in (self.loss, norm)])
        self.loss = 0.0
        if accelerator.num_processes > 1:
            # All processes stop together, even if only one of them has a NaN.
            measured = accelerator.reduce(measured.float().to(accelerator.device), "mean").cpu()
        loss, mean_norm = measured.tolist()
        return loss, mean_norm


def worst_loss(model: nn.Module) -> float:
    """The loss above which training has diverged, in nats per token; infinity without lm_head."""
    if not hasattr(model, "lm_head"):
        return math.inf
    config: Any = model.config
    vocab_size = getattr(config, "decoder_vocab_size", None) or config.vocab_size
    return DIVERGED_LOSS_RATIO * math.log(vocab_size)
