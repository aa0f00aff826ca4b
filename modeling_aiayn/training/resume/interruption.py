"""Signals that ask a run to stop: save at the end of the update, then stop."""

import logging
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import distributed
from transformers import TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer_utils import IntervalStrategy

logger = logging.getLogger(__name__)

# SIGUSR1 is Slurm's usual warning, SIGHUP a closed terminal, SIGXCPU a limit on processor time.
# Windows has only the first two.
SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGXCPU", "SIGQUIT")
    if hasattr(signal, name)
)
# A second signal within this time counts as a copy of the first one.
ECHO_SECONDS = 2.0


class EvaluationInterrupted(Exception):
    """A signal arrived during an evaluation that is part of training."""


class InterruptionCallback(TrainerCallback):
    """On one of `SIGNALS`, saves a checkpoint, then exits with the code 128 + the signal's number.

    An evaluation that is due at that update, or running, is postponed until the run resumes. A
    second signal ends the process at once, unless it follows so soon that it is a copy: launchers
    forward signals that their processes have already received. SIGHUP stays ignored under nohup.
    """

    def __init__(self) -> None:
        self.received: int | None = None  # by this process
        self._received_at = 0.0
        self._agreed: int | None = None  # by any process
        self.is_evaluating = False  # during training
        self.is_evaluation_due = False
        self._former: dict[int, Any] = {}

    def state_dict(self) -> dict[str, bool]:
        """Whether the run must evaluate before its next update."""
        return {"is_evaluation_due": self.is_evaluation_due}

    def load_state_dict(self, state: dict[str, bool]) -> None:
        """Restore what `state_dict` returned."""
        self.is_evaluation_due = state["is_evaluation_due"]

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received, self._received_at = number, time.monotonic()
            name = signal.Signals(number).name
            # The message is lost if this signal interrupts a write: streams are not reentrant.
            with suppress(RuntimeError):
                logger.warning("%s: saving at the end of this update, then stopping.", name)
        elif number == getattr(signal, "SIGXCPU", None):
            return  # the system repeats it for each second of processor time
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
        """Install signal handlers; Python allows this only in the main thread."""
        self.received = self._agreed = None
        self.is_evaluation_due = False
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                is_ignored = signal.getsignal(number) == signal.SIG_IGN
                if not (is_ignored and number == getattr(signal, "SIGHUP", None)):  # nohup
                    self._former[number] = signal.signal(number, self._receive)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save and stop if a process has received a signal."""
        # The last update ends its epoch, even if the epoch has more updates.
        is_epoch_end = state.epoch == int(state.epoch) or state.global_step >= state.max_steps
        by_epoch = is_epoch_end and args.eval_strategy == IntervalStrategy.EPOCH
        # Also without a signal: a checkpoint may be saved before its epoch is evaluated.
        self.is_evaluation_due = control.should_evaluate or (
            by_epoch and args.eval_delay <= state.epoch
        )
        self._agreed = agreed_signal(self.received, args)
        if not self.is_stopping:
            return
        control.should_log |= is_epoch_end and args.logging_strategy == IntervalStrategy.EPOCH
        control.should_save = control.should_training_stop = True
        control.should_evaluate = False

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note that the evaluation was made."""
        self.is_evaluation_due = False

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop an evaluation, and save, if one of the processes has received a signal."""
        if not self.is_evaluating:
            return
        self._agreed = agreed_signal(self.received, args)
        if self.is_stopping:
            self.is_evaluation_due = True
            raise EvaluationInterrupted

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the process, now that the checkpoint is saved."""
        if self.is_stopping:
            self.exit(state)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the process if a signal arrived after the last update."""
        self.exit(state)

    def exit(self, state: TrainerState) -> None:
        """If a signal was received, end the process; the checkpoint has been saved before."""
        if self.is_stopping and state.global_step:  # an evaluation before update 1 saves nothing
            logger.warning(
                "Saved at update %d. Resume from there with --resume auto.", state.global_step
            )
        self.restore()
        number = self._agreed or self.received
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        if number is not None:
            raise SystemExit(128 + number)


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Run the block, then set the random generators to their states from before it."""
    python, numbers = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)


def agreed_signal(received: int | None, args: TrainingArguments) -> int | None:
    """The signal that any of the processes has received; received is this process's."""
    if args.world_size <= 1:
        return received
    largest = torch.tensor(received or 0, device=args.device)
    distributed.all_reduce(largest, op=distributed.ReduceOp.MAX)
    return int(largest) or None
