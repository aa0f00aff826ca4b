"""Build and score a language model of characters or bytes."""

import math
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase
from transformers.hf_argparser import HfArg

from ..modeling_aiayn import AiaynForCausalLM
from ..tokenization import vocabulary_sha256
from ..training import AiaynTrainer
from ..training.arguments import RunArguments
from ..training.resume.settings import LOSSES
from ..training.setup import PresetArguments, build_config
from .texts import EncodedText
from .windows import covering_windows


@dataclass
class LanguageModelTrainingArguments(RunArguments):
    """Training arguments of a language model, with defaults for a small one.

    A run has max_steps updates. All windows have one length, so padding and the sampling strategy
    cannot be set.

    Raises:
        ValueError: As in RunArguments; or metric_for_best_model is not a loss.
    """

    max_steps: int = HfArg(default=2000, help="Updates; each one draws new random windows.")
    lr_scheduler_type: str = HfArg(default="cosine", help="A schedule of transformers.")
    learning_rate: float = HfArg(default=1e-3, help="The peak learning rate.")
    warmup_steps: float = HfArg(default=100, help="Updates over which the learning rate rises.")
    adam_beta2: float = HfArg(default=0.99, help="Adam's beta2.")
    weight_decay: float = HfArg(default=0.1, help="Weight decay of matrices.")
    per_device_train_batch_size: int = HfArg(default=12, help="Windows in a batch, on each device.")
    per_device_eval_batch_size: int = HfArg(
        default=64, help="Windows in an evaluation batch, on each device."
    )
    eval_strategy: str = HfArg(default="steps", help="no, epoch or steps.")
    eval_steps: float | None = HfArg(default=250, help="Updates between evaluations.")
    save_strategy: str = HfArg(default="steps", help="no, epoch, steps or best.")
    save_steps: float = HfArg(default=250, help="Updates between checkpoints.")
    prediction_loss_only: bool = HfArg(default=True, help="Compute only the loss in evaluation.")
    save_total_limit: int | None = HfArg(default=2, help="Keep at most this many checkpoints.")
    load_best_model_at_end: bool = HfArg(
        default=True, help="Keep the checkpoint with the best validation loss."
    )

    num_train_epochs: float = field(default=3.0, init=False)
    pad_to_multiple_of: int | None = field(default=None, init=False)
    train_sampling_strategy: str = field(default="random", init=False)

    def __post_init__(self) -> None:
        metric = (self.metric_for_best_model or "loss").removeprefix("eval_")
        if metric not in LOSSES:
            raise ValueError(
                f"metric_for_best_model must be one of {', '.join(LOSSES)}, got {metric!r}."
            )
        super().__post_init__()

    @property
    def windows(self) -> int:
        """Number of windows in the whole run."""
        updates = self.max_steps * self.gradient_accumulation_steps
        return updates * self.train_batch_size * self.world_size


def build_language_model(
    arguments: PresetArguments, tokenizer: PreTrainedTokenizerBase, context: int
) -> AiaynForCausalLM:
    """Build a language model with random weights; a prediction sees at most context tokens."""
    config = build_config(
        arguments,
        vocab_size=len(tokenizer),
        vocabulary_sha256=[vocabulary_sha256(tokenizer)],
        max_position_embeddings=context + 1,
    )
    return AiaynForCausalLM(config)


@dataclass(frozen=True)
class TextScore:
    """How well a text is predicted: mean negative log-likelihood of a token, in nats."""

    nats: float
    tokens_per_byte: float

    @property
    def bits(self) -> float:
        """Bits per token."""
        return self.nats / math.log(2)

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte of the text in UTF-8."""
        return self.bits * self.tokens_per_byte


def score_text(trainer: AiaynTrainer, text: EncodedText, size: int, step: int) -> TextScore:
    """Predict each token of a text except the first one, once.

    Windows have size tokens and move by step: size - 1 as in training; less gives more context.
    """
    windows = covering_windows(text.ids, size, step)
    # evaluate() would log these scores as the run's own, and early stopping would count them.
    metrics = trainer.predict(windows, metric_key_prefix="text").metrics
    return TextScore(metrics["text_loss"], len(text.ids) / text.size_in_bytes)


def text_score_table(scores: dict[str, TextScore], unit: str) -> str:
    """Format scores as a Markdown table, one per row; unit is "character" or "byte"."""
    # For bytes, bits per token and bits per byte are the same column.
    columns = {
        f"nats per {unit}": [score.nats for score in scores.values()],
        f"bits per {unit}": [score.bits for score in scores.values()],
        "bits per byte": [score.bits_per_byte for score in scores.values()],
    }
    width = max(map(len, scores))
    lines = [
        " | ".join([f"| {'':<{width}}", *columns]) + " |",
        f"|{'-' * (width + 2)}" + "|---:" * len(columns) + "|",
    ]
    for name, *values in zip(scores, *columns.values(), strict=True):
        cells = [f"{value:{len(title)}.4f}" for title, value in zip(columns, values, strict=True)]
        lines.append(" | ".join([f"| {name:<{width}}", *cells]) + " |")
    return "\n".join(lines)
