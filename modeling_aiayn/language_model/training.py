"""A language model, built for a vocabulary of characters or bytes, and its scores."""

import math
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from ..configuration_aiayn import AiaynConfig
from ..modeling_aiayn import AiaynForCausalLM
from ..tokenization import vocabulary_sha256
from ..training import AiaynTrainer
from ..training.setup import parse_mapping
from .arguments import LanguageModelArguments
from .texts import EncodedText
from .windows import covering_windows


def build_language_model(
    arguments: LanguageModelArguments, tokenizer: PreTrainedTokenizerBase, context: int
) -> AiaynForCausalLM:
    """A fresh language model.

    Args:
        arguments: Which model.
        tokenizer: Its vocabulary.
        context: Tokens that a prediction looks back on.

    Returns:
        The model.

    Raises:
        ValueError: config_overrides is no YAML mapping, or says what the text says.
    """
    overrides = parse_mapping("config_overrides", arguments.config_overrides)
    of_text = {
        "vocab_size": len(tokenizer),
        "vocabulary_sha256": [vocabulary_sha256(tokenizer)],
        "max_position_embeddings": context + 1,
    }
    for name in of_text:
        if name in overrides:
            raise ValueError(f"config_overrides: {name} follows from the text and --context.")
    return AiaynForCausalLM(AiaynConfig.from_preset(arguments.preset, **of_text, **overrides))


@dataclass(frozen=True)
class TextScore:
    """How well a text is predicted.

    Args:
        nats: Mean negative log-likelihood of a token, in nats.
        tokens_per_byte: Tokens of the text over its size in UTF-8.
    """

    nats: float
    tokens_per_byte: float

    @property
    def bits(self) -> float:
        """Bits per token."""
        return self.nats / math.log(2)

    @property
    def bits_per_byte(self) -> float:
        """Bits for each byte of the text."""
        return self.bits * self.tokens_per_byte


def score_text(trainer: AiaynTrainer, text: EncodedText, size: int, step: int) -> TextScore:
    """Predict each token of a text but its first, once.

    Args:
        trainer: A trainer with the model.
        text: The text.
        size: Tokens of a window.
        step: By how many tokens the window slides: size - 1 as in training, fewer for more context.

    Returns:
        The score.
    """
    windows = covering_windows(text.ids, size, step)
    # Not evaluate(), whose results are the run's: callbacks would stop early by them.
    metrics = trainer.predict(windows, metric_key_prefix="text").metrics
    return TextScore(metrics["text_loss"], len(text.ids) / text.size_in_bytes)


def score_table(scores: dict[str, TextScore], unit: str) -> str:
    """Scores as a Markdown table.

    Args:
        scores: Scores by what they are of.
        unit: What a token is.

    Returns:
        The table.
    """
    # Of bytes the last two are one column.
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
