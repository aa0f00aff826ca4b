"""SIGTERM and SIGINT: save at the end of the update, and stop."""

import logging
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
# How long a dataloader's worker outlives a signal.
WORKER_SECONDS = 120


def outlive_signals(worker: int, then: Callable[[int], object] | None = None) -> None:
    """Let a dataloader's worker serve the update at whose end its trainer stops.

    torchrun, schedulers and terminals send a signal to workers too, and without them a trainer can
    only fail. One that is left behind ends by an alarm.

    Args:
        worker: Its number.
        then: What else a worker begins with.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(WORKER_SECONDS) and None)
    if then is not None:
        then(worker)


class InterruptionCallback(TrainerCallback):
    """Ends training on SIGTERM or SIGINT by a checkpoint, with exit code 143 or 130.

    Nothing is evaluated on the way out: what was due at that update is done when the run goes on.
    Another signal ends the process at once, if it is no echo of the first: launchers hand on what
    their processes have got already.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._received_at = 0.0
        # Whether all processes are stopping for it, by a checkpoint.
        self.is_stopping = False
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
            self._restore()
            signal.raise_signal(number)

    def _restore(self) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self._former = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Watch for signals; only a process's main thread can."""
        self.received, self.is_stopping = None, False
        if threading.current_thread() is threading.main_thread():
            self._former = {number: signal.signal(number, self._receive) for number in SIGNALS}

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Where a process has received a signal, have all of them save and stop."""
        self.received = agreed_signal(self.received, args)
        self.is_evaluation_due = False
        self.is_stopping = self.received is not None
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
        """Leave signals to whom they were left before; one that came late ends the process here."""
        self._exit()

    def _exit(self) -> None:
        self._restore()
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt
        if self.received is not None:
            raise SystemExit(128 + self.received)


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
