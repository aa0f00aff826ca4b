"""Continuing a run exactly where its checkpoint left it."""

import json
import logging
import time
from pathlib import Path
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import EarlyStoppingCallback, Seq2SeqTrainer, TrainerCallback, TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ...data.parsing import read_json_object
from ..loaders import samplers_of
from .checkpoints import Checkpoint
from .settings import check_settings, is_more_patient

logger = logging.getLogger(__name__)

LOG_STATE_FILE = "log_state_{process}.json"


class Resumption(TrainerCallback):
    """Restores the parts of a run that the library does not restore.

    These are: the next entry of the log, the clock, an evaluation that an interruption postponed,
    the path of the best checkpoint, and a new learning rate or patience. Each process saves its own
    part in the checkpoint.
    """

    def __init__(self, trainer: Seq2SeqTrainer) -> None:
        self.trainer = trainer
        self.settings: dict[str, Any] = {}
        self._checkpoint: Checkpoint | None = None
        self._log_state: dict[str, Any] = {}
        self._started = time.perf_counter()

    def start(self, checkpoint: Checkpoint | None, settings: dict[str, Any]) -> None:
        """Check a checkpoint's settings against the run's, and read its state of the log.

        Raises:
            ValueError: The checkpoint is of another run, or has no state of the optimizer.
        """
        self.settings, self._checkpoint, self._log_state = settings, checkpoint, {}
        if checkpoint is not None:
            check_settings(checkpoint.settings, settings)
            if self._value_before("save_only_model", False):
                raise ValueError(
                    f"{checkpoint.folder} holds only weights (save_only_model), so a run cannot "
                    "resume from it. Give a new --output_dir. Translators and classifiers can "
                    f"start from these weights, with --start_from {checkpoint.folder}."
                )
            if not hasattr(self.trainer.train_dataset, "__len__"):
                logger.warning(
                    "The training data is a stream: a run resumes exactly only in its first pass "
                    "over it."
                )
            path = checkpoint.folder / LOG_STATE_FILE.format(process=self._process)
            self._log_state = read_json_object(path)
            patience = self.trainer.args.early_stopping_patience
            patience_before = self._value_before("early_stopping_patience", 0)
            if is_more_patient(patience, patience_before):
                self._log_state["stopped_early"] = False
            elif self._log_state["stopped_early"]:
                logger.warning(
                    "%s: this run stopped early and is complete. To train it further, pass an "
                    "--early_stopping_patience greater than %d, or 0.",
                    checkpoint.folder,
                    patience_before,
                )
        # Counts the seconds of earlier starts too.
        self._started = time.perf_counter() - self._log_state.get("seconds", 0.0)

    def save(self, folder: Path) -> None:
        """Write this process's part into a checkpoint."""
        trainer, interruption = self.trainer, self.trainer.interruption
        is_last = self._has_lost_patience() and not interruption.is_stopping
        state = {
            "loss": trainer._tr_loss.item(),
            "total_loss": trainer._total_loss_scalar,
            "last_logged": trainer._globalstep_last_logged,
            "meter": trainer.meter.state(),
            "seconds": self.seconds(),
            "is_evaluation_due": interruption.is_evaluation_due,
            "stopped_early": is_last and trainer.state.global_step < trainer.state.max_steps,
        }
        path = folder / LOG_STATE_FILE.format(process=self._process)
        path.write_text(json.dumps(state, indent=2) + "\n", "utf-8")

    def _has_lost_patience(self) -> bool:
        """Whether early stopping ends the run. Another callback may only pause it."""
        return self.trainer.control.should_training_stop and any(
            callback.early_stopping_patience_counter >= callback.early_stopping_patience
            for callback in self.trainer.callback_handler.callbacks
            if isinstance(callback, EarlyStoppingCallback)
        )

    @property
    def _process(self) -> int:
        return self.trainer.args.process_index

    def seconds(self) -> float:
        """Seconds of training, in all starts of the run."""
        return time.perf_counter() - self._started

    @property
    def is_resumed(self) -> bool:
        """Whether the run continues from a checkpoint."""
        return self._checkpoint is not None

    def is_complete(self, max_steps: int) -> bool:
        """Whether a run of max_steps updates was complete at its checkpoint."""
        if self._checkpoint is None:
            return False
        state = TrainerState.load_from_json(str(self._checkpoint.folder / TRAINER_STATE_NAME))
        return self._log_state["stopped_early"] or state.global_step >= max_steps

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Restore everything except a postponed evaluation, which needs the random state first."""
        if self._checkpoint is None:
            return
        self.trainer._tr_loss.fill_(self._log_state["loss"])
        self.trainer._total_loss_scalar = self._log_state["total_loss"]
        self.trainer._globalstep_last_logged = self._log_state["last_logged"]
        self.trainer.meter.resume(self._log_state["meter"])
        state.best_model_checkpoint = _find_best_checkpoint(self._checkpoint.folder)
        # The library has restored the checkpoint's eval_steps, save_steps and logging_steps.
        state.compute_steps(args, state.max_steps)
        for callback in self.trainer.callback_handler.callbacks:
            if args.early_stopping_patience and isinstance(callback, EarlyStoppingCallback):
                # The library has restored the checkpoint's patience.
                callback.early_stopping_patience = args.early_stopping_patience
        optimizer, scheduler = kwargs["optimizer"], kwargs["lr_scheduler"]
        if self._value_before("learning_rate", args.learning_rate) != args.learning_rate:
            change_learning_rate(optimizer, scheduler, args.learning_rate)
        elif isinstance(scheduler, LambdaLR):
            follow_schedule(optimizer, scheduler)
        if self.is_complete(state.max_steps):
            self.evaluate_if_due()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Tell the samplers their epoch.

        Old releases of transformers do not, in the epoch in which a run resumes.
        """
        for sampler in samplers_of(kwargs["train_dataloader"]):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(int(state.epoch or 0))

    def _value_before(self, name: str, default: Any) -> Any:
        settings = {} if self._checkpoint is None else self._checkpoint.settings
        return settings.get("free", {}).get(name, default)

    def evaluate_if_due(self) -> None:
        """Run the evaluation that a signal postponed, from the random state of its checkpoint."""
        if self._checkpoint is not None and self._log_state.pop("is_evaluation_due", False):
            trainer = self.trainer
            trainer._load_rng_state(str(self._checkpoint.folder))
            metrics = trainer._evaluate(None, None)
            if trainer.interruption.is_stopping:  # the checkpoint says that it is still due
                trainer.interruption.exit(trainer.state)
            trainer._determine_best_metric(metrics=metrics, trial=None)
            note_best_checkpoint(trainer.state, Path(trainer.args.output_dir))


