"""Section 5 in the library's training loop: one trainer for all models of this package."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Sampler, SequentialSampler
from transformers import (
    EarlyStoppingCallback,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProgressCallback,
    Seq2SeqTrainer,
)
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import (
    PREFIX_CHECKPOINT_DIR,
    EvalLoopOutput,
    SchedulerType,
    TrainOutput,
)

from ..losses import shift_left
from ..saved.whole_files import UNFINISHED_FOLDER, replaced_files
from ..tokenization import TARGET_TOKENIZER_FOLDER
from .arguments import MUON, RunArguments
from .batches import PAIR, TEXT, LengthGroups, token_lengths
from .ema import EMA_FOLDER, EmaCallback, check_can_average
from .evaluation import LossMeter, kept_generation_config, mask_repeats
from .failures import DivergenceGuard, explained_out_of_memory
from .loaders import check_has_batches, padding_collator, token_batch_loader
from .meter import TokenMeter
from .muon import muon_optimizer
from .parallel import check_saves_weights, support_fsdp2, use_one_gpu
from .precision import check_trained_dtype, warn_of_slow_training
from .progress import ProgressBar
from .r_drop import r_drop_loss, repeated
from .resume.checkpoints import choose_checkpoint, delete_old_checkpoints, new_checkpoint
from .resume.interruption import InterruptionCallback, separate_workers
from .resume.resumption import Resumption, note_best_checkpoint
from .resume.run import claim_folder, forget_finish
from .resume.settings import run_settings
from .schedule import noam_schedule

# The weight files of a model, and of an adapter: whole, or in shards with their index.
WEIGHTS = tuple(
    (f"{name}.safetensors", f"{name}-*-of-*.safetensors", f"{name}.safetensors.index.json")
    for name in ("model", "adapter_model")
)


class AiaynTrainer(Seq2SeqTrainer):
    """Seq2SeqTrainer for translation, classification and language models.

    It adds the model's own label-smoothed loss, the learning rate of equation 3, batches limited by
    tokens, an evaluation loss that is a mean over labels, and runs that can be killed at any time
    and resume exactly.

    Args:
        model: The model.
        args: The run's arguments: AiaynTrainingArguments, or those of a classifier or a language
            model, ClassifierTrainingArguments or LanguageModelTrainingArguments.
        data_collator: Makes a batch of examples. None: pads them with the processing_class.
        *others: As for Seq2SeqTrainer.
        target_tokenizer: Tokenizer of the target, if it is not the source's; saved with the model.
        **kwargs: As for Seq2SeqTrainer.

    Raises:
        TypeError: args are of another class.
        ValueError: `args.ema_decay` is given for an adapter, or with FSDP or tensor parallelism; or
            `args.predict_with_generate` for a model without generate(); or DeepSpeed
            would not save the model.
    """

    # The library's, which its own annotations leave out.
    label_smoother: Any
    compute_loss_func: Any
    optimizer: Any
    model: Any

    def __init__(
        self,
        model: PreTrainedModel | nn.Module | None = None,
        args: RunArguments | None = None,
        data_collator: Callable[[list[Any]], dict[str, Any]] | None = None,
        *others: Any,
        target_tokenizer: PreTrainedTokenizerBase | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(args, RunArguments):
            raise TypeError(
                f"args must be AiaynTrainingArguments, or another class of modeling_aiayn, got "
                f"{type(args).__name__}."
            )
        use_one_gpu(args, model)
        super().__init__(model, args, data_collator, *others, **kwargs)
        if args.predict_with_generate and not hasattr(self.model, "generate"):
            raise ValueError(
                f"{type(self.model).__name__} has no generate(). Pass the arguments of its task, "
                "such as ClassifierTrainingArguments, or predict_with_generate=False."
            )
        # The loss is already a mean over all labels of an update. transformers 5.4 lets Accelerate
        # divide it by the number of batches once more; later releases set this to 1 themselves.
        self.accelerator.gradient_accumulation_steps = 1
        support_fsdp2(self.accelerator)
        check_saves_weights(self.accelerator)
        self.target_tokenizer = target_tokenizer
        self._has_target = getattr(self.model.config, "is_encoder_decoder", False)
        self._predicts_tokens = hasattr(self.model, "lm_head")
        self._shifts_labels = self._predicts_tokens and not self._has_target
        self._max_tokens = getattr(self.args, "max_tokens_per_batch", None)
        if data_collator is None and self.processing_class is not None:
            multiple_of = self.args.pad_to_multiple_of
            self.data_collator = padding_collator(self.processing_class, self.model, multiple_of)
        self.label_smoother = None  # the models smooth labels themselves
        self.meter = TokenMeter(self._has_target)
        self.evaluation_loss = LossMeter()
        self.divergence = DivergenceGuard(self)
        self.interruption = InterruptionCallback()
        self.ema = EmaCallback(self.args.ema_decay)
        self.resumption = Resumption(self)
        self._add_callbacks()

    def _add_callbacks(self) -> None:
        if self.pop_callback(ProgressCallback) is not None:
            self.add_callback(ProgressBar())
        self.add_callback(self.interruption)
        if self.args.ema_decay:
            check_can_average(self)
            self.add_callback(self.ema)
        self.add_callback(self.resumption)
        if self.args.early_stopping_patience:
            self.add_callback(EarlyStoppingCallback(self.args.early_stopping_patience))

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train from the beginning or a checkpoint, by default as `args.resume` says.

        resume_from_checkpoint may be a folder, a `Checkpoint`, or True for the newest one in
        output_dir. A run that was complete at its checkpoint is not trained further.

        Raises:
            OSError: output_dir cannot be written, is in use, or is full.
            ValueError: The checkpoint is damaged or of another run, output_dir holds newer ones,
                training diverges, a batch is too large, or parameters are in float16.
            SystemExit: SIGTERM, SIGHUP, SIGUSR1, SIGXCPU or SIGQUIT came; the code is 128 + its
                number, as in 143.
            KeyboardInterrupt: SIGINT came.
        """
        if self.model is None:  # a hyperparameter search frees the model of each trial
            self.model = self.call_model_init(kwargs.get("trial"))
        check_trained_dtype(self.model)
        warn_of_slow_training(self.args)
        if self.args.should_save:
            claim_folder(self.args.output_dir)
        checkpoint = choose_checkpoint(self.args, resume_from_checkpoint)
        self.resumption.start(checkpoint, self._settings())
        self.ema.average = {}  # a run that ended with an error may have left one
        if self.args.ema_decay and checkpoint is not None:
            self.ema.load(checkpoint.folder)
        if self.args.should_save:
            forget_finish(self.args)
        try:
            folder = None if checkpoint is None else str(checkpoint.folder)
            output = super().train(folder, *args, **kwargs)
        finally:
            self.interruption.restore()
        return output._replace(training_loss=output.metrics["train_loss"])

    def _settings(self) -> dict[str, Any]:
        datasets = {"training": self.train_dataset, "validation": self.eval_dataset}
        return run_settings(self.args, self.model, datasets)

    def _hp_search_setup(self, trial: Any) -> None:
        """Apply a trial's values, which its checkpoints note."""
        super()._hp_search_setup(trial)
        if trial is not None:
            self.resumption.settings = self._settings()

    def _load_callback_state(self) -> None:
        """Restore callbacks. One that the checkpoint does not know starts anew."""
        super()._load_callback_state()
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, ExportableState):
                self.state.stateful_callbacks.setdefault(type(callback).__name__, {})

    def set_initial_training_values(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return the library's values, with no epochs to train if the run is complete."""
        epochs, *others = super().set_initial_training_values(*args, **kwargs)
        max_steps = others[-1]
        return (0 if self.resumption.is_complete(max_steps) else epochs, *others)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """This process's batches: of at most max_tokens_per_batch, or as the library makes them.

        Raises:
            ValueError: There is no training data, or no whole batch; or see `cut_batches`.
        """
        if self._max_tokens is None or self.train_dataset is None:
            loader = super().get_train_dataloader()
            check_has_batches(loader)
            return separate_workers(loader)
        collate = self._get_collator_with_removed_columns(self.data_collator, "training")
        multiple_of = getattr(self.data_collator, "pad_to_multiple_of", None)
        device = self.accelerator.device
        loader = token_batch_loader(self.train_dataset, self.args, collate, multiple_of, device)
        return separate_workers(loader)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """The library's batches of all examples; an interruption does not end their workers."""
        return separate_workers(super().get_eval_dataloader(eval_dataset))

    def _get_dataloader(
        self, dataset: Any, *args: Any, is_training: bool = False, **kwargs: Any
    ) -> Any:
        """The library's batches; dataloader_drop_last applies only to training."""
        drops_last = self.args.dataloader_drop_last
        self.args.dataloader_drop_last = drops_last and is_training
        try:
            return super()._get_dataloader(dataset, *args, is_training=is_training, **kwargs)
        finally:
            self.args.dataloader_drop_last = drops_last

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> Sampler[int] | None:
        """Batches of similar length in random order, where that is the strategy."""
        args = self.args
        dataset = self.train_dataset if train_dataset is None else train_dataset
        if args.train_sampling_strategy != "group_by_length" or not hasattr(dataset, "__len__"):
            return super()._get_train_sampler(train_dataset)
        size = args.train_batch_size * args.gradient_accumulation_steps
        lengths = token_lengths(dataset, PAIR if self._has_target else TEXT)
        return LengthGroups(lengths, size, args.order_seed)

    def _get_eval_sampler(self, eval_dataset: Dataset) -> Sampler[int] | None:
        """Keep the order: references, or the texts of predictions, may be a list in this order."""
        return SequentialSampler(eval_dataset) if self.args.world_size == 1 else None

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Optimizer:
        """The optimizer that optim names, muon among them."""
        if self.args.optim == MUON and self.optimizer is None:
            self.optimizer = muon_optimizer(self)
        optimizer: Optimizer = super().create_optimizer(*args, **kwargs)
        return optimizer

    def create_scheduler(
        self, num_training_steps: int, optimizer: Optimizer | None = None
    ) -> LRScheduler:
        """The schedule that lr_scheduler_type names, noam among them.

        Raises:
            ValueError: lr_scheduler_kwargs do not fit the schedule.
        """
        if self.args.lr_scheduler_type == "noam" and self.lr_scheduler is None:
            self.lr_scheduler: LRScheduler | None = noam_schedule(
                optimizer or self.optimizer,
                self.model.config.d_model,
                self.args.get_warmup_steps(num_training_steps),
            )
            self._created_lr_scheduler = True
        try:
            return super().create_scheduler(num_training_steps, optimizer)
        except TypeError as error:  # of the function that makes the schedule
            name = SchedulerType(self.args.lr_scheduler_type).value
            raise ValueError(
                f"lr_scheduler_kwargs={self.args.lr_scheduler_kwargs} do not fit "
                f"lr_scheduler_type={name!r}: {error}."
            ) from error

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Tensor | tuple[Tensor, Any]:
        """The model's own loss, [], in nats per label; label smoothing applies to training only."""
        if not model.training:
            # The library would divide by the number of labels of all processes.
            kwargs["num_items_in_batch"] = None
        else:
            inputs = inputs | {"label_smoothing_factor": self.args.label_smoothing_factor}
            if self._predicts_tokens:
                # A loss function that the user passes reads logits.
                inputs |= {"use_cache": False, "skip_logits": self.compute_loss_func is None}
        if self.args.r_drop and model.training:
            return self._r_drop_loss(model, inputs, *args, **kwargs)
        return super().compute_loss(model, inputs, *args, **kwargs)

    def _r_drop_loss(
        self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Tensor | tuple[Tensor, Any]:
        if self.compute_loss_func is not None:
            raise ValueError("r_drop cannot be used with a compute_loss_func. Leave out one.")
        self.compute_loss_func = partial(
            r_drop_loss,
            weight=self.args.r_drop,
            label_smoothing_factor=self.args.label_smoothing_factor,
        )
        try:
            inputs = repeated(inputs)
            inputs.pop("skip_logits", None)
            if self._shifts_labels:
                inputs["labels"] = shift_left(inputs["labels"])
            return super().compute_loss(model, inputs, *args, **kwargs)
        finally:
            self.compute_loss_func = None

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Tensor:
        """Forward and backward of a batch; returns its loss, [].

        Raises:
            ValueError: The batch does not fit into memory, or training has diverged.
        """
        self.meter.count(inputs)
        with explained_out_of_memory(self.state.global_step + 1, inputs):
            loss = super().training_step(model, inputs, *args, **kwargs)
        self.divergence.add(loss)
        if self.accelerator.sync_gradients:  # the last batch of an update
            self.divergence.check(model)
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the speed to each training loss, and values of the whole run to the summary."""
        if "loss" in logs:
            logs |= self.meter.rates(self.accelerator)
        if "total_flos" in logs:  # the summary
            # The library divides the whole run's loss by the updates of this start.
            logs["train_loss"] = self._total_loss_scalar / max(1, self.state.global_step)
            logs["seconds_of_all_starts"] = round(self.resumption.seconds(), 1)
            if self._max_tokens is not None:
                # The library computes it from a fixed number of sentences in a batch.
                logs.pop("train_samples_per_second", None)
        super().log(logs, start_time)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Score a batch, and translate it if predict_with_generate is set.

        With prediction_loss_only the model computes the loss without a batch's logits.
        """
        if prediction_loss_only and self._predicts_tokens and self.compute_loss_func is None:
            inputs = inputs | {"skip_logits": True}
        if inputs.get("labels") is not None:
            labels = inputs["labels"]
            # In other losses, of several labels and of numbers, -100 would be an ordinary number.
            is_class = labels.dim() == 1 and getattr(self.model.config, "num_labels", 2) > 1
            if self._predicts_tokens or is_class:
                inputs = inputs | {"labels": mask_repeats(labels, self.accelerator)}
        else:  # DataCollatorForSeq2Seq writes labels=None, which the library takes for labels
            inputs = {name: each for name, each in inputs.items() if name != "labels"}
        with kept_generation_config(self.model):
            loss, predictions, labels = super().prediction_step(
                model, inputs, prediction_loss_only, *args, **kwargs
            )
        if loss is not None and "labels" in inputs:
            targets = inputs["labels"]
            self.evaluation_loss.add(loss, shift_left(targets) if self._shifts_labels else targets)
        return loss, predictions, labels

    def evaluation_loop(
        self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any
    ) -> EvalLoopOutput:
        """Evaluate the averaged weights, if there are any; the loss is a mean over labels."""
        # The default of transformers keeps the repeated rows that fill the last batches.
        self.gather_function = self.accelerator.gather_for_metrics
        self.evaluation_loss.reset()
        with self.ema.averaged_weights(self.model):
            output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        loss = self.evaluation_loss.mean(self.accelerator)
        if loss is not None:
            output.metrics[f"{metric_key_prefix}_loss"] = loss
            if self._predicts_tokens:
                output.metrics[f"{metric_key_prefix}_perplexity"] = float(np.exp(loss))
        return output

    def _evaluate(
        self, *args: Any, skip_scheduler: bool = False, **kwargs: Any
    ) -> dict[str, float]:
        """Evaluate during training; without scores if a signal stops it.

        A resumed run does not repeat the evaluation of eval_on_start: it would count for patience.
        """
        if skip_scheduler and self.resumption.is_resumed:
            return {}
        started = time.perf_counter()
        try:
            with self.interruption.stoppable_evaluation():
                return super()._evaluate(*args, skip_scheduler=skip_scheduler, **kwargs)
            return {}
        finally:
            self.meter.pause(time.perf_counter() - started)

    def _determine_best_metric(self, metrics: dict[str, float], *args: Any, **kwargs: Any) -> bool:
        """Compare scores with the best so far; a run that is stopping saves without scores."""
        if not metrics and self.interruption.is_stopping:
            return True
        return super()._determine_best_metric(metrics, *args, **kwargs)

    def _get_output_dir(self, trial: Any) -> str:
        """The folder into which the library writes checkpoints, and where it deletes old ones."""
        return str(Path(super()._get_output_dir(trial)) / UNFINISHED_FOLDER)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        started = time.perf_counter()
        unfinished = Path(self._get_output_dir(trial))
        name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        output_dir = unfinished.parent
        is_writer = self.args.should_save
        settings = self.resumption.settings
        with new_checkpoint(output_dir, name, settings) if is_writer else nullcontext():
            self.accelerator.wait_for_everyone()  # until the folder exists
            super()._save_checkpoint(model, trial)
            if self.args.ema_decay:
                with self.ema.averaged_weights(self.model):
                    self.save_model(str(unfinished / name / EMA_FOLDER), _internal_call=True)
            self.resumption.save(unfinished / name)
            note_best_checkpoint(self.state, output_dir, name)
            if is_writer:
                self.state.save_to_json(str(unfinished / name / TRAINER_STATE_NAME))
            self.accelerator.wait_for_everyone()  # until all have written their files
        if is_writer:
            kept = {Path(self.state.best_model_checkpoint or "").name}
            delete_old_checkpoints(output_dir, self.args.save_total_limit, name, kept)
        self.accelerator.wait_for_everyone()
        self.meter.pause(time.perf_counter() - started)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model and its tokenizers, all of them or, if that fails, none."""
        folder = Path(output_dir or self.args.output_dir)
        # A checkpoint's folder is unfinished as a whole; only one process replaces files.
        is_whole = _internal_call or not self.args.should_save
        try:
            with nullcontext(folder) if is_whole else replaced_files(folder, WEIGHTS) as target:
                self._write_model(target)
                if not is_whole and (folder / "README.md").exists():
                    # PEFT writes a card of its own.
                    (target / "README.md").unlink(missing_ok=True)
        except OSError:
            raise
        except Exception as error:  # each library reports a full disk by a type of its own
            raise OSError(f"Could not save the model in {folder}: {error}.") from error

    def _save(
        self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None
    ) -> None:
        """Save weights, a tied matrix once: FSDP2 collects a copy of it for each of its names."""
        if state_dict:
            source_of = getattr(self.model, "all_tied_weights_keys", {})
            state_dict = {
                name: each
                for name, each in state_dict.items()
                if source_of.get(name) not in state_dict
            }
        super()._save(output_dir, state_dict)

    def _write_model(self, folder: Path) -> None:
        super().save_model(str(folder), _internal_call=True)
        if self.target_tokenizer is not None and self.args.should_save:
            self.target_tokenizer.save_pretrained(folder / TARGET_TOKENIZER_FOLDER)

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """Train an epoch, after an evaluation that a signal postponed, which may end the run."""
        self.resumption.evaluate_if_due()
        if not self.control.should_training_stop:
            super()._run_epoch(*args, **kwargs)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Tied weights are saved under one name: their other names are not missing."""
        tied = self.model.all_tied_weights_keys
        missing = [name for name in load_result.missing_keys if name not in tied]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))
