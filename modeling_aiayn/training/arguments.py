"""What a training run is told: section 5's numbers as defaults, the library's names."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from transformers import SchedulerType, Seq2SeqTrainingArguments

# What says how translations are made or batched, and nothing to other models.
TRANSLATION_FLAGS = (
    *("max_tokens_per_batch", "streaming_pool_size", "predict_with_generate"),
    *("generation_num_beams", "generation_max_length", "generation_config"),
)
# With noam the learning rate is a factor on equation 3, and the paper has none.
NOAM_FACTOR = 1.0


@dataclass
class AiaynTrainingArguments(Seq2SeqTrainingArguments):
    """Seq2SeqTrainingArguments with the paper's optimiser, schedule and smoothing as defaults.

    Raises:
        ValueError: There is no such schedule, it needs a learning rate of its own, a batch's size
            is given in two ways, the run is to push to the Hub, or each of several processes takes
            itself for the only one.

    Departs from the paper: without max_tokens_per_batch, batches hold a fixed number of sentences.
    """

    max_tokens_per_batch: int | None = field(
        default=None,
        metadata={
            "help": "Tokens in a batch at most, source plus target, padding counted (section 5.1); "
            "in the place of per_device_train_batch_size."
        },
    )
    streaming_pool_size: int = field(
        default=100_000,
        metadata={"help": "Pairs of a streaming dataset that are shuffled and batched together."},
    )
    pad_to_multiple_of: int | None = field(
        default=None, metadata={"help": "Pad sentences to a multiple of so many tokens."}
    )

    lr_scheduler_type: str = field(
        default="noam",
        metadata={"help": "noam (equation 3) or one of the library's schedules."},
    )
    learning_rate: float = field(
        default=NOAM_FACTOR,
        metadata={"help": "With noam a factor on equation 3, else the peak learning rate."},
    )
    warmup_steps: float = field(
        default=4000, metadata={"help": "Updates over which the learning rate rises."}
    )
    adam_beta2: float = field(default=0.98, metadata={"help": "Adam's beta2 (section 5.3)."})
    adam_epsilon: float = field(default=1e-9, metadata={"help": "Adam's epsilon (section 5.3)."})
    max_grad_norm: float = field(
        default=0.0, metadata={"help": "Norm that gradients are clipped to; 0, the paper's: none."}
    )
    label_smoothing_factor: float = field(
        default=0.1, metadata={"help": "Label smoothing (section 5.4); padding has no part in it."}
    )
    train_sampling_strategy: str = field(
        default="group_by_length",
        metadata={"help": "group_by_length puts sentences of like length into a batch."},
    )
    predict_with_generate: bool = field(
        default=True, metadata={"help": "Translate during evaluation, for BLEU."}
    )
    generation_num_beams: int | None = field(
        default=1, metadata={"help": "Beams during evaluation; 1 is greedy and the fastest."}
    )
    dataloader_pin_memory: bool = field(
        default_factory=torch.accelerator.is_available,
        metadata={"help": "Keep batches where a GPU reads them fastest; default: if there is one."},
    )
    ddp_find_unused_parameters: bool | None = field(
        default=False,
        metadata={"help": "Look for parameters without a gradient at each update; ours all have."},
    )
    early_stopping_patience: int = field(
        default=0, metadata={"help": "Evaluations without a better score before stopping; 0: none."}
    )
    resume: str | None = field(
        default=None,
        metadata={"help": "'auto' for the newest checkpoint in output_dir, or a checkpoint."},
    )

    ema_decay: float = field(
        default=0.0,
        metadata={
            "help": "Average the weights after each update, of which this share stays; the average "
            "is what is evaluated and saved. 0: none; 0.999 is usual."
        },
    )
    restore_callback_states_from_checkpoint: bool = field(
        default=True, metadata={"help": "Go on counting evaluations without a better score."}
    )
    use_cache: bool = field(
        default=True,
        metadata={"help": "Written to the model's configuration; training goes without a cache."},
    )
    logging_nan_inf_filter: bool = field(
        default=False, metadata={"help": "Log a loss that is not finite as the one before it."}
    )

    def __post_init__(self) -> None:
        if self.push_to_hub or self.hub_token is not None:
            raise ValueError(
                "push_to_hub and hub_token have no place in training: the library would upload the "
                "whole output folder, training_args.bin and the token in it too. Train, then run "
                "scripts/push_to_hub.py."
            )
        if self.resume_from_checkpoint is not None:
            raise ValueError(
                "resume_from_checkpoint is the library's name for what its scripts go on from: "
                f"give resume={self.resume_from_checkpoint!r}."
            )
        if self.auto_find_batch_size:
            raise ValueError(
                "auto_find_batch_size would train on other batches than the run says, and resumes: "
                "give a size that fits. A batch that does not is named."
            )
        self._refuse_sizes()
        self._refuse_patience()
        schedules = ["noam", *(schedule.value for schedule in SchedulerType)]
        if self.lr_scheduler_type not in schedules:
            raise ValueError(
                f"lr_scheduler_type must be one of {', '.join(schedules)}, "
                f"got {self.lr_scheduler_type!r}."
            )
        is_noam = self.lr_scheduler_type == "noam"
        if is_noam and self.lr_scheduler_kwargs:
            raise ValueError(f"noam has no lr_scheduler_kwargs, got {self.lr_scheduler_kwargs!r}.")
        if not is_noam and self.learning_rate == NOAM_FACTOR:
            raise ValueError(
                f"lr_scheduler_type={self.lr_scheduler_type!r} needs a learning_rate; the default "
                f"{NOAM_FACTOR} is noam's factor."
            )
        # The library knows no noam, and refuses names that it does not know.
        self.lr_scheduler_type = "constant" if is_noam else self.lr_scheduler_type
        super().__post_init__()
        self.lr_scheduler_type = "noam" if is_noam else self.lr_scheduler_type
        self._refuse_lone_processes()

    @property
    def order_seed(self) -> int:
        """Seed of the order of training examples."""
        return self.seed if self.data_seed is None else self.data_seed

    def _refuse_lone_processes(self) -> None:
        launched = int(os.environ.get("WORLD_SIZE", 1))
        if launched > 1 and self.world_size == 1:
            raise ValueError(
                f"{launched} processes were launched, and each would train alone: accelerate found "
                "no accelerator to join them by. On CPUs, give --use_cpu true."
            )

    def _refuse_patience(self) -> None:
        if self.early_stopping_patience < 0:
            raise ValueError(
                f"early_stopping_patience must be at least 0, got {self.early_stopping_patience}."
            )
        if self.early_stopping_patience and not (
            self.load_best_model_at_end or self.metric_for_best_model
        ):
            raise ValueError(
                "early_stopping_patience needs load_best_model_at_end or metric_for_best_model: it "
                "counts evaluations without a better score."
            )
        if self.early_stopping_patience and self.eval_strategy == "no":
            raise ValueError("early_stopping_patience needs an eval_strategy, got 'no'.")

    def _refuse_sizes(self) -> None:
        for name in ("max_tokens_per_batch", "pad_to_multiple_of", "streaming_pool_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}.")
        if not 0 <= self.label_smoothing_factor <= 1:
            raise ValueError(
                f"label_smoothing_factor must be in [0, 1], got {self.label_smoothing_factor}."
            )
        if not 0 <= self.ema_decay < 1:
            raise ValueError(f"ema_decay must be in [0, 1), got {self.ema_decay}.")
        sentences = self.per_device_train_batch_size
        default = type(self).per_device_train_batch_size
        if self.max_tokens_per_batch is not None and sentences != default:
            raise ValueError(
                "A batch's size is given by max_tokens_per_batch or by "
                f"per_device_train_batch_size, got {self.max_tokens_per_batch} and {sentences}."
            )


def refuse_flags(arguments: AiaynTrainingArguments, names: Iterable[str], what: str) -> None:
    """Refuse flags that would be taken and do nothing.

    Args:
        arguments: A run's arguments.
        names: Flags that say nothing to this kind of run.
        what: What the run trains.

    Raises:
        ValueError: One has another value than its default.
    """
    for name in names:
        if getattr(arguments, name) != type(arguments).__dataclass_fields__[name].default:
            raise ValueError(f"{name} is not for {what}, got {getattr(arguments, name)!r}.")


@dataclass
class DataArguments:
    """Where sentence pairs come from; without a file or a name, from the embedded grammar."""

    source_lang: str = field(default="en", metadata={"help": "Language to translate from."})
    target_lang: str = field(default="de", metadata={"help": "Language to translate to."})
    train_file: list[str] | None = field(
        default=None,
        metadata={
            "help": "A .tsv or .jsonl file, or what two line-aligned files have in common: "
            "data/train for data/train.en and data/train.de; each plain or .gz. Several: all."
        },
    )
    validation_file: list[str] | None = field(
        default=None, metadata={"help": "The same, to evaluate on while training."}
    )
    test_file: list[str] | None = field(
        default=None, metadata={"help": "The same, to score at the end."}
    )
    columns: str | None = field(
        default=None,
        metadata={"help": "Languages of a .tsv file's columns: en,de. Default: source,target."},
    )
    dataset_name: str | None = field(
        default=None, metadata={"help": "A dataset on the Hub, in the place of files."}
    )
    dataset_config: str | None = field(
        default=None, metadata={"help": "Which of the dataset's configurations."}
    )
    embedded_train_size: int = field(
        default=20_000, metadata={"help": "Pairs that the embedded grammar writes to train on."}
    )
    max_length: int = field(
        default=256,
        metadata={"help": "Pairs with a side of more tokens are left out, and counted in the log."},
    )


@dataclass
class ModelArguments:
    """Which model to train: a preset, single fields of AiaynConfig, and a vocabulary."""

    preset: str = field(default="base", metadata={"help": "tiny, base or big."})
    config_overrides: str | None = field(
        default=None,
        metadata={"help": "Fields of AiaynConfig, as YAML: '{d_model: 256, dropout: 0.2}'."},
    )
    vocabulary: str = field(
        default="bpe",
        metadata={
            "help": "bpe: one byte-pair vocabulary for both languages (section 5.1). word: "
            "lower-cased words, a vocabulary for each language (the seed documents)."
        },
    )
    vocab_size: int = field(default=10_000, metadata={"help": "Entries of the bpe vocabulary."})
    lowercase: bool = field(
        default=False,
        metadata={
            "help": "Give up case in the bpe vocabulary, as the word vocabulary does; the score to "
            "look at is bleu_lowercase then."
        },
    )
    length_penalty: float = field(
        default=1.0,
        metadata={"help": "Beam search divides by length to this power, in the saved model too."},
    )
    min_frequency: int = field(
        default=2, metadata={"help": "How often a word must occur for the word vocabulary."}
    )
