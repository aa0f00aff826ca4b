"""A Seq2SeqTrainer that is safe to kill: how it saves, goes on, and when it stops."""

import json
import math
import os
import time
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import (
    EarlyStoppingCallback,
    Seq2SeqTrainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, EvalLoopOutput, TrainOutput
from transformers.utils import SAFE_WEIGHTS_NAME

from .arguments import AiaynTrainingArguments
from .checkpoints import (
    ASIDE_FOLDER,
    checkpoint_to_resume,
    delete_old_checkpoints,
    newest_whole_checkpoint,
    read_manifest,
    set_other_branches_aside,
    where_best_is,
    write_checkpoint,
)
from .ema import EMA_FOLDER, EmaCallback
from .failures import BatchTooLargeError, TrainingDivergedError, is_out_of_memory, worst_loss
from .interruption import InterruptionCallback, leave_group
from .meter import TokenMeter
from .run_folder import claim_folder, forget_end
from .sampling import LengthGroups
from .settings import is_more_patient, refuse_changes, run_settings

LOG_STATE_FILE = "log_state_{process}.json"


class ResumableTrainer(Seq2SeqTrainer):
    """Seq2SeqTrainer whose runs can be killed at any instant and go on as if they had not been.

    What it adds: checkpoints that are whole or not there, with all that the log is made of; the
    average of the weights in them; a stop on SIGTERM and SIGINT; and on divergence, before an
    update that would spoil the weights.

    Args:
        *args: As for Seq2SeqTrainer, with AiaynTrainingArguments.
        **kwargs: As for Seq2SeqTrainer.

    Raises:
        ValueError: An average is asked for of an adapter, or while processes hold parts of the
            weights.
    """

    args: AiaynTrainingArguments

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.meter = TokenMeter(getattr(self.model.config, "is_encoder_decoder", False))
        self._interruption = InterruptionCallback()
        self.add_callback(self._interruption)
        self._ema = EmaCallback(self.args.ema_decay) if self.args.ema_decay else None
        if self._ema is not None:
            if self.is_fsdp_enabled or self.is_distributed_loading_by_transformers:
                raise ValueError(
                    "ema_decay needs whole weights on each process, not with FSDP or TP."
                )
            if hasattr(self.model, "peft_config"):
                raise ValueError("ema_decay is not for adapters: a checkpoint holds one of them.")
            self.add_callback(self._ema)
        self.add_callback(_Resumption(self))
        if self.args.early_stopping_patience:
            self.add_callback(EarlyStoppingCallback(self.args.early_stopping_patience))
        self._groups: LengthGroups | None = None
        self._best_checkpoint: Path | None = None
        self._has_another_rate = False
        self._is_saving = False
        self._log_state: dict[str, Any] = {}
        self._update_loss: Tensor | float = 0.0
        # When training began, moved back by what earlier starts took.
        self._started = time.perf_counter()

    def train(
        self,
        resume_from_checkpoint: str | os.PathLike[str] | bool | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> TrainOutput:
        """Train, from the beginning or from where a checkpoint left off.

        A run that was complete at its checkpoint is not trained any further.

        Args:
            resume_from_checkpoint: A checkpoint's folder; True for the newest whole one. None: as
                the argument resume says.
            *args: As for Seq2SeqTrainer.
            **kwargs: As for Seq2SeqTrainer.

        Returns:
            The library's summary.

        Raises:
            OSError: output_dir cannot be written, is in use, or is full.
            ValueError: The checkpoint is damaged or of another run; training diverges; a batch is
                too large.
            SystemExit: SIGTERM came; the code is 143.
            KeyboardInterrupt: SIGINT came.
        """
        if self.args.should_save:
            claim_folder(self.args.output_dir)
        folder = self._folder_to_resume(resume_from_checkpoint)
        datasets = {"training": self.train_dataset, "validation": self.eval_dataset}
        self._settings = run_settings(self.args, self.model.config, datasets)
        self._log_state = {}
        self._best_checkpoint, self._has_another_rate = None, False
        if folder is not None:
            self._go_on_from(folder)
        elif self.args.should_save:
            set_other_branches_aside(Path(self.args.output_dir), None, 0)
        if self.args.should_save:
            forget_end(self.args)
        self._started = time.perf_counter() - self._log_state.get("seconds", 0.0)
        try:
            return super().train(None if folder is None else str(folder), *args, **kwargs)
        finally:
            self._interruption.restore()

    def _folder_to_resume(self, given: str | os.PathLike[str] | bool | None) -> Path | None:
        if given is True:
            newest = newest_whole_checkpoint(Path(self.args.output_dir))
            if newest is None:
                raise ValueError(f"No whole checkpoint in output_dir {self.args.output_dir}.")
            return newest
        if given is None and self.args.resume is not None:
            given = checkpoint_to_resume(self.args)
        return Path(given) if given else None

    def _go_on_from(self, folder: Path) -> None:
        before = read_manifest(folder).get("settings", {})
        refuse_changes(before, self._settings)
        path = folder / LOG_STATE_FILE.format(process=self.args.process_index)
        self._log_state = json.loads(path.read_text("utf-8"))
        rate = before.get("free", {}).get("learning_rate", self.args.learning_rate)
        self._has_another_rate = rate != self.args.learning_rate
        patience = self.args.early_stopping_patience
        if is_more_patient(patience, before.get("free", {}).get("early_stopping_patience", 0)):
            self._log_state["stopped_early"] = False
        state = TrainerState.load_from_json(str(folder / TRAINER_STATE_NAME))
        renamed = {}
        if self.args.should_save:
            output_dir = Path(self.args.output_dir)
            renamed = set_other_branches_aside(output_dir, folder, state.global_step)
        if state.best_model_checkpoint is not None:
            best = where_best_is(folder, Path(state.best_model_checkpoint), renamed)
            # The first process has renamed, and knows.
            [self._best_checkpoint] = broadcast_object_list([best])

    def _get_dataloader(self, *args: Any, **kwargs: Any) -> DataLoader[Any]:
        """As the library's, whose workers are not what a signal to the trainer's group ends."""
        loader: DataLoader[Any] = super()._get_dataloader(*args, **kwargs)
        # What accelerate puts around a loader iterates over the one in it.
        inner = getattr(loader, "base_dataloader", loader)
        inner.worker_init_fn = partial(leave_group, then=inner.worker_init_fn)
        return loader

    def length_groups(self, lengths: list[int]) -> LengthGroups:
        """The sampler of batches of like length, which hears of its epoch when the run goes on.

        Args:
            lengths: Length of each example, in tokens.

        Returns:
            The sampler.
        """
        size = self.args.train_batch_size * self.args.gradient_accumulation_steps
        self._groups = LengthGroups(lengths, size, self.args.order_seed)
        return self._groups

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Tensor:
        """Forward and backward of a batch, whose tokens are counted.

        Args:
            model: The model, or what wraps it.
            inputs: A batch.
            *args: As for Seq2SeqTrainer.
            **kwargs: As for Seq2SeqTrainer.

        Returns:
            The loss, [].

        Raises:
            ValueError: The batch does not fit into memory.
        """
        self.meter.count(inputs)
        try:
            loss = super().training_step(model, inputs, *args, **kwargs)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise BatchTooLargeError(self.state.global_step + 1, inputs) from error
        self._update_loss = self._update_loss + loss
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, with a training loss the real tokens per second and the share of padding.

        With the summary, what is of the whole run and not of this start alone.

        Args:
            logs: What to log.
            start_time: When training began, in seconds.
        """
        if "loss" in logs:
            counted = self.meter.take()
            if self.args.world_size > 1:
                counted = self.accelerator.reduce(counted.to(self.args.device), "sum").cpu()
                counted[2] /= self.args.world_size
            real, padded, seconds = counted.tolist()
            if padded:
                logs["tokens_per_second"] = round(real / seconds, 1)
                logs["padding_share"] = 1 - real / padded
        if "total_flos" in logs:
            # The summary: the library divides the whole run's losses by the updates of this start.
            logs["train_loss"] = self._total_loss_scalar / max(1, self.state.global_step)
            logs["seconds_of_all_starts"] = round(time.perf_counter() - self._started, 1)
            if getattr(self.args, "max_tokens_per_batch", None) is not None:
                # It counts sentences by a batch size that says nothing here.
                logs.pop("train_samples_per_second", None)
        super().log(logs, start_time)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """The gradient's norm; here is the last place before an update can spoil the weights."""
        grad_norm = super()._get_grad_norm(model, grad_norm)
        loss, self._update_loss = self._update_loss, 0.0
        if self.args.world_size > 1:
            loss = self.accelerator.reduce(torch.as_tensor(loss, device=self.args.device), "mean")
        # Parts of it lie with several processes where those of the weights do.
        whole_norm = grad_norm.full_tensor() if hasattr(grad_norm, "full_tensor") else grad_norm
        # Under loss scaling a norm that is not finite is usual: the scaler leaves the update out.
        has_scaler = getattr(self.accelerator, "scaler", None) is not None
        is_finite = math.isfinite(loss) and (has_scaler or math.isfinite(whole_norm))
        if not is_finite or loss > worst_loss(self.model):
            self._stop_diverged(float(loss), float(whole_norm))
        return grad_norm

    def _stop_diverged(self, loss: float, grad_norm: float) -> None:
        self.state.global_step += 1
        self.log({"loss": loss, "grad_norm": grad_norm})
        newest = newest_whole_checkpoint(Path(self.args.output_dir))
        raise TrainingDivergedError(self.state.global_step, loss, grad_norm, newest)

    def _get_output_dir(self, trial: Any) -> str:
        output_dir = super()._get_output_dir(trial)
        return os.path.join(output_dir, ASIDE_FOLDER) if self._is_saving else output_dir

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        started = time.perf_counter()
        output_dir = Path(self._get_output_dir(trial))
        name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"

        def write(folder: Path) -> None:
            self._is_saving = True
            try:
                super(ResumableTrainer, self)._save_checkpoint(model, trial)
            finally:
                self._is_saving = False
            if self._ema is not None:
                with self.averaged_weights():
                    self._save(str(folder / EMA_FOLDER))
            self._note_best_checkpoint(output_dir, name)
            if self.args.should_save:
                self.state.save_to_json(str(folder / TRAINER_STATE_NAME))
            self.accelerator.wait_for_everyone()

        if self.args.should_save:
            write_checkpoint(output_dir, name, write, {"settings": self._settings})
            best = Path(self.state.best_model_checkpoint or "").name
            delete_old_checkpoints(output_dir, self.args.save_total_limit, name, {best})
        else:
            write(output_dir / ASIDE_FOLDER / name)
        self.accelerator.wait_for_everyone()
        self.meter.pause(time.perf_counter() - started)

    def _note_best_checkpoint(self, output_dir: Path, written: str | None = None) -> None:
        """Where the best weights are, if they are or are being written; else it stays as it was."""
        name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.best_global_step}"
        if name == written or (output_dir / name).is_dir():
            self.state.best_model_checkpoint = str(output_dir / name)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model and its tokenizers.

        Args:
            output_dir: The folder. None: the run's.

        Raises:
            OSError: They cannot be written.
        """
        try:
            super().save_model(output_dir, _internal_call)
        except OSError:
            raise
        except Exception as error:  # each library has a type of its own for a full disk
            folder = output_dir or self.args.output_dir
            raise OSError(f"Could not save the model in {folder}: {error}.") from error

    def _save_rng_state(self, output_dir: str) -> None:
        """Each process's random numbers, and its share of the log's next entry."""
        super()._save_rng_state(output_dir)
        is_interrupted = self._interruption.is_stopping
        state = {
            "loss": self._tr_loss.item(),
            "total_loss": self._total_loss_scalar,
            "last_logged": self._globalstep_last_logged,
            "meter": self.meter.state(),
            "seconds": time.perf_counter() - self._started,
            "is_evaluation_due": is_interrupted and self._interruption.is_evaluation_due,
            "stopped_early": self.control.should_training_stop
            and not is_interrupted
            and self.state.global_step < self.state.max_steps,
        }
        path = Path(output_dir) / LOG_STATE_FILE.format(process=self.args.process_index)
        path.write_text(json.dumps(state, indent=2) + "\n", "utf-8")

    def _init_training_state(
        self, max_steps: int, num_update_steps_per_epoch: int, num_train_epochs: int, *args: Any
    ) -> tuple[int, int]:
        place = super()._init_training_state(
            max_steps, num_update_steps_per_epoch, num_train_epochs, *args
        )
        if self._best_checkpoint is not None:
            self.state.best_model_checkpoint = str(self._best_checkpoint)
        for callback in self.callback_handler.callbacks:
            if self.args.early_stopping_patience and isinstance(callback, EarlyStoppingCallback):
                # Its state has brought the checkpoint's along.
                callback.early_stopping_patience = self.args.early_stopping_patience
        if self._groups is not None:
            # The library tells a sampler of several processes its epoch, but not in the epoch of
            # which it leaves out what was trained before.
            self._groups.set_epoch(place[0])
        stopped_early = self._log_state.get("stopped_early", False)
        if self._log_state and (stopped_early or self.state.global_step >= max_steps):
            # Nothing is left to train: the loop over epochs is passed by.
            return num_train_epochs, 0
        return place

    def averaged_weights(self) -> AbstractContextManager[None]:
        """A context in which the model has its averaged weights, if there are any."""
        return nullcontext() if self._ema is None else self._ema.in_place_of_weights(self.model)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Evaluate, with averaged weights where there are any, outside the meter's time.

        Args:
            *args: As for Seq2SeqTrainer.
            **kwargs: As for Seq2SeqTrainer.

        Returns:
            Predictions and metrics.
        """
        started = time.perf_counter()
        # The library's takes along the rows that fill up the processes' last batches.
        self.gather_function = self.accelerator.gather_for_metrics
        with self.averaged_weights():
            output = super().evaluation_loop(*args, **kwargs)
        self.meter.pause(time.perf_counter() - started)
        return output

    def resume_log(self) -> None:
        """Go on with the log's next entry where the checkpoint left it."""
        if not self._log_state:
            return
        self._tr_loss.fill_(self._log_state["loss"])
        self._total_loss_scalar = self._log_state["total_loss"]
        self._globalstep_last_logged = self._log_state["last_logged"]
        self.meter.resume(self._log_state["meter"])

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """As saved; then what was due at the checkpoint, which draws from them as it would have."""
        super()._load_rng_state(checkpoint)
        self._evaluate_if_due()

    def _evaluate_if_due(self) -> None:
        if self._log_state.pop("is_evaluation_due", False):
            self._determine_best_metric(metrics=self._evaluate(None, None), trial=None)
            self._note_best_checkpoint(Path(self._get_output_dir(None)))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if self._ema is not None:
            self._ema.load(load_file(Path(resume_from_checkpoint) / EMA_FOLDER / SAFE_WEIGHTS_NAME))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """As saved, but at this run's learning rate, which may be another."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None or not self._has_another_rate:
            return
        if not isinstance(self.lr_scheduler, LambdaLR):
            raise ValueError(
                f"learning_rate cannot change with lr_scheduler_type "
                f"{self.args.lr_scheduler_type!r}, whose state holds the rate that it has come to."
            )
        rate = self.args.learning_rate
        scheduler = self.lr_scheduler
        scheduler.base_lrs = [rate] * len(scheduler.base_lrs)
        rates = [rate * factor(scheduler.last_epoch) for factor in scheduler.lr_lambdas]
        for group, current in zip(self.optimizer.param_groups, rates, strict=True):
            group["initial_lr"], group["lr"] = rate, current
        scheduler._last_lr = [*rates]

    def _load_best_model(self) -> None:
        """The best checkpoint's weights; averaged ones where there are any."""
        best = self.state.best_model_checkpoint
        averaged = Path(best) / EMA_FOLDER
        if averaged.is_dir():
            self.state.best_model_checkpoint = str(averaged)
        try:
            super()._load_best_model()
        finally:
            self.state.best_model_checkpoint = best

    def _finalize_training(self, *args: Any) -> TrainOutput:
        self._evaluate_if_due()
        if self._ema is not None:
            self._ema.settle(self.model)
        limit = self.args.save_total_limit
        # At 1 the library deletes the last checkpoint, without which a run does not know its end.
        self.args.save_total_limit = None
        try:
            output = super()._finalize_training(*args)
        finally:
            self.args.save_total_limit = limit
        return output._replace(training_loss=output.metrics["train_loss"])


class _Resumption(TrainerCallback):
    """Calls its trainer once all is loaded and before the first update."""

    def __init__(self, trainer: ResumableTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Go on with the log."""
        self.trainer.resume_log()
