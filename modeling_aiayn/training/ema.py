"""An exponential moving average of the weights, as good as many averaged checkpoints."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

# The folder in a checkpoint that holds the averaged model.
EMA_FOLDER = "ema"


def ema_decay(decay: float, update: int) -> float:
    """The decay of an update: smaller at first, so that the initial weights are soon forgotten.

    Args:
        decay: The decay in the long run.
        update: Number of the update, counted from 1.

    Returns:
        min(decay, (1 + update) / (10 + update)).
    """
    return min(decay, (1 + update) / (10 + update))


class EmaCallback(TrainerCallback):
    """Averages a model's parameters after each update: a share of 1 - decay of them is new.

    Args:
        decay: Share of the average that stays at an update, between 0 and 1.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.average: dict[str, Tensor] = {}

    def load(self, state_dict: dict[str, Tensor]) -> None:
        """Go on with an average that was saved.

        Args:
            state_dict: The averaged parameters by name.
        """
        self.average = dict(state_dict)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin with the model's own weights, or bring a loaded average to them.

        Raises:
            ValueError: A parameter is not in float32, in which small shares would be lost.
        """
        average = {}
        for name, parameter in kwargs["model"].named_parameters():
            if parameter.dtype != torch.float32:
                raise ValueError(
                    f"ema_decay needs weights in float32, got {name} in {parameter.dtype}. Train "
                    "in mixed precision, --bf16 true, in its place."
                )
            start = self.average[name] if self.average else parameter.detach()
            average[name] = start.to(parameter.device, copy=True)
        self.average = average

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take the update's weights in."""
        parameters = dict(kwargs["model"].named_parameters())
        weight = 1 - ema_decay(self.decay, state.global_step)
        with torch.no_grad():
            for name, average in self.average.items():
                average.lerp_(parameters[name], weight)

    @contextmanager
    def in_place_of_weights(self, model: nn.Module) -> Iterator[None]:
        """For a while, the model has the averaged weights.

        Args:
            model: The model.
        """
        self._exchange(model)
        try:
            yield
        finally:
            self._exchange(model)

    def settle(self, model: nn.Module) -> None:
        """The model has the averaged weights from now on, and there is no average any more.

        Args:
            model: The model.
        """
        self._exchange(model)
        self.average = {}

    def _exchange(self, model: nn.Module) -> None:
        parameters = dict(model.named_parameters())
        with torch.no_grad():
            for name, average in self.average.items():
                held = parameters[name].clone()
                parameters[name].copy_(average)
                average.copy_(held)
