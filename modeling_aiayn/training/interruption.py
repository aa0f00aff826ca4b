"""SIGTERM and SIGINT: save at the end of the update, then stop."""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import distributed
from torch.utils.data import DataLoader
from transformers import TrainerCallback, TrainingArguments
from transformers.trainer_utils import IntervalStrategy

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)
# A second signal within this time is taken for a copy of the first one.
ECHO_SECONDS = 2.0


def separate_workers(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Start a loader's workers in process groups of their own, and return the loader.

    torchrun and terminals send a signal to the trainer's whole group. It would end the workers, but
    the trainer needs their batches to finish the update before it saves. Workers in groups of their
    own end when the trainer ends.
    """
    inner = getattr(loader, "base_dataloader", loader)  # accelerate wraps the loader
    if getattr(inner.worker_init_fn, "func", None) is not _leave_group:
        inner.worker_init_fn = partial(_leave_group, then=inner.worker_init_fn)
    return loader


def _leave_group(worker: int, then: Callable[[int], object] | None = None) -> None:
    if hasattr(os, "setpgrp"):  # not on Windows
        os.setpgrp()
    if then is not None:
        then(worker)


class InterruptionCallback(TrainerCallback):
    """Ends training on SIGTERM or SIGINT with a checkpoint, then with exit code 143 or 130.

    An evaluation that is due at that update is postponed until the run resumes. A second signal
    ends the process at once, unless it follows so soon that it is a copy: launchers forward signals
    that their processes have already received.
    """

    def __init__(self) -> None:
        self.received: int | None = None  # by this process
        self._received_at = 0.0
        self._agreed: int | None = None  # by any process
        self.is_evaluation_due = False
        self._former: dict[int, Any] = {}

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received, self._received_at = number, time.monotonic()
            logger.warning(
                "%s: saving at the end of this update, then stopping.", signal.Signals(number).name
            )
        elif time.monotonic() - self._received_at > ECHO_SECONDS:
            self.restore()
            signal.raise_signal(number)

    @property
    def is_stopping(self) -> bool:
        """Whether all processes are about to save and stop."""
        return self._agreed is not None

    def restore(self) -> None:
        """Restore the signal handlers from before training."""
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self._former = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Handle signals; only a process's main thread can."""
        self.received = self._agreed = None
        if threading.current_thread() is threading.main_thread():
            self._former = {number: signal.signal(number, self._receive) for number in SIGNALS}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Make all processes save and stop if one has received a signal."""
        self._agreed = agreed_signal(self.received, args)
        self.is_evaluation_due = False
        if not self.is_stopping:
            return
        is_epoch_end = state.epoch == int(state.epoch)
        by_epoch = is_epoch_end and args.eval_strategy == IntervalStrategy.EPOCH
        self.is_evaluation_due = control.should_evaluate or (
            by_epoch and args.eval_delay <= state.epoch
        )
        control.should_log |= is_epoch_end and args.logging_strategy == IntervalStrategy.EPOCH
        control.should_save = control.should_training_stop = True
        control.should_evaluate = False

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the process, now that the checkpoint is saved."""
        if self.is_stopping:
            logger.warning(
                "Saved at update %d. Resume from there with --resume auto.", state.global_step
            )
            self._exit()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the process if a signal arrived after the last update."""
        self._exit()

    def _exit(self) -> None:
        self.restore()
        number = self._agreed or self.received
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        if number is not None:
            raise SystemExit(128 + number)


def agreed_signal(received: int | None, args: TrainingArguments) -> int | None:
    """The signal that any of the processes has received; received is this process's."""
    if args.world_size <= 1:
        return received
    largest = torch.tensor(received or 0, device=args.device)
    distributed.all_reduce(largest, op=distributed.ReduceOp.MAX)
    return int(largest) or None
