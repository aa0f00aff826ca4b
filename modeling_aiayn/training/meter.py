"""What a person wants to see of a run's speed: real tokens per second, and the share of padding."""

import time
from typing import Any

import torch
from torch import Tensor

from ..losses import IGNORED_LABEL


class TokenMeter:
    """Counts the tokens of batches between two entries of the log.

    Sums stay on the batches' device until they are read, so that counting holds up nothing.

    Args:
        has_target: Whether labels are a text of their own; a language model's are its input's ids,
            a classifier's are classes.
    """

    def __init__(self, has_target: bool = True) -> None:
        self.has_target = has_target
        self.real: Tensor | float = 0.0
        self.padded: float = 0.0
        self._started = time.perf_counter()
        self._paused = 0.0

    def count(self, batch: dict[str, Any]) -> None:
        """Count a batch's tokens, those of the target too, with and without padding.

        Args:
            batch: "input_ids", [B, S], "attention_mask", [B, S], and "labels", [B, T]; what lacks
                either side is not counted.
        """
        if not {"input_ids", "labels"} <= batch.keys():
            return
        source, labels = batch["input_ids"], batch["labels"]
        mask = batch.get("attention_mask")
        sources = source.numel() if mask is None else mask.sum()
        self.real = self.real + sources
        self.padded += source.numel()
        if self.has_target:
            self.real = self.real + (labels != IGNORED_LABEL).sum()
            self.padded += labels.numel()

    def pause(self, seconds: float) -> None:
        """Leave time out that went to something else than training.

        Args:
            seconds: How long it took.
        """
        self._paused += seconds

    def state(self) -> dict[str, float]:
        """What is counted so far, to go on from.

        Returns:
            Real tokens, tokens with padding, and seconds.
        """
        seconds = time.perf_counter() - self._started - self._paused
        return {"real": float(self.real), "padded": self.padded, "seconds": seconds}

    def resume(self, state: dict[str, float]) -> None:
        """Go on from what was counted before.

        Args:
            state: As `state` gave it.
        """
        self.real, self.padded = state["real"], state["padded"]
        self._started, self._paused = time.perf_counter() - state["seconds"], 0.0

    def take(self) -> Tensor:
        """What has been counted since the last time, and begin anew.

        Returns:
            Real tokens, tokens with padding, and seconds, [3].
        """
        now = time.perf_counter()
        seconds = now - self._started - self._paused
        counted = torch.tensor([float(self.real), self.padded, seconds], dtype=torch.float64)
        self.real, self.padded, self._started, self._paused = 0.0, 0.0, now, 0.0
        return counted
