"""Errors that end a run: divergence, and a batch that does not fit into memory."""

import math
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

# A loss this many times that of guessing tokens at random is divergence, not noise.
DIVERGED_LOSS_RATIO = 10.0
# The messages of GPUs and CPUs.
OUT_OF_MEMORY = "out of memory|can't allocate memory"


class TrainingDivergedError(ValueError):
    """The loss or the gradient is not finite, or far worse than guessing.

    Args:
        update: The update that was not made, counted from 1.
        loss: Its loss, in nats per token.
        grad_norm: The norm of its gradient.
        newest: The run's newest whole checkpoint, if there is one.
    """

    def __init__(self, update: int, loss: float, grad_norm: float, newest: Path | None) -> None:
        kept = f"Its newest checkpoint is {newest}." if newest else "There is no checkpoint."
        super().__init__(
            f"Training diverged at update {update}: loss {loss:.4g}, gradient norm "
            f"{grad_norm:.4g}. {kept} Lower --learning_rate, raise --warmup_steps, or clip by "
            "--max_grad_norm 1."
        )


class BatchTooLargeError(ValueError):
    """A batch does not fit into memory.

    Args:
        update: The update, counted from 1.
        inputs: The batch.
    """

    def __init__(self, update: int, inputs: dict[str, Any]) -> None:
        shapes = {name: tuple(x.shape) for name, x in inputs.items() if isinstance(x, Tensor)}
        super().__init__(
            f"Out of memory at update {update}, in a batch of {shapes}. Lower "
            "--max_tokens_per_batch or --per_device_train_batch_size, and raise "
            "--gradient_accumulation_steps by the same factor."
        )


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether torch raised an error because memory ran out."""
    return re.search(OUT_OF_MEMORY, str(error)) is not None


class DivergenceGuard:
    """Watches the loss and the gradient of each update before it changes the weights.

    Args:
        model: The model that is trained.
        accelerator: The trainer's, which knows the other processes.
    """

    def __init__(self, model: nn.Module, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.worst_loss = worst_loss(model)
        self.loss: Tensor | float = 0.0

    def add(self, loss: Tensor) -> None:
        """Add the loss of a batch to that of the update."""
        self.loss = self.loss + loss

    def diverged(self, model: nn.Module) -> tuple[float, float] | None:
        """The update's loss and gradient norm if training has diverged, else None.

        Args:
            model: The model, with the gradients of all the update's batches.
        """
        loss, self.loss = torch.as_tensor(self.loss).cpu().double(), 0.0
        measured = torch.stack((loss, gradient_norm(model)))
        if self.accelerator.num_processes > 1:
            # All processes stop together, even if one of them alone has seen a NaN.
            device = self.accelerator.device
            measured = self.accelerator.reduce(measured.float().to(device), "mean").cpu()
        loss, norm = measured.tolist()
        # Loss scaling makes infinite norms usual: the scaler skips such updates.
        has_scaler = getattr(self.accelerator, "scaler", None) is not None
        is_finite = math.isfinite(loss) and (has_scaler or math.isfinite(norm))
        return None if is_finite and loss <= self.worst_loss else (loss, norm)


def worst_loss(model: nn.Module) -> float:
    """The loss, in nats per token, above which a model that predicts tokens has diverged.

    Infinite for a model that predicts no tokens.
    """
    if not hasattr(model, "lm_head"):
        return math.inf
    config: Any = model.config
    vocab_size = getattr(config, "decoder_vocab_size", None) or config.vocab_size
    return DIVERGED_LOSS_RATIO * math.log(vocab_size)


def gradient_norm(model: nn.Module) -> Tensor:
    """The norm of all gradients, [], also where processes hold parts of them (DTensor)."""
    gradients: dict[Any, list[Tensor]] = defaultdict(list)
    for parameter in model.parameters():
        if parameter.grad is not None:
            gradients[getattr(parameter.grad, "device_mesh", None)].append(parameter.grad)
    norms = [torch.nn.utils.get_total_norm(group) for group in gradients.values()]
    whole = [norm.full_tensor() if hasattr(norm, "full_tensor") else norm for norm in norms]
    if not whole:
        return torch.zeros((), dtype=torch.float64)
    return torch.stack([norm.cpu().double() for norm in whole]).norm()
