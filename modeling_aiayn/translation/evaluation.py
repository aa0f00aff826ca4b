"""Score a model's translations of sentence pairs."""

import math
from collections.abc import Sequence
from typing import Any

from datasets import Dataset
from sacrebleu.metrics.bleu import BLEU

from ..data.metrics import mean_scores, only_numbers, score_texts
from ..saved.languages import languages_of_rows
from .translator import Translation, Translator

REFERENCE = "reference"  # prefix of the columns with additional references


def perplexity(translator: Translator, pairs: Dataset, **options: Any) -> float:
    """Perplexity per target token, `</s>` included; options are those of `Translator.score`.

    Language tags are not counted, because their probability is 1.
    """
    scored = translator.score(list(pairs["source"]), list(pairs["target"]), **options)
    certain = len(translator.first_ids(translator.direction()))
    tokens = sum(len(translation.token_ids) - certain for translation in scored)
    return math.exp(-sum(translation.log_probability for translation in scored) / tokens)


def evaluate_translation(
    translator: Translator, pairs: Dataset, **options: Any
) -> tuple[dict[str, Any], list[str]]:
    """Translate sources; return scores by name, with the perplexity, and the translations.

    Options are those of `Translator.__call__`.
    """
    translations = translator(pairs["source"], show_progress=True, **options)
    scores = score_translations(translations, pairs)
    names = ("batch_size", "max_tokens_per_batch")
    batches = {name: options[name] for name in names if name in options}
    return {**scores, "perplexity": perplexity(translator, pairs, **batches)}, translations


def evaluate_directions(translator: Translator, pairs: Dataset) -> dict[str, Any]:
    """Return the scores of `evaluate_translation`.

    If the pairs have columns of languages, each direction is scored separately, under "directions",
    and the other scores are the means of all directions.
    """
    rows = languages_of_rows(pairs)
    if not rows:
        return evaluate_translation(translator, pairs)[0]
    scores = {}
    for languages in dict.fromkeys(rows):
        own = pairs.select([index for index, other in enumerate(rows) if other == languages])
        directed = translator.directed(languages)
        scores["-".join(languages)] = evaluate_translation(directed, own)[0]
    return {**mean_scores([*scores.values()]), "directions": scores}


def can_translate(translator: Translator, pairs: Dataset) -> bool:
    """Whether a translator supports the languages in the columns of pairs, or its default ones."""
    try:
        for languages in {*languages_of_rows(pairs)} or [()]:
            translator.direction(*languages)
    except ValueError:
        return False
    return True


def with_translations(pairs: Dataset, translations: list[str]) -> Dataset:
    """Add a column "translation", with one translation for each pair."""
    filled = [line for line in translations if line]
    if filled and all("\t" in line for line in filled):
        raise ValueError(
            "Translations must be text alone, got columns between tabs. Translate without --nbest, "
            "--scores and --alignment."
        )
    return pairs.add_column("translation", translations)


def lines_for_all_rows(rows: Dataset, translations: Sequence[str]) -> list[str]:
    """Return the translations of complete rows, and "" for each row with an empty side."""
    following = iter(translations)
    sides = zip(rows["source"], rows["target"], strict=True)
    return [next(following) if source and target else "" for source, target in sides]


def references_of(pairs: Dataset) -> list[list[str]]:
    """Return the targets of pairs, and additional references from other columns."""
    others = [name for name in pairs.column_names if name.startswith(REFERENCE)]
    return [list(pairs[name]) for name in ("target", *others)]


def score_translations(translations: Sequence[str], pairs: Dataset) -> dict[str, Any]:
    """Score translations against the references of pairs; return scores and signatures by name."""
    return score_texts(translations, *references_of(pairs), resamples=1000)


def score_table(scores: dict[str, Any]) -> str:
    """Format scores as lines of plain text, each with its 95 % interval and its signature.

    Scores under "before", from before fine-tuning, get a column, or lines if there are directions.
    """
    if directions := scores.get("directions"):
        return _direction_table(scores, directions)
    before: dict[str, float] = scores.get("before", {})
    lines = [f"{'':<20} before  after"] if before else []
    for name, value in only_numbers(scores).items():
        half = scores.get(f"{name}_confidence")
        interval = "" if half is None else f"± {half:.2f}"
        signature = scores.get(f"{name}_signature", "")
        earlier = f"{before[name]:6.2f} " if before else ""
        lines.append(f"{name:<20} {earlier}{value:6.2f} {interval:<7} {signature}".rstrip())
    return "\n".join(lines)


def _direction_table(scores: dict[str, Any], directions: dict[str, Any]) -> str:
    """Format a line for each direction, one for their mean, and one for each signature."""
    rows, before = {**directions, "mean": scores}, scores.get("before", {})
    rows |= {f"{name}, before": one for name, one in before.get("directions", {}).items()}
    rows |= {"mean, before": before} if before else {}
    names, first = [*only_numbers(scores)], next(iter(directions.values()))
    width = max(map(len, rows))
    lines = [" ".join([" " * width, *(f"{name:>{len(name) + 1}}" for name in names)])]
    for row, values in rows.items():
        cells = (f"{values[name]:>{len(name) + 1}.2f}" for name in names)
        lines.append(" ".join([f"{row:<{width}}", *cells]))
    signatures = (f"{name}_signature" for name in names)
    return "\n".join([*lines, *(f"{x}: {first[x]}" for x in signatures if x in first)])


def compare_translators(
    pairs: Dataset, translators: dict[str, Translator], options: dict[str, Any]
) -> str:
    """Translate sentence pairs with each translator, and return a table of scores."""
    lines, translations = [], []
    for name, translator in translators.items():
        texts = translator(pairs["source"], show_progress=True, **options)
        scores = score_translations(texts, pairs)
        lines.append(f"{name:<10}BLEU {scores['bleu']:.2f}, chrF {scores['chrf']:.2f}")
        translations.append(texts)
    same = sum(before == after for before, after in zip(*translations, strict=True))
    return "\n".join([*lines, f"The same translation for {same:,} of {len(pairs):,} sentences."])


def nearest(translations: list[Translation], reference: str) -> str:
    """Return the text with the highest sentence BLEU (https://arxiv.org/abs/1606.07947, 3.3)."""
    bleu = BLEU(effective_order=True)
    texts = [translation.text for translation in translations]
    return max(texts, key=lambda text: bleu.sentence_score(text, [reference]).score)
