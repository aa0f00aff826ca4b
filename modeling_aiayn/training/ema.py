"""An exponential moving average of the weights, an alternative to averaging checkpoints."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import Seq2SeqTrainer, TrainerCallback
from transformers.utils import SAFE_WEIGHTS_NAME

from .parallel import check_whole_weights

EMA_FOLDER = "ema"


def ema_decay(decay: float, update: int) -> float:
    """The decay at an update, counted from 1. It starts small, to forget the initial weights."""
    return min(decay, (1 + update) / (10 + update))


def check_can_average(trainer: Seq2SeqTrainer) -> None:
    """Check that each process has all weights, and that they are not an adapter's."""
    check_whole_weights(trainer, "ema_decay")
    if hasattr(trainer.model, "peft_config"):
        raise ValueError("ema_decay cannot average an adapter. Set ema_decay to 0.")


def load_weights(folder: Path) -> dict[str, Tensor]:
    """Load the weights in a folder, from one file or several; averaged weights if it has them."""
    if (folder / EMA_FOLDER).is_dir():
        folder = folder / EMA_FOLDER
    paths = sorted(folder.glob("model*.safetensors"))
    if not paths:
        raise FileNotFoundError(f"No {SAFE_WEIGHTS_NAME} in {folder}.")
    return {name: tensor for path in paths for name, tensor in load_file(path).items()}


class EmaCallback(TrainerCallback):
    """Averages a model's parameters: each update's weights get a share of 1 - decay.

    After training, the model has the averaged weights. With a decay of 0 there is no average.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.average: dict[str, Tensor] = {}

    def begin(self, checkpoint: Path | None) -> None:
        """Begin without an average, or continue from a checkpoint's average."""
        self.average = load_weights(checkpoint) if self.decay and checkpoint else {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start from the model's weights, or move a loaded average to their device."""
        average = {}
        for name, parameter in kwargs["model"].named_parameters():
            if parameter.dtype != torch.float32:
                raise ValueError(  # other types would lose small shares
                    f"ema_decay needs weights in float32, got {name} in {parameter.dtype}. Train "
                    "in mixed precision instead: --bf16 true."
                )
            start = self.average[name] if self.average else parameter.detach()
            average[name] = start.to(parameter.device, copy=True)
        self.average = average

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Add the weights after this update to the average."""
        parameters = dict(kwargs["model"].named_parameters())
        weight = 1 - ema_decay(self.decay, state.global_step)
        with torch.no_grad():
            for name, average in self.average.items():
                average.lerp_(parameters[name], weight)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Give the model the last average, or with load_best_model_at_end the best checkpoint's."""
        best = state.best_model_checkpoint
        if args.load_best_model_at_end and best is not None:
            kwargs["model"].load_state_dict(load_weights(Path(best)), strict=False)
        else:
            self._exchange(kwargs["model"])
        self.average = {}

    @contextmanager
    def averaged_weights(self, model: nn.Module) -> Iterator[None]:
        """Give the model the averaged weights within a with block."""
        self._exchange(model)
        try:
            yield
        finally:
            self._exchange(model)

    def _exchange(self, model: nn.Module) -> None:
        parameters = dict(model.named_parameters())
        with torch.no_grad():
            for name, average in self.average.items():
                held = parameters[name].clone()
                parameters[name].copy_(average)
                average.copy_(held)
