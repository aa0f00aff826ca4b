"""What ends a run in one sentence: a loss that went astray, a batch that does not fit."""

import math
import re
from pathlib import Path
from typing import Any

from torch import Tensor, nn

# A loss so many times that of guessing every token is no noise of a first update.
DIVERGED_LOSS_RATIO = 10.0
# What a GPU and a CPU say.
OUT_OF_MEMORY = "out of memory|can't allocate memory"


class TrainingDivergedError(ValueError):
    """The loss or the gradient is not finite, or far worse than guessing.

    Args:
        update: The update that was not taken, counted from 1.
        loss: Its loss, in nats per token.
        grad_norm: Norm of its gradient.
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
            f"Out of memory at update {update}, in a batch of {shapes}. Give a smaller "
            "--max_tokens_per_batch or --per_device_train_batch_size, and as much more "
            "--gradient_accumulation_steps."
        )


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether an error of torch's says that memory is used up.

    Args:
        error: The error.

    Returns:
        Whether it does.
    """
    return re.search(OUT_OF_MEMORY, str(error)) is not None


def worst_loss(model: nn.Module) -> float:
    """The loss beyond which a model that predicts tokens is astray; no bound for any other.

    Args:
        model: The model.

    Returns:
        Nats per token.
    """
    if not hasattr(model, "lm_head"):
        return math.inf
    config: Any = model.config
    vocab_size = getattr(config, "decoder_vocab_size", None) or config.vocab_size
    return DIVERGED_LOSS_RATIO * math.log(vocab_size)
