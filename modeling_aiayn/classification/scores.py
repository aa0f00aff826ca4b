"""How well a classifier does: accuracy, F1, and which classes it takes for which."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import EvalPrediction


@dataclass(frozen=True)
class ClassificationScores:
    """What became of texts of known classes.

    Args:
        confusion: How many texts of each class (row) were taken for each class (column), [L, L].
        names: The classes.
    """

    confusion: Tensor
    names: Sequence[str]

    @property
    def accuracy(self) -> float:
        """Share of the texts that were taken for what they are."""
        return float(self.confusion.trace() / self.confusion.sum())

    @property
    def f1(self) -> list[float]:
        """The harmonic mean of precision and recall of each class; 0 for one that never occurs."""
        right = self.confusion.diagonal().double()
        found, there = self.confusion.sum(0), self.confusion.sum(1)
        return (2 * right / (found + there).clamp(min=1)).tolist()

    @property
    def macro_f1(self) -> float:
        """The mean of the classes' F1, however many texts each has."""
        return sum(self.f1) / len(self.f1)

    def __str__(self) -> str:
        width = max(len("macro F1"), *map(len, self.names))
        rows = [("accuracy", self.accuracy), ("macro F1", self.macro_f1)]
        rows += [(name, f1) for name, f1 in zip(self.names, self.f1, strict=True)]
        counts = self.confusion.sum(1).tolist()
        texts = [sum(counts), sum(counts), *counts]
        lines = [
            f"{label:<{width}} {100 * value:6.2f}  {count:,} texts"
            for (label, value), count in zip(rows, texts, strict=True)
        ]
        return "\n".join(lines)


def score_classes(
    predicted: Sequence[int], labels: Sequence[int], names: Sequence[str]
) -> ClassificationScores:
    """Compare predicted classes with the true ones.

    Args:
        predicted: A class for each text.
        labels: The true one.
        names: The classes' names.

    Returns:
        The scores.

    Raises:
        ValueError: There is nothing to score.
    """
    if not len(labels):
        raise ValueError("Scoring needs at least one text, got none.")
    size = len(names)
    places = torch.as_tensor(labels) * size + torch.as_tensor(predicted)
    return ClassificationScores(
        torch.bincount(places, minlength=size * size).view(size, size), names
    )


def classification_metrics(prediction: EvalPrediction) -> dict[str, float]:
    """What a trainer takes as compute_metrics.

    Args:
        prediction: Logits, [N, L], and labels, [N].

    Returns:
        Accuracy and macro F1, in percent.
    """
    logits = prediction.predictions
    names = [str(number) for number in range(logits.shape[-1])]
    scores = score_classes(logits.argmax(-1), prediction.label_ids, names)
    return {"accuracy": 100 * scores.accuracy, "macro_f1": 100 * scores.macro_f1}
