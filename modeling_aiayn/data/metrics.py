"""Scores of translations, with sacreBLEU's signatures, which say what can be compared."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from sacrebleu import BLEU, CHRF
from sacrebleu.significance import PairedTest


class PythonNumbers:
    """Mixin that gives sacreBLEU Python floats: with numpy numbers, some intervals fail."""

    def _compute_score_from_stats(self, stats: Sequence[float]) -> Any:
        return super()._compute_score_from_stats([float(number) for number in stats])  # type: ignore[misc]


class PlainBLEU(PythonNumbers, BLEU):
    """sacreBLEU's BLEU."""


class PlainCHRF(PythonNumbers, CHRF):
    """sacreBLEU's chrF."""


SCORES: dict[str, Callable[[], Any]] = {
    "bleu": PlainBLEU,
    "bleu_lowercase": partial(PlainBLEU, lowercase=True),
    "bleu_lowercase_intl": partial(PlainBLEU, lowercase=True, tokenize="intl"),
    "chrf": PlainCHRF,
}


def score_texts(
    translations: Sequence[str], *references: Sequence[str], resamples: int = 0
) -> dict[str, Any]:
    """Compute BLEU and chrF with sacreBLEU, against one reference of each text or several.

    Returns:
        - bleu: BLEU of the unchanged text, with tokenization 13a. Publish this one.
        - bleu_lowercase: BLEU of lower-cased text. Papers on Multi30k score lower-cased files in
          Moses's tokens. For German, 13a makes the same tokens (3 of 12,106 differ); for other
          languages use `moses_bleu`.
        - bleu_lowercase_intl: BLEU of lower-cased text with each punctuation mark as a token, as in
          tutorials that score spaCy's tokens.
        - chrf: F-score of character n-grams.
        - *_signature: sacreBLEU's description of how each score was computed.
        - *_confidence, if resamples is positive: half the width of the 95 % confidence interval, by
          a bootstrap with this many resamples (Koehn 2004).
    """
    result: dict[str, Any] = {}
    for name, make_metric in SCORES.items():
        metric = make_metric()
        score = metric.corpus_score(translations, references, n_bootstrap=resamples)
        result[name] = float(score.score)
        if resamples:
            result[f"{name}_confidence"] = float(score._ci)
        result[f"{name}_signature"] = str(metric.get_signature())
    return result


def p_values(
    translations: Sequence[str], baseline: Sequence[str], references: Sequence[Sequence[str]]
) -> dict[str, float]:
    """P-values of the difference from a baseline, by paired bootstrap (Koehn 2004)."""
    systems = [("baseline", baseline), ("system", translations)]
    metrics: Any = {"BLEU": PlainBLEU(), "chrF2": PlainCHRF()}
    test: Any = PairedTest(systems, metrics, references, test_type="bs", n_samples=1000)
    _, found = test()
    values = {}
    for name, metric in (("bleu", "BLEU"), ("chrf", "chrF2")):
        values[f"{name}_of_baseline"] = float(found[metric][0].score)
        values[f"{name}_p_value"] = float(found[metric][1].p_value)
    return values


def only_numbers(scores: Mapping[str, Any]) -> dict[str, float]:
    """Keep only the scores of `score_texts`, without signatures and confidence intervals."""
    return {
        name: value
        for name, value in scores.items()
        if isinstance(value, float) and not name.endswith("_confidence")
    }


def mean_scores(scores: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The mean of each score over several sets of texts."""
    numbers = [*map(only_numbers, scores)]
    return {name: sum(one[name] for one in numbers) / len(numbers) for name in numbers[0]}


def moses_bleu(
    translations: Sequence[str], references: Sequence[str], language: str
) -> dict[str, Any]:
    """BLEU of lower-cased text in Moses's tokens, as papers on Multi30k report it.

    It applies Moses's lowercase, normalize-punctuation and tokenizer, in that order, and scores the
    tokens without further tokenization. The package sacremoses must be installed.
    """
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    normalizer, tokenizer = MosesPunctNormalizer(language), MosesTokenizer(language)

    def tokens(text: str) -> str:
        normalized = normalizer.normalize(text.lower())
        return str(tokenizer.tokenize(normalized, escape=False, return_str=True))

    metric = BLEU(tokenize="none", force=True)
    score = metric.corpus_score([*map(tokens, translations)], [[*map(tokens, references)]])
    signature = f"{metric.get_signature()}, lower-cased, sacremoses {language}"
    return {"bleu_moses": float(score.score), "bleu_moses_signature": signature}
