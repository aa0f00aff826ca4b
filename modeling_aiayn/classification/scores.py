"""How well a classifier does: accuracy, F1, and which classes it takes for which."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
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


def draw_confusion(scores: ClassificationScores, path: str | Path) -> None:
    """Draw the confusion matrix, rows in shares of their class, counts in the cells.

    Args:
        scores: The scores.
        path: The PNG to write.

    Raises:
        OSError: The file cannot be written.
    """
    counts = scores.confusion
    shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
    size = len(scores.names)
    side = max(4.0, 0.7 * size + 2)
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(shares.numpy(), cmap="Blues", vmin=0, vmax=1)
    for row in range(size):
        for column in range(size):
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, f"{counts[row, column]:,}", ha="center", va="center", c=colour)
    names = [name.replace("$", r"\$") for name in scores.names]
    axes.set_xticks(range(size), names, rotation=45 if size > 3 else 0)
    axes.set_yticks(range(size), names)
    axes.set(
        xlabel="taken for",
        ylabel="is",
        title=f"{100 * scores.accuracy:.2f} % of the texts are right",
    )
    figure.colorbar(image, ax=axes, label="share of the class")
    figure.savefig(path, dpi=120)
