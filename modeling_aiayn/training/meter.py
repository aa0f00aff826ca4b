"""Training speed in real tokens per second, and the share of padding."""

import time
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from ..losses import IGNORED_LABEL


class TokenMeter:
    """Counts the tokens of batches between two entries of the log.

    Sums stay on the batches' device until they are read: counting does not wait for the device.
    With has_target, labels are counted too: they are a text of their own, as in translation.
    """

    def __init__(self, has_target: bool = True) -> None:
        self.has_target = has_target
        self.real: Tensor | float = 0.0
        self.padded: float = 0.0
        self._started = time.perf_counter()
        self._paused = 0.0

    def count(self, batch: dict[str, Any]) -> None:
        """Count a batch of "input_ids", [B, S], "attention_mask", [B, S], "labels", [B, T]."""
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
        """Leave out time that was not spent on training."""
        self._paused += seconds

    def state(self) -> dict[str, float]:
        """The counts so far: real tokens, tokens with padding, and seconds."""
        seconds = time.perf_counter() - self._started - self._paused
        return {"real": float(self.real), "padded": self.padded, "seconds": seconds}

    def resume(self, state: dict[str, float]) -> None:
        """Continue from counts that `state` returned."""
        self.real, self.padded = state["real"], state["padded"]
        self._started, self._paused = time.perf_counter() - state["seconds"], 0.0

    def rates(self, accelerator: Accelerator) -> dict[str, float]:
        """Real tokens per second and the share of padding, for the log; restarts the counts."""
        counted = torch.tensor([*self.state().values()], dtype=torch.float64)
        self.resume({"real": 0.0, "padded": 0.0, "seconds": 0.0})
        if accelerator.num_processes > 1:
            counted = accelerator.reduce(counted.to(accelerator.device), "sum").cpu()
            counted[2] /= accelerator.num_processes
        real, padded, seconds = counted.tolist()
        if not padded:
            return {}
        return {"tokens_per_second": round(real / seconds, 1), "padding_share": 1 - real / padded}