def _find_best_checkpoint(resumed: Path) -> str | None:
    """The best checkpoint that a checkpoint notes: beside it, as the run may have been moved."""
    state = TrainerState.load_from_json(str(resumed / TRAINER_STATE_NAME))
    if state.best_model_checkpoint is None:
        return None
    noted = Path(state.best_model_checkpoint)
    places = (resumed.with_name(noted.name), noted)
    return next((str(place) for place in places if place.is_dir()), None)


def note_best_checkpoint(state: TrainerState, output_dir: Path, written: str | None = None) -> None:
    """Set the path of the best checkpoint if the best update was saved, or is being written."""
    name = f"{PREFIX_CHECKPOINT_DIR}-{state.best_global_step}"
    if name == written or (output_dir / name).is_dir():
        state.best_model_checkpoint = str(output_dir / name)


def change_learning_rate(optimizer: Optimizer, scheduler: Any, learning_rate: float) -> None:
    """Scale a schedule, at the update that it has reached, to another learning rate."""
    if not isinstance(scheduler, LambdaLR):
        raise ValueError(
            f"learning_rate cannot change with the schedule {type(scheduler).__name__}: the "
            "checkpoint stores its learning rate. Resume with the earlier learning_rate."
        )
    scheduler.base_lrs = [learning_rate] * len(scheduler.base_lrs)
    for group in optimizer.param_groups:
        group["initial_lr"] = learning_rate
    follow_schedule(optimizer, scheduler)


def follow_schedule(optimizer: Optimizer, scheduler: LambdaLR) -> None:
    """Set the rates to those of the schedule, which may be another one than before a stop."""
    factors = [factor(scheduler.last_epoch) for factor in scheduler.lr_lambdas]
    rates = [base * factor for base, factor in zip(scheduler.base_lrs, factors, strict=True)]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    scheduler._last_lr = [*rates]
