"""What the training of a classifier is told."""

from dataclasses import dataclass, field

from ..loading import check_directory
from ..training.arguments import TRANSLATION_FLAGS, AiaynTrainingArguments, refuse_flags


@dataclass
class ClassifierTrainingArguments(AiaynTrainingArguments):
    """The arguments of a run, with defaults that suit a classifier.

    Raises:
        ValueError: What is asked for is for translation alone.
    """

    lr_scheduler_type: str = field(
        default="linear", metadata={"help": "One of the library's schedules."}
    )
    learning_rate: float = field(default=5e-4, metadata={"help": "The peak learning rate."})
    warmup_steps: float = field(
        default=0.1, metadata={"help": "Updates over which the rate rises; below 1, a share."}
    )
    max_grad_norm: float = field(
        default=1.0, metadata={"help": "Norm that gradients are clipped to; 0: none."}
    )
    per_device_train_batch_size: int = field(
        default=32, metadata={"help": "Texts in a batch, on each device."}
    )
    per_device_eval_batch_size: int = field(
        default=64, metadata={"help": "The same in evaluation."}
    )
    label_smoothing_factor: float = field(
        default=0.0, metadata={"help": "Share of each label spread over the classes."}
    )
    predict_with_generate: bool = field(default=False, metadata={"help": "Not for classifiers."})
    eval_strategy: str = field(default="epoch", metadata={"help": "no, epoch or steps."})
    save_strategy: str = field(default="epoch", metadata={"help": "no, epoch, steps or best."})
    save_total_limit: int | None = field(default=2, metadata={"help": "Checkpoints that stay."})
    load_best_model_at_end: bool = field(
        default=True, metadata={"help": "Keep the checkpoint with the best validation score."}
    )
    metric_for_best_model: str | None = field(
        default="accuracy", metadata={"help": "What is best: accuracy, macro_f1 or loss."}
    )

    def __post_init__(self) -> None:
        if self.lr_scheduler_type == "noam":
            raise ValueError("lr_scheduler_type='noam' is for translation: its rate is d_model's.")
        refuse_flags(self, TRANSLATION_FLAGS, "a classifier")
        super().__post_init__()


@dataclass
class TextDataArguments:
    """Where labelled texts come from."""

    train_file: str | None = field(
        default=None,
        metadata={
            "help": "A .jsonl file, or a .tsv file with the label before the text; each plain or "
            ".gz."
        },
    )
    validation_file: str | None = field(
        default=None, metadata={"help": "The same; default: a share of the training texts."}
    )
    test_file: str | None = field(default=None, metadata={"help": "The same, to score at the end."})
    dataset_name: str | None = field(
        default=None, metadata={"help": "A dataset on the Hub, in the place of files."}
    )
    dataset_config: str | None = field(
        default=None, metadata={"help": "Which of the dataset's configurations."}
    )
    text_column: str = field(default="text", metadata={"help": "Where a record has its text."})
    label_column: str = field(default="label", metadata={"help": "Where it has its class."})
    validation_share: float = field(
        default=0.1, metadata={"help": "Share of the training texts to stop by, without a file."}
    )
    max_length: int = field(
        default=512, metadata={"help": "Texts of more tokens are cut, and counted in the log."}
    )

    def __post_init__(self) -> None:
        if (self.train_file is None) == (self.dataset_name is None):
            raise ValueError("Give either train_file or dataset_name.")
        if self.dataset_name is not None and (self.validation_file or self.test_file):
            raise ValueError("A dataset has splits of its own: no files beside dataset_name.")
        if not 0 < self.validation_share < 1:
            raise ValueError(f"validation_share must be in (0, 1), got {self.validation_share}.")
        if self.max_length < 2:
            raise ValueError(f"max_length must be at least 2, got {self.max_length}.")


@dataclass
class ClassifierArguments:
    """Which model to train: from the beginning, or on the encoder of another one."""

    start_from: str | None = field(
        default=None,
        metadata={"help": "A folder whose encoder and tokenizer to go on with: a translator's."},
    )
    preset: str = field(default="tiny", metadata={"help": "tiny, base or big."})
    config_overrides: str | None = field(
        default=None,
        metadata={"help": "Fields of AiaynConfig, as YAML: '{encoder_layers: 6, dropout: 0.2}'."},
    )
    vocabulary: str = field(
        default="bpe",
        metadata={"help": "bpe, or word: lower-cased words.", "choices": ["bpe", "word"]},
    )
    vocab_size: int = field(default=8000, metadata={"help": "Entries of the bpe vocabulary."})
    min_frequency: int = field(
        default=2, metadata={"help": "How often a word must occur for the word vocabulary."}
    )

    def __post_init__(self) -> None:
        if self.start_from is None:
            return
        for name in ("preset", "vocabulary", "vocab_size", "min_frequency"):
            if getattr(self, name) != type(self).__dataclass_fields__[name].default:
                raise ValueError(f"start_from has its own sizes and words: {name} is not for it.")
        check_directory(self.start_from)
