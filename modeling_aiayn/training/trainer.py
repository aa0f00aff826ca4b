"""Section 5 in transformers' training loop: one trainer for all models of this package."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, IterableDataset
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Sampler
from transformers import (
    EarlyStoppingCallback,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProgressCallback,
    Seq2SeqTrainer,
)
from transformers.trainer_utils import EvalLoopOutput, TrainOutput

from ..saved.whole_files import UNFINISHED_FOLDER, replaced_files
from ..tokenization import TARGET_TOKENIZER_FOLDER
from .arguments import MUON, RunArguments
from .batches import PAIR, TEXT, LengthGroups, token_lengths
from .ema import EMA_FOLDER, EmaCallback, check_can_average
from .evaluation import LossMeter, kept_generation_config, mask_repeats
from .failures import DivergenceGuard, explained_out_of_memory
from .loaders import check_has_batches, padding_collator, separate_workers, token_batch_loader
from .optimization import check_trained_dtype, muon_optimizer, noam_schedule, warn_of_slow_training
from .parallel import check_saves_weights, support_fsdp2, use_one_gpu
from .progress import ProgressBar, TokenMeter
from .r_drop import r_drop_loss, repeated
from .resume.state import RunState
from .streams import StreamPositions

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
        args: The run's arguments: AiaynTrainingArguments, ClassifierTrainingArguments or
            LanguageModelTrainingArguments.
        data_collator: Makes a batch of examples. None: pads them with the processing_class.
        *others: As in Seq2SeqTrainer.
        target_tokenizer: Tokenizer of the target, if it is not the source's; saved with the model.
        **kwargs: As in Seq2SeqTrainer.

    Raises:
        TypeError: args are of another class.
        ValueError: `args.ema_decay` is given for an adapter, or with FSDP or tensor parallelism; or
            `args.predict_with_generate` for a model without generate(); or DeepSpeed
            would not save the model.
    """

    # Attributes of transformers' Trainer that it does not annotate.
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
        if args.r_drop and self.compute_loss_func is not None:
            raise ValueError("r_drop cannot be used with a compute_loss_func. Leave out one.")
        # The loss is already a mean over all labels of an update. In transformers 5.4, accelerate
        # would divide it again, by the number of batches; later releases set this to 1 themselves.
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
        self.evaluation_loss = LossMeter(shifts_labels=self._shifts_labels)
        self.divergence = DivergenceGuard(self)
        self.ema = EmaCallback(self.args.ema_decay)
        self.stream = StreamPositions()
        parts: dict[str, Any] = {"speed": self.meter}
        if isinstance(self.train_dataset, IterableDataset) and self._max_tokens is not None:
            parts["stream"] = self.stream
            self.args.ignore_data_skip = True  # the stream itself continues where it was
        self.run_state = RunState(self, **parts)
        self._add_callbacks()

    def _add_callbacks(self) -> None:
        if self.pop_callback(ProgressCallback) is not None:
            self.add_callback(ProgressBar())
        self.add_callback(self.run_state.interruption)
        if self.args.ema_decay:
            check_can_average(self)
            self.add_callback(self.ema)
        self.add_callback(self.run_state)
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
                number, such as 143.
            KeyboardInterrupt: SIGINT came.
        """
        if self.model is None:  # a hyperparameter search frees the model of each trial
            self.model = self.call_model_init(kwargs.get("trial"))
        check_trained_dtype(self.model)
        warn_of_slow_training(self.args)
        checkpoint = self.run_state.begin(resume_from_checkpoint)
        self.ema.begin(checkpoint)
        folder = None if checkpoint is None else str(checkpoint)
        try:
            with _tied_weights_once(self.model):
                output = super().train(folder, *args, **kwargs)
        finally:
            self.run_state.interruption.restore()
        return output._replace(training_loss=output.metrics["train_loss"])

    def set_initial_training_values(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return transformers' values, but 0 epochs to train if the run is complete."""
        epochs, *others = super().set_initial_training_values(*args, **kwargs)
        max_steps = others[-1]
        return (0 if self.run_state.is_complete(max_steps) else epochs, *others)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """This process's batches: of at most max_tokens_per_batch, or those of transformers."""
        if self._max_tokens is None or self.train_dataset is None:
            loader = super().get_train_dataloader()
            check_has_batches(loader)
            return loader
        collate = self._get_collator_with_removed_columns(self.data_collator, "training")
        multiple_of = getattr(self.data_collator, "pad_to_multiple_of", None)
        device = self.accelerator.device
        options = (self._max_tokens, collate, multiple_of, device, self.stream)
        return separate_workers(token_batch_loader(self.train_dataset, self.args, *options))

    def _get_dataloader(self, *args: Any, **kwargs: Any) -> DataLoader[Any]:
        """Transformers' loader, whose workers survive an interruption."""
        options = self.args
        kept = options.dataloader_drop_last, options.train_sampling_strategy
        if not kwargs.get("is_training"):  # all examples, in the order of their references
            options.dataloader_drop_last, options.train_sampling_strategy = False, "sequential"
        try:
            return separate_workers(super()._get_dataloader(*args, **kwargs))
        finally:
            options.dataloader_drop_last, options.train_sampling_strategy = kept

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> Sampler[int] | None:
        args = self.args
        dataset = self.train_dataset if train_dataset is None else train_dataset
        if args.train_sampling_strategy != "group_by_length" or not hasattr(dataset, "__len__"):
            return super()._get_train_sampler(train_dataset)
        size = args.train_batch_size * args.gradient_accumulation_steps
        lengths = token_lengths(dataset, PAIR if self._has_target else TEXT)
        return LengthGroups(lengths, size, args.order_seed)

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Optimizer:
        """Create the optimizer that optim names, including muon."""
        if self.args.optim == MUON and self.optimizer is None:
            self.optimizer = muon_optimizer(self)
        optimizer: Optimizer = super().create_optimizer(*args, **kwargs)
        return optimizer

    def create_scheduler(
        self, num_training_steps: int, optimizer: Optimizer | None = None
    ) -> LRScheduler:
        """Create the schedule that lr_scheduler_type names, including noam."""
        if self.args.lr_scheduler_type == "noam" and self.lr_scheduler is None:
            self.lr_scheduler: LRScheduler | None = noam_schedule(
                optimizer or self.optimizer,
                self.model.config.d_model,
                self.args.get_warmup_steps(num_training_steps),
            )
            self._created_lr_scheduler = True
        return super().create_scheduler(num_training_steps, optimizer)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Tensor | tuple[Tensor, Any]:
        """The model's own loss, [], in nats per label; label smoothing applies to training only."""
        if not model.training:
            # transformers would divide by the number of labels of all processes.
            kwargs["num_items_in_batch"] = None
            return super().compute_loss(model, inputs, *args, **kwargs)
        smoothing = {"label_smoothing_factor": self.args.label_smoothing_factor}
        options: dict[str, Any] = {**smoothing}
        if self._predicts_tokens:
            has_function = self.compute_loss_func is not None or self.args.r_drop > 0
            options |= {"use_cache": False, "skip_logits": not has_function}  # it reads logits
        if not self.args.r_drop:
            return super().compute_loss(partial(model, **options), inputs, *args, **kwargs)
        self.compute_loss_func = partial(r_drop_loss, weight=self.args.r_drop, **smoothing)
        try:
            inputs = repeated(inputs, shifts_labels=self._shifts_labels)
            return super().compute_loss(partial(model, **options), inputs, *args, **kwargs)
        finally:
            self.compute_loss_func = None

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Tensor:
        """Forward and backward of a batch; returns its loss, []."""
        self.stream.note(inputs)
        self.meter.count(inputs)
        with explained_out_of_memory(self.state.global_step + 1, inputs):
            loss = super().training_step(model, inputs, *args, **kwargs)
        self.divergence.add(loss)
        return loss

    def _get_grad_norm(self, *args: Any, **kwargs: Any) -> Any:
        """The norm of an update's gradients, before clipping; a bad one stops the run."""
        norm = super()._get_grad_norm(*args, **kwargs)
        self.divergence.check(norm)
        return norm

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the speed to each training loss, and values of the whole run to the summary."""
        if "loss" in logs:
            logs |= self.meter.rates(self.accelerator)
        if "total_flos" in logs:  # the summary
            # transformers divides the whole run's loss by the number of updates since this start.
            logs["train_loss"] = self._total_loss_scalar / max(1, self.state.global_step)
            logs["seconds_of_all_starts"] = round(self.run_state.clock.seconds(), 1)
            if self._max_tokens is not None:
                # transformers computes it from a fixed number of sentences in a batch.
                logs.pop("train_samples_per_second", None)
        super().log(logs, start_time)

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, **kwargs: Any
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Score a batch, and translate it if predict_with_generate is set.

        With prediction_loss_only, the model computes the loss without the whole batch's logits.
        """
        if prediction_loss_only and self._predicts_tokens and self.compute_loss_func is None:
            inputs = inputs | {"skip_logits": True}
        if inputs.get("labels") is not None:
            labels = inputs["labels"]
            # Losses of several labels, or of numbers, would treat -100 as an ordinary number.
            is_class = labels.dim() == 1 and getattr(self.model.config, "num_labels", 2) > 1
            if self._predicts_tokens or is_class:
                inputs = inputs | {"labels": mask_repeats(labels, self.accelerator)}
        else:  # DataCollatorForSeq2Seq writes labels=None, which transformers treats as labels
            inputs = {name: value for name, value in inputs.items() if name != "labels"}
        with kept_generation_config(self.model):
            loss, predictions, labels = super().prediction_step(
                model, inputs, prediction_loss_only, **kwargs
            )
        if loss is not None and "labels" in inputs:
            self.evaluation_loss.add(loss, inputs["labels"])
        return loss, predictions, labels

    def evaluation_loop(
        self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any
    ) -> EvalLoopOutput:
        """Evaluate the averaged weights, if there are any; the loss is a mean over labels."""
        # The default of transformers keeps the repeated rows that fill the last batches.
        self.gather_function = self.accelerator.gather_for_metrics
        self.evaluation_loss = LossMeter(shifts_labels=self._shifts_labels)
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
        """Evaluate during training. If a signal stops it, save, and end the process.

        A resumed run does not repeat eval_on_start's evaluation, which early stopping would count.
        """
        if skip_scheduler and self.run_state.is_resumed:
            return {}
        started = time.perf_counter()
        try:
            with self.run_state.stoppable_evaluation():
                return super()._evaluate(*args, skip_scheduler=skip_scheduler, **kwargs)
        finally:
            self.meter.pause(time.perf_counter() - started)

    def _get_output_dir(self, trial: Any) -> str:
        return str(Path(super()._get_output_dir(trial)) / UNFINISHED_FOLDER)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        started = time.perf_counter()
        with self.run_state.new_checkpoint(Path(self._get_output_dir(trial)).parent) as folder:
            super()._save_checkpoint(model, trial)
            if self.args.ema_decay:
                with self.ema.averaged_weights(self.model):
                    self.save_model(str(folder / EMA_FOLDER), _internal_call=True)
        self.meter.pause(time.perf_counter() - started)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model and its tokenizers; an error while they are written changes nothing."""
        folder = Path(output_dir or self.args.output_dir)
        # A checkpoint's folder gets its name only at the end; only one process replaces files.
        is_whole = _internal_call or not self.args.should_save
        target = nullcontext(folder) if is_whole else replaced_files(folder, WEIGHTS)
        with _tied_weights_once(self.model), target as target_folder:
            super().save_model(str(target_folder), _internal_call=True)
            if self.target_tokenizer is not None and self.args.should_save:
                self.target_tokenizer.save_pretrained(target_folder / TARGET_TOKENIZER_FOLDER)
            if target_folder != folder and (folder / "README.md").exists():
                # Keep the run's card: PEFT writes its own.
                (target_folder / "README.md").unlink(missing_ok=True)

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """Train an epoch, unless a postponed evaluation has ended the run."""
        if not self.control.should_training_stop:
            super()._run_epoch(*args, **kwargs)


@contextmanager
def _tied_weights_once(model: Any) -> Iterator[None]:
    """Make transformers save tied weights under one name, and load them without warnings.

    FSDP2 collects a copy of a tied matrix for each of its names.
    """
    kept = model._keys_to_ignore_on_save
    model._keys_to_ignore_on_save = [*model.all_tied_weights_keys]
    try:
        yield
    finally:
        model._keys_to_ignore_on_save = kept
