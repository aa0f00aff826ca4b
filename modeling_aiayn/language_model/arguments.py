"""What the training of a language model is told."""

from dataclasses import dataclass, field

from ..training.arguments import TRANSLATION_FLAGS, AiaynTrainingArguments, refuse_flags

# Windows are of one length, drawn anew for each update.
UNUSED = (*TRANSLATION_FLAGS, "pad_to_multiple_of", "train_sampling_strategy", "num_train_epochs")


@dataclass
class LanguageModelTrainingArguments(AiaynTrainingArguments):
    """The arguments of a run, with defaults that suit a small language model.

    Raises:
        ValueError: What is asked for is for translation alone, or the run has no number of updates.
    """

    max_steps: int = field(
        default=2000, metadata={"help": "Updates; each is on windows drawn anew."}
    )
    lr_scheduler_type: str = field(
        default="cosine", metadata={"help": "One of the library's schedules."}
    )
    learning_rate: float = field(default=1e-3, metadata={"help": "The peak learning rate."})
    warmup_steps: float = field(
        default=100, metadata={"help": "Updates over which the learning rate rises."}
    )
    adam_beta2: float = field(default=0.99, metadata={"help": "Adam's beta2."})
    weight_decay: float = field(default=0.1, metadata={"help": "Decay of matrices' weights."})
    max_grad_norm: float = field(
        default=1.0, metadata={"help": "Norm that gradients are clipped to; 0: none."}
    )
    per_device_train_batch_size: int = field(
        default=12, metadata={"help": "Windows in a batch, on each device."}
    )
    per_device_eval_batch_size: int = field(
        default=64, metadata={"help": "The same in evaluation."}
    )
    label_smoothing_factor: float = field(
        default=0.0, metadata={"help": "Share of each target spread over the vocabulary."}
    )
    train_sampling_strategy: str = field(
        default="random", metadata={"help": "Windows are all of one length."}
    )
    predict_with_generate: bool = field(default=False, metadata={"help": "For translation."})
    eval_strategy: str = field(default="steps", metadata={"help": "no, epoch or steps."})
    eval_steps: float | None = field(
        default=250, metadata={"help": "Updates between two evaluations."}
    )
    save_strategy: str = field(default="steps", metadata={"help": "no, epoch, steps or best."})
    save_steps: float = field(default=250, metadata={"help": "Updates between two checkpoints."})
    prediction_loss_only: bool = field(
        default=True, metadata={"help": "Keep no scores of each token in evaluation."}
    )
    save_total_limit: int | None = field(default=2, metadata={"help": "Checkpoints that stay."})
    load_best_model_at_end: bool = field(
        default=True, metadata={"help": "Keep the checkpoint with the best validation loss."}
    )

    def __post_init__(self) -> None:
        refuse_flags(self, UNUSED, "a language model")
        if self.lr_scheduler_type == "noam":
            raise ValueError("lr_scheduler_type='noam' is for translation: its rate is d_model's.")
        if self.max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, got {self.max_steps}.")
        super().__post_init__()

    @property
    def windows(self) -> int:
        """Windows that the whole run needs."""
        updates = self.max_steps * self.gradient_accumulation_steps
        return updates * self.train_batch_size * self.world_size


@dataclass
class LanguageDataArguments:
    """Which text, and how it is cut."""

    train_file: str = field(
        metadata={"help": "A text, plain or .gz; its end is held out, see the shares."}
    )
    unit: str = field(
        default="character",
        metadata={"help": "What a token is.", "choices": ["character", "byte"]},
    )
    context: int = field(default=64, metadata={"help": "Tokens that a prediction looks back on."})
    validation_share: float = field(
        default=0.1, metadata={"help": "Share of the text to validate on."}
    )
    test_share: float = field(
        default=0.0, metadata={"help": "Share of the text, behind that, to score at the end."}
    )

    def __post_init__(self) -> None:
        if self.context < 1:
            raise ValueError(f"context must be at least 1, got {self.context}.")
        if not (self.validation_share > 0 and self.test_share >= 0):
            raise ValueError(
                "validation_share must be above 0 and test_share not below, got "
                f"{self.validation_share} and {self.test_share}."
            )
        if self.validation_share + self.test_share >= 1:
            raise ValueError(
                "validation_share and test_share must leave something to train on, got "
                f"{self.validation_share} and {self.test_share}."
            )


@dataclass
class LanguageModelArguments:
    """Which model to train."""

    preset: str = field(default="tiny", metadata={"help": "tiny, base or big."})
    config_overrides: str | None = field(
        default=None,
        metadata={"help": "Fields of AiaynConfig, as YAML: '{decoder_layers: 6, dropout: 0.2}'."},
    )
