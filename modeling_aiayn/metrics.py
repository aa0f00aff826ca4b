"""Scores of translations, with the signatures that make them comparable."""

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate
from sacrebleu import BLEU, CHRF

CITATION = """\
@inproceedings{post-2018-call,
    title = "A Call for Clarity in Reporting {BLEU} Scores",
    author = "Post, Matt",
    booktitle = "Proceedings of the Third Conference on Machine Translation",
    year = "2018",
}"""


class PythonNumbers:
    """A sacreBLEU metric that computes in Python's numbers throughout.

    Where a resample has nothing in common with its references, the library's own score is a float
    among numpy's, and then it cannot compute an interval.
    """

    def _compute_score_from_stats(self, stats: Sequence[float]) -> Any:
        return super()._compute_score_from_stats([float(each) for each in stats])  # type: ignore[misc]


class PlainBLEU(PythonNumbers, BLEU):
    """BLEU as sacreBLEU has it."""


class PlainCHRF(PythonNumbers, CHRF):
    """chrF as sacreBLEU has it."""


class TranslationScores(evaluate.Metric):
    """sacreBLEU and chrF, and the lower-cased tokenised BLEU that the literature prints.

    - bleu: on the text as it is, tokenisation 13a: the figure to publish.
    - bleu_lowercase: the same without case. Of Multi30k's German it counts within 3 in 12,106 the
      tokens of the lower-cased, Moses-tokenised files that papers on it score; of other languages
      not, for which there is `moses_bleu`.
    - bleu_lowercase_intl: without case, each punctuation mark a token, as in the tutorials that
      score spaCy tokens.
    - chrf: character n-grams.
    - *_signature: how each was computed, by sacreBLEU.
    - *_confidence, where compute is told a number of resamples: half the width of the interval
      that the score is in with 95 % probability, had other sentences of the kind been taken.

    Works without the Hub: make one, and call compute(predictions=..., references=...).
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=str(self.__doc__),
            citation=CITATION,
            features=datasets.Features(
                {"predictions": datasets.Value("string"), "references": datasets.Value("string")}
            ),
        )

    def _compute(
        self, predictions: list[str], references: list[str], resamples: int = 0
    ) -> dict[str, Any]:
        """Score translations against one reference each.

        Args:
            predictions: Translations.
            references: As many references.
            resamples: Bootstrap resamples for intervals (Koehn 2004). 0: no intervals.

        Raises:
            ValueError: There is nothing to score.
        """
        if not predictions:
            raise ValueError("Scoring needs at least one translation, got none.")
        metrics: dict[str, Any] = {
            "bleu": PlainBLEU(),
            "bleu_lowercase": PlainBLEU(lowercase=True),
            "bleu_lowercase_intl": PlainBLEU(lowercase=True, tokenize="intl"),
            "chrf": PlainCHRF(),
        }
        result: dict[str, Any] = {}
        for name, metric in metrics.items():
            score = metric.corpus_score(predictions, [references], n_bootstrap=resamples)
            result[name] = float(score.score)
            if resamples:
                result[f"{name}_confidence"] = float(score._ci)
            result[f"{name}_signature"] = str(metric.get_signature())
        return result


def moses_bleu(
    translations: Sequence[str], references: Sequence[str], language: str
) -> dict[str, Any]:
    """BLEU of lower-cased text in Moses's tokens, which papers on Multi30k print.

    Its scripts are lowercase, normalize-punctuation and tokenizer, in that order, and the tokens
    are scored as they are.

    Args:
        translations: Translations.
        references: As many references.
        language: The language of both, for Moses.

    Returns:
        "bleu_moses" and its signature.

    Raises:
        ModuleNotFoundError: sacremoses is not installed.
    """
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    normalizer, tokenizer = MosesPunctNormalizer(language), MosesTokenizer(language)
    tokens = [
        [
            tokenizer.tokenize(normalizer.normalize(text.lower()), escape=False, return_str=True)
            for text in texts
        ]
        for texts in (translations, references)
    ]
    metric = BLEU(tokenize="none", force=True)
    score = metric.corpus_score(tokens[0], [tokens[1]])
    signature = f"{metric.get_signature()}, lower-cased, sacremoses {language}"
    return {"bleu_moses": float(score.score), "bleu_moses_signature": signature}
