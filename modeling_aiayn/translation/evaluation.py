"""How well a model translates given pairs."""

import math
from collections.abc import Sequence
from typing import Any

from datasets import Dataset

from ..metrics import TranslationScores
from .translator import Translator

# Bootstrap resamples behind an interval of confidence.
RESAMPLES = 1000
BATCH_OPTIONS = ("batch_size", "max_tokens_per_batch")


def perplexity(translator: Translator, pairs: Dataset, **options: Any) -> float:
    """Perplexity per target token, `</s>` counted, from plain cross-entropy.

    Args:
        translator: A model and its tokenizers.
        pairs: Columns "source" and "target".
        **options: As for `Translator.score`.

    Returns:
        exp of the mean negative log-probability of a target token.
    """
    scored = translator.score(list(pairs["source"]), list(pairs["target"]), **options)
    tokens = sum(len(each.token_ids) for each in scored)
    return math.exp(-sum(each.log_probability for each in scored) / tokens)


def evaluate_translation(
    translator: Translator, pairs: Dataset, **options: Any
) -> tuple[dict[str, Any], list[str]]:
    """Translate the sources of pairs and score the result against their targets.

    Args:
        translator: A model and its tokenizers.
        pairs: Columns "source" and "target".
        **options: As for calling the translator.

    Returns:
        Scores by name, perplexity among them, and the translations.
    """
    translations = translator(pairs["source"], show_progress=True, **options)
    scores = score_translations(translations, pairs)
    batches = {name: options[name] for name in BATCH_OPTIONS if name in options}
    return {**scores, "perplexity": perplexity(translator, pairs, **batches)}, translations


def with_translations(pairs: Dataset, translations: list[str]) -> Dataset:
    """Put translations beside the pairs that they are of.

    Args:
        pairs: Columns "source" and "target".
        translations: One of each pair's source.

    Returns:
        The pairs with a column "translation".

    Raises:
        ValueError: There are not as many translations as pairs, or they have columns beside them.
    """
    if len(translations) != len(pairs):
        raise ValueError(
            f"Each pair needs a translation, got {len(translations)} of {len(pairs)} pairs."
        )
    filled = [line for line in translations if line]
    if filled and all("\t" in line for line in filled):
        raise ValueError(
            "Translations must be text alone, got columns between tabs: translate without --nbest, "
            "--scores and --alignment."
        )
    return pairs.add_column("translation", translations)


def in_their_lines(rows: Dataset, translations: Sequence[str]) -> list[str]:
    """Translations of the rows that are pairs, and an empty line for each that lacks a side.

    Args:
        rows: Columns "source" and "target".
        translations: One of each row with text on both sides.

    Returns:
        A line for each row.
    """
    following = iter(translations)
    sides = zip(rows["source"], rows["target"], strict=True)
    return [next(following) if source and target else "" for source, target in sides]


def score_translations(translations: Sequence[str], pairs: Dataset) -> dict[str, Any]:
    """Score translations against the targets of pairs.

    Args:
        translations: One of each pair's source.
        pairs: Columns "source" and "target".

    Returns:
        Scores by name, and their signatures.
    """
    references = list(pairs["target"])
    scores: dict[str, Any] = TranslationScores().compute(
        predictions=list(translations), references=references, resamples=RESAMPLES
    )
    return scores


def score_table(scores: dict[str, Any]) -> str:
    """Scores as aligned lines of plain text, each with its 95 % interval and its signature.

    Args:
        scores: As `evaluate_translation` gives them.

    Returns:
        The lines.
    """
    lines = []
    for name, value in scores.items():
        if isinstance(value, float) and not name.endswith("_confidence"):
            half = scores.get(f"{name}_confidence")
            interval = "" if half is None else f"± {half:.2f}"
            signature = scores.get(f"{name}_signature", "")
            lines.append(f"{name:<20} {value:6.2f} {interval:<7} {signature}".rstrip())
    return "\n".join(lines)
