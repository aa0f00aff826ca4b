"""Section 5 on the library's engine: a Seq2SeqTrainer whose loss and schedule are the paper's."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.data_loader import DataLoaderShard
from datasets import Dataset
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Sampler, SequentialSampler
from transformers import (
    DataCollatorForSeq2Seq,
    EvalPrediction,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProgressCallback,
)
from transformers.trainer_utils import EvalLoopOutput

from ..losses import IGNORED_LABEL
from ..metrics import TranslationScores
from ..tokenization import TARGET_TOKENIZER_FOLDER, decode_lines
from .arguments import AiaynTrainingArguments
from .batches import TokenBatches, padded_lengths, pair_lengths
from .interruption import leave_group
from .progress import ProgressBar
from .resumable import ResumableTrainer
from .schedule import noam_schedule


class AiaynTrainer(ResumableTrainer):
    """Seq2SeqTrainer with the model's own smoothed loss, equation 3, and token-weighted evaluation.

    It batches by tokens, and can be killed and go on (`ResumableTrainer`).

    Args:
        model: The model.
        args: The run's arguments.
        data_collator: From pairs to a batch. None: DataCollatorForSeq2Seq, where the model has both
            halves and there is a processing_class.
        *others: As for Seq2SeqTrainer.
        target_tokenizer: Tokenizer of the target where it is not the source's; saved beside it.
        **kwargs: As for Seq2SeqTrainer.
    """

    args: AiaynTrainingArguments

    def __init__(
        self,
        model: PreTrainedModel | nn.Module | None = None,
        args: AiaynTrainingArguments | None = None,
        data_collator: Callable[[list[Any]], dict[str, Any]] | None = None,
        *others: Any,
        target_tokenizer: PreTrainedTokenizerBase | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, args, data_collator, *others, **kwargs)
        is_translation = getattr(self.model.config, "is_encoder_decoder", False)
        if data_collator is None and self.processing_class is not None and is_translation:
            self.data_collator = DataCollatorForSeq2Seq(
                self.processing_class,
                model=self.model,
                pad_to_multiple_of=self.args.pad_to_multiple_of,
            )
        if self.pop_callback(ProgressCallback) is not None:
            self.add_callback(ProgressBar())
        self.target_tokenizer = target_tokenizer
        # The model smooths labels itself; the library's smoother would take them away from it.
        self.label_smoother = None
        self._evaluation_sums = torch.zeros(2, dtype=torch.float64)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """This process's batches: of at most max_tokens_per_batch, or as the library makes them.

        Returns:
            The batches.

        Raises:
            ValueError: There is no training data, or see `cut_batches`.
        """
        args, dataset = self.args, self.train_dataset
        max_tokens = getattr(args, "max_tokens_per_batch", None)
        if max_tokens is None or dataset is None:
            return super().get_train_dataloader()
        place = (args.order_seed, args.process_index, args.world_size)
        collate = self._get_collator_with_removed_columns(self.data_collator, "training")
        multiple_of = getattr(self.data_collator, "pad_to_multiple_of", None)
        if not hasattr(dataset, "__len__"):
            raise ValueError(
                "max_tokens_per_batch needs a dataset with a length, got "
                f"{type(dataset).__name__}. Use per_device_train_batch_size for a stream."
            )
        lengths = padded_lengths(pair_lengths(dataset), multiple_of)
        # The batches are this process's already; accelerate would deal them out once more.
        return DataLoaderShard(
            dataset,
            batch_sampler=TokenBatches(lengths, max_tokens, *place),
            collate_fn=collate,
            device=self.accelerator.device,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
            worker_init_fn=leave_group,
        )

    def create_scheduler(
        self, num_training_steps: int, optimizer: Optimizer | None = None
    ) -> LRScheduler:
        """The schedule that lr_scheduler_type names, noam among them.

        Args:
            num_training_steps: Updates of the whole run.
            optimizer: The optimiser, if it is not the trainer's own.

        Returns:
            The schedule.
        """
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
        """The model's own loss, smoothed in training and plain in evaluation.

        Args:
            model: The model, or what wraps it.
            inputs: A batch.
            *args: As for Seq2SeqTrainer.
            **kwargs: As for Seq2SeqTrainer.

        Returns:
            The loss in nats per target token; the outputs too where they are asked for.
        """
        if model.training:
            options = {
                "label_smoothing_factor": self.args.label_smoothing_factor,
                "use_cache": False,
            }
            inputs = inputs | options
        else:
            # Else the library divides by the tokens of all processes' batches.
            kwargs["num_items_in_batch"] = None
        return super().compute_loss(model, inputs, *args, **kwargs)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Score and translate a batch, and count its target tokens.

        Args:
            model: The model, or what wraps it.
            inputs: A batch.
            prediction_loss_only: Whether the loss is all that is asked for: then it is computed
                without a batch's logits, as in training.
            *args: As for Seq2SeqTrainer.
            **kwargs: As for Seq2SeqTrainer.

        Returns:
            Loss, generated ids, labels.
        """
        if prediction_loss_only and self.compute_loss_func is None:
            inputs = inputs | {"skip_logits": True}
        if self.args.world_size > 1 and "labels" in inputs:
            inputs = inputs | {"labels": self._without_repeats(inputs["labels"])}
        generation_config = self.model.generation_config
        # The library writes its own defaults, a limit of 20 tokens among them, into this one.
        self.model.generation_config = copy.deepcopy(generation_config)
        try:
            loss, generated, labels = super().prediction_step(
                model, inputs, prediction_loss_only, *args, **kwargs
            )
        finally:
            self.model.generation_config = generation_config
        if loss is not None:
            tokens = (inputs["labels"] != IGNORED_LABEL).sum().double().cpu()
            self._evaluation_sums += torch.stack((loss.double().cpu() * tokens, tokens))
        return loss, generated, labels

    def _without_repeats(self, labels: Tensor) -> Tensor:
        """Labels, [B, T], without those of the rows that fill up the processes' last batches."""
        state = self.accelerator.gradient_state
        if not state.end_of_dataloader or state.remainder <= 0:
            return labels
        own_rows = max(0, state.remainder - self.args.process_index * len(labels))
        is_repeat = torch.arange(len(labels), device=labels.device) >= own_rows
        return labels.masked_fill(is_repeat[:, None], IGNORED_LABEL)

    def evaluation_loop(
        self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any
    ) -> EvalLoopOutput:
        """Evaluate; the loss is a mean over target tokens, whatever the batches.

        Args:
            *args: As for Seq2SeqTrainer.
            metric_key_prefix: Put before the metrics' names.
            **kwargs: As for Seq2SeqTrainer.

        Returns:
            Predictions and metrics, perplexity per target token among them.
        """
        self._evaluation_sums.zero_()
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        sums = self._evaluation_sums
        if self.args.world_size > 1:
            sums = self.accelerator.reduce(sums.to(self.args.device))
        if sums[1] > 0:
            loss = (sums[0] / sums[1]).item()
            output.metrics[f"{metric_key_prefix}_loss"] = loss
            output.metrics[f"{metric_key_prefix}_perplexity"] = float(np.exp(loss))
        return output

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> Sampler[int] | None:
        """Batches of like length in random order, where that is the strategy."""
        dataset = self.train_dataset if train_dataset is None else train_dataset
        if self.args.train_sampling_strategy != "group_by_length":
            return super()._get_train_sampler(train_dataset)
        return self.length_groups(pair_lengths(dataset).max(1).tolist())

    def _get_eval_sampler(self, eval_dataset: Dataset) -> Sampler[int] | None:
        """In order, so that references can be kept beside the predictions."""
        if self.args.world_size > 1:
            return None
        return SequentialSampler(eval_dataset)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Tied weights are saved once, under one name: the other names are not missing."""
        tied = self.model.all_tied_weights_keys
        missing = [name for name in load_result.missing_keys if name not in tied]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))

    def _save(
        self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None
    ) -> None:
        super()._save(output_dir, state_dict)
        if self.target_tokenizer is not None:
            folder = Path(output_dir or self.args.output_dir) / TARGET_TOKENIZER_FOLDER
            self.target_tokenizer.save_pretrained(folder)


def translation_metrics(
    tokenizer: PreTrainedTokenizerBase, references: list[str]
) -> Callable[[EvalPrediction], dict[str, float]]:
    """What AiaynTrainer takes as compute_metrics: BLEU and chrF against the text itself.

    Args:
        tokenizer: Tokenizer of the target.
        references: Translations, in the order of the evaluation data.

    Returns:
        A function from generated ids to scores.
    """
    scores = TranslationScores()

    def compute(prediction: EvalPrediction) -> dict[str, float]:
        ids = prediction.predictions
        ids = np.where(ids == IGNORED_LABEL, tokenizer.pad_token_id, ids)
        texts = decode_lines(tokenizer, ids.tolist())
        result = scores.compute(predictions=texts, references=references)
        return {name: value for name, value in result.items() if isinstance(value, float)}

    return compute
