"""Scores of translations, with the signatures that make them comparable."""

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


class TranslationScores(evaluate.Metric):
    """sacreBLEU and chrF, and the lower-cased tokenised BLEU that the literature prints.

    - bleu: on the text as it is, tokenisation 13a: the figure to publish.
    - bleu_lowercase: the same without case. On Multi30k it counts within 3 in 12,106 the tokens of
      the lower-cased, Moses-tokenised files that papers on it score.
    - bleu_lowercase_intl: without case, each punctuation mark a token, as in the tutorials that
      score spaCy tokens.
    - chrf: character n-grams.
    - *_signature: how each was computed, by sacreBLEU.

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

    def _compute(self, predictions: list[str], references: list[str]) -> dict[str, Any]:
        """Score translations against one reference each.

        Raises:
            ValueError: There is nothing to score.
        """
        if not predictions:
            raise ValueError("Scoring needs at least one translation, got none.")
        metrics = {
            "bleu": BLEU(),
            "bleu_lowercase": BLEU(lowercase=True),
            "bleu_lowercase_intl": BLEU(lowercase=True, tokenize="intl"),
            "chrf": CHRF(),
        }
        result: dict[str, Any] = {}
        for name, metric in metrics.items():
            result[name] = float(metric.corpus_score(predictions, [references]).score)
            result[f"{name}_signature"] = str(metric.get_signature())
        return result
