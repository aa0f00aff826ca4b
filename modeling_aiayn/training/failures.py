"""Errors that end a run: divergence, and a batch that does not fit into memory."""

import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer

from ..saved.memory import is_out_of_memory
from .resume.checkpoints import newest_whole_checkpoint

# Training has diverged if its loss is this many times the loss of random guessing.
DIVERGED_LOSS_RATIO = 10.0


class TrainingDivergedError(ValueError):
    """The loss or the gradient is not finite, or the loss is far worse than guessing."""

    def __init__(self, update: int, loss: float, grad_norm: float, newest: Path | None) -> None:
        kept = f"Its newest checkpoint is {newest}." if newest else "There is no checkpoint."
        super().__init__(
            f"Training diverged at update {update}: loss {loss:.4g}, gradient norm "
            f"{grad_norm:.4g}. {kept} Lower --learning_rate, raise --warmup_steps, or clip by "
            "--max_grad_norm 1."
        )


class BatchTooLargeError(ValueError):
    """A batch does not fit into memory; updates count from 1."""

    def __init__(self, update: int, inputs: dict[str, Any]) -> None:
        shapes = {name: tuple(x.shape) for name, x in inputs.items() if isinstance(x, Tensor)}
        super().__init__(
            f"Out of memory at update {update}, in a batch of {shapes}. Lower "
            "--max_tokens_per_batch or --per_device_train_batch_size, and raise "
            "--gradient_accumulation_steps by the same factor."
        )


@contextmanager
def explained_out_of_memory(update: int, inputs: dict[str, Any]) -> Iterator[None]:
    """Raise a BatchTooLargeError if the block runs out of memory."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise BatchTooLargeError(update, inputs) from error


class DivergenceGuard:
    """Stops training before an update with a bad loss or gradient changes the weights."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.worst_loss = worst_loss(trainer.model)
        self.loss: Tensor | float = 0.0

    def add(self, loss: Tensor) -> None:
        """Add the loss of a batch, [], to that of the update."""
        self.loss = self.loss + loss

    def check(self, model: nn.Module) -> None:
        """Check an update whose gradients are complete; if it is bad, log it and raise."""
        loss, norm = self._measure(model)
        scaler = getattr(self.trainer.accelerator, "scaler", None)
        if scaler is not None:
            norm /= scaler.get_scale()
        # Loss scaling makes infinite norms usual: the scaler skips such updates.
        is_finite = math.isfinite(loss) and (scaler is not None or math.isfinite(norm))
        # A loss function of the user's may have another scale.
        is_own = self.trainer.compute_loss_func is not None
        if is_finite and (is_own or loss <= self.worst_loss):
            return
        self.trainer.state.global_step += 1
        self.trainer.log({"loss": loss, "grad_norm": norm})
        newest = newest_whole_checkpoint(Path(self.trainer.args.output_dir))
        kept = None if newest is None else newest.folder
        raise TrainingDivergedError(self.trainer.state.global_step, loss, norm, kept)

    def _measure(self, model: nn.Module) -> tuple[float, float]:
        accelerator = self.trainer.accelerator
        loss, self.loss = torch.as_tensor(self.loss).cpu().double(), 0.0
        measured = torch.stack((loss, gradient_norm(model)))
        if accelerator.num_processes > 1:
            # All processes stop together, even if one of them alone has seen a NaN.
            measured = accelerator.reduce(measured.float().to(accelerator.device), "mean").cpu()
        loss_value, norm = measured.tolist()
        return loss_value, norm


def worst_loss(model: nn.Module) -> float:
    """The loss, in nats per token, above which training has diverged; infinite without tokens."""
    if not hasattr(model, "lm_head"):
        return math.inf
    config: Any = model.config
    vocab_size = getattr(config, "decoder_vocab_size", None) or config.vocab_size
    return DIVERGED_LOSS_RATIO * math.log(vocab_size)


def gradient_norm(model: nn.Module) -> Tensor:
    """The norm of all gradients, [], also where processes hold parts of them (DTensor)."""
    deepspeed_norm: Any = getattr(model, "get_global_grad_norm", None)
    if deepspeed_norm is not None:  # DeepSpeed keeps the gradients to itself
        return torch.as_tensor(deepspeed_norm() or 0.0).cpu().double()
    gradients: dict[Any, list[Tensor]] = defaultdict(list)
    for parameter in model.parameters():
        if parameter.grad is not None:
            gradients[getattr(parameter.grad, "device_mesh", None)].append(parameter.grad)
    norms = [torch.nn.utils.get_total_norm(group) for group in gradients.values()]
    whole = [norm.full_tensor() if hasattr(norm, "full_tensor") else norm for norm in norms]
    if not whole:
        return torch.zeros((), dtype=torch.float64)
    return torch.stack([norm.cpu().double() for norm in whole]).norm()
