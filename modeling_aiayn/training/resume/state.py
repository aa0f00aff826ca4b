"""State of a run that survives a resume, in one JSON file of each checkpoint."""

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate.utils import gather_object
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import EarlyStoppingCallback, Seq2SeqTrainer, TrainerCallback, TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ...saved.whole_files import unfinished_path
from ..loaders import set_epoch
from .checkpoints import (
    RUN_STATE_FILE,
    Checkpoint,
    choose_checkpoint,
    delete_old_checkpoints,
    new_checkpoint,
)
from .interruption import EvaluationInterrupted, InterruptionCallback, kept_random_state
from .run import FINISHED_FILE, claim_folder
from .settings import check_settings, run_fingerprints, run_settings

if TYPE_CHECKING:
    from torch.distributed.checkpoint.stateful import Stateful

logger = logging.getLogger(__name__)


class Clock:
    """Counts the seconds of training over all starts of a run."""

    def __init__(self) -> None:
        self.load_state_dict({"seconds": 0.0})

    def seconds(self) -> float:
        """Seconds since the run began, without the time between its starts."""
        return time.perf_counter() - self._started

    def state_dict(self) -> dict[str, float]:
        """The seconds so far."""
        return {"seconds": self.seconds()}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Continue from seconds that `state_dict` returned."""
        self._started = time.perf_counter() - state["seconds"]


class LossTotals:
    """The Trainer's sums of the training loss, which transformers does not save."""

    def __init__(self, trainer: Seq2SeqTrainer) -> None:
        self.trainer = trainer

    def state_dict(self) -> dict[str, float]:
        """The loss since the last log entry, the loss before it, and the update of the entry."""
        return {
            "loss": self.trainer._tr_loss.item(),
            "total_loss": self.trainer._total_loss_scalar,
            "last_logged": self.trainer._globalstep_last_logged,
        }

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore what `state_dict` returned."""
        self.trainer._tr_loss.fill_(state["loss"])
        self.trainer._total_loss_scalar = state["total_loss"]
        self.trainer._globalstep_last_logged = state["last_logged"]


class RunState(TrainerCallback):
    """Saves and restores state that transformers does not restore when a run resumes.

    Each part has `state_dict`, which returns JSON, and `load_state_dict`, and each process has its
    own parts. The class also restores the path of the best checkpoint, and applies a new learning
    rate or patience.
    """

    def __init__(self, trainer: Seq2SeqTrainer, **parts: "Stateful") -> None:
        self.trainer = trainer
        self.clock = Clock()
        self.interruption = InterruptionCallback()
        self.parts: dict[str, Stateful] = {
            "clock": self.clock,
            "evaluation": self.interruption,
            "losses": LossTotals(trainer),
            **parts,
        }
        self._folder: Path | None = None
        self._state: dict[str, Any] = {}
        self._saved = TrainerState()
        self._fingerprints: dict[str, str | None] = {}

    @property
    def is_resumed(self) -> bool:
        """Whether the run continues from a checkpoint."""
        return self._folder is not None

    def begin(self, given: Any) -> Path | None:
        """Lock the run's folder, choose a checkpoint to resume from, and check its settings."""
        trainer = self.trainer
        if trainer.args.should_save:
            claim_folder(trainer.args.output_dir)
        checkpoint = choose_checkpoint(trainer.args, given)
        datasets = {"training": trainer.train_dataset, "validation": trainer.eval_dataset}
        self._fingerprints = run_fingerprints(trainer.model, datasets)
        self.clock.load_state_dict({"seconds": 0.0})
        self._folder, self._saved = None, TrainerState()
        if checkpoint is not None:
            self._folder = checkpoint.folder
            self._read(checkpoint)
        if trainer.args.should_save:
            (Path(trainer.args.output_dir) / FINISHED_FILE).unlink(missing_ok=True)
        return self._folder

    def _read(self, checkpoint: Checkpoint) -> None:
        self._state = checkpoint.read_state()
        check_settings(self._state["settings"], self._settings())
        if self._argument_before("save_only_model"):
            raise ValueError(
                f"{checkpoint.folder} holds only weights (save_only_model), so a run cannot "
                "resume from it. Give a new --output_dir. Translators and classifiers can "
                f"start from these weights, with --start_from {checkpoint.folder}."
            )
        args = self.trainer.args
        if not (hasattr(self.trainer.train_dataset, "__len__") or args.allow_inexact_resume):
            raise ValueError(
                "The training data is a stream, which continues near its last position: some pairs "
                "are left out or repeated. Resume with --allow_inexact_resume true."
            )
        self._saved = TrainerState.load_from_json(str(checkpoint.folder / TRAINER_STATE_NAME))

    def _settings(self) -> dict[str, Any]:
        """The run's settings; a hyperparameter search changes them for each trial."""
        return run_settings(self.trainer.args, self.trainer.model, self._fingerprints)

    def _has_stopped_early(self) -> bool:
        """Whether early stopping ended the run, and would also end it with the current patience."""
        callbacks = self.trainer.callback_handler.callbacks
        stoppers = [one for one in callbacks if isinstance(one, EarlyStoppingCallback)]
        saved = self._saved.stateful_callbacks.get(EarlyStoppingCallback.__name__, [])
        saved = saved if isinstance(saved, list) else [saved]
        for stopper, state in zip(stoppers, saved, strict=False):
            counter = state["attributes"]["early_stopping_patience_counter"]
            if counter >= stopper.early_stopping_patience:
                logger.warning(
                    "This run stopped early and is complete. To train it further, pass an "
                    "--early_stopping_patience greater than %d, or 0.",
                    counter,
                )
                return True
        return False

    def is_complete(self, max_steps: int) -> bool:
        """Whether a run of max_steps updates was complete at its checkpoint."""
        return self._has_stopped_early() or self._saved.global_step >= max_steps

    def _argument_before(self, name: str) -> Any:
        return self._state["settings"]["arguments"].get(name)

    @contextmanager
    def new_checkpoint(self, output_dir: Path) -> Iterator[Path]:
        """Write a checkpoint of this update; all processes enter the block, and one writes."""
        trainer = self.trainer
        name = f"{PREFIX_CHECKPOINT_DIR}-{trainer.state.global_step}"
        folder = unfinished_path(output_dir / name)
        is_writer = trainer.args.should_save
        for callback in trainer.callback_handler.callbacks:
            if isinstance(callback, ExportableState):  # the resumed checkpoint may not have had it
                trainer.state.stateful_callbacks.setdefault(type(callback).__name__, {})
        with new_checkpoint(output_dir, name) if is_writer else nullcontext():
            trainer.accelerator.wait_for_everyone()  # until the folder exists
            yield folder
            states = gather_object([{name: part.state_dict() for name, part in self.parts.items()}])
            note_best_checkpoint(trainer.state, output_dir, name)
            if is_writer:
                trainer.state.save_to_json(str(folder / TRAINER_STATE_NAME))
                content = {"settings": self._settings(), "states": states}
                (folder / RUN_STATE_FILE).write_text(json.dumps(content, indent=2) + "\n", "utf-8")
            trainer.accelerator.wait_for_everyone()  # until all have written their files
        if is_writer:
            best = trainer.state.best_model_checkpoint
            delete_old_checkpoints(output_dir, trainer.args.save_total_limit, name, best)
        trainer.accelerator.wait_for_everyone()

    @contextmanager
    def stoppable_evaluation(self) -> Iterator[None]:
        """Run the block, an evaluation during training. If a signal stops it, save and exit.

        Afterwards the random state is restored. So evaluations do not change the training, and an
        interrupted evaluation starts again from the same state.
        """
        trainer = self.trainer
        self.interruption.is_evaluating = True
        try:
            with kept_random_state():
                yield
        except EvaluationInterrupted:
            # Without an update since the start there is nothing new to save.
            if trainer.state.global_step > self._saved.global_step:
                trainer._save_checkpoint(trainer.model_wrapped, trainer._trial)
            self.interruption.exit(trainer.state)
        finally:
            self.interruption.is_evaluating = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Restore all parts, then run an evaluation that a signal postponed; it may end the run."""
        if self._folder is None:
            return
        states = self._state["states"][args.process_index]
        for name, part in self.parts.items():
            part.load_state_dict(states[name])
        if (best := self._saved.best_model_checkpoint) is not None:  # the run may have been moved
            places = (self._folder.with_name(Path(best).name), Path(best))
            state.best_model_checkpoint = next((str(p) for p in places if p.is_dir()), None)
        self._apply_arguments(state, kwargs["optimizer"], kwargs["lr_scheduler"])
        if self.interruption.is_evaluation_due:
            trainer = self.trainer
            trainer._load_rng_state(str(self._folder))
            trainer._determine_best_metric(metrics=trainer._evaluate(None, None), trial=None)
            note_best_checkpoint(state, Path(args.output_dir))

    def _apply_arguments(self, state: TrainerState, optimizer: Any, scheduler: Any) -> None:
        """Apply current arguments, because transformers has restored the checkpoint's values."""
        args = self.trainer.args
        state.compute_steps(args, state.max_steps)  # eval_steps, save_steps and logging_steps
        for callback in self.trainer.callback_handler.callbacks:
            if args.early_stopping_patience and isinstance(callback, EarlyStoppingCallback):
                callback.early_stopping_patience = args.early_stopping_patience
        if self._argument_before("learning_rate") != args.learning_rate:
            change_learning_rate(optimizer, scheduler, args.learning_rate)
        elif isinstance(scheduler, LambdaLR):
            follow_schedule(optimizer, scheduler)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Tell the samplers their epoch."""
        set_epoch(kwargs["train_dataloader"], int(state.epoch or 0))


def note_best_checkpoint(state: TrainerState, output_dir: Path, written: str | None = None) -> None:
    """Set the path of the best checkpoint, if it exists or is being written."""
    name = f"{PREFIX_CHECKPOINT_DIR}-{state.best_global_step}"
    if name == written or (output_dir / name).is_dir():
        state.best_model_checkpoint = str(output_dir / name)


def change_learning_rate(optimizer: Optimizer, scheduler: Any, learning_rate: float) -> None:
    """Change the learning rate of a schedule, from the update that it has reached."""
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
    """Set the rates from the schedule, which may have changed since the checkpoint."""
    factors = [factor(scheduler.last_epoch) for factor in scheduler.lr_lambdas]
    rates = [base * factor for base, factor in zip(scheduler.base_lrs, factors, strict=True)]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    scheduler._last_lr = [*rates]
