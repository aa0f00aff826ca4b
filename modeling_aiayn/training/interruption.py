"""SIGTERM and SIGINT: save at the end of the update, and stop."""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import distributed
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import IntervalStrategy

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)
# A signal so soon after the first is the same one, come by another way.
ECHO_SECONDS = 2.0


def leave_group(worker: int, then: Callable[[int], object] | None = None) -> None:
    """Let a dataloader's worker serve the update at whose end its trainer stops.

    torchrun and terminals send a signal to all of a trainer's group, and without its workers it can
    only fail. In groups of their own they end when the trainer says so, or is gone.

    Args:
        worker: Its number.
        then: What else a worker begins with.
    """
    os.setpgrp()
    if then is not None:
        then(worker)


class InterruptionCallback(TrainerCallback):
    """Ends training on SIGTERM or SIGINT by a checkpoint, with exit code 143 or 130.

    Nothing is evaluated on the way out: what was due at that update is done when the run goes on.
    Another signal ends the process at once, if it is no echo of the first: launchers hand on what
    their processes have got already.
    """

    def __init__(self) -> None:
        # What this process has received, and what any of them has, for which all are stopping.
        self.received: int | None = None
        self._received_at = 0.0
        self._agreed: int | None = None
        # Whether the update at which the run stopped was to be evaluated.
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
        """Whether all processes are stopping, by a checkpoint."""
        return self._agreed is not None

    def restore(self) -> None:
        """Leave signals to whom they were left before."""
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self._former = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Watch for signals; only a process's main thread can."""
        self.received = self._agreed = None
        if threading.current_thread() is threading.main_thread():
            self._former = {number: signal.signal(number, self._receive) for number in SIGNALS}

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Where a process has received a signal, have all of them save and stop."""
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

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The loop has been left: end the process as the signal asks."""
        if self.is_stopping:
            logger.warning(
                "Saved at update %d; --resume auto goes on from there.", state.global_step
            )
            self._exit()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """A signal that came late ends the process here."""
        self._exit()

    def _exit(self) -> None:
        self.restore()
        number = self._agreed or self.received
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        if number is not None:
            raise SystemExit(128 + number)


def agreed_signal(received: int | None, args: TrainingArguments) -> int | None:
    """The signal that any of the processes has received.

    Args:
        received: This process's.
        args: The run's arguments.

    Returns:
        The signal's number, or None.
    """
    if args.world_size <= 1:
        return received
    largest = torch.tensor(received or 0, device=args.device)
    distributed.all_reduce(largest, op=distributed.ReduceOp.MAX)
    return int(largest) or None
