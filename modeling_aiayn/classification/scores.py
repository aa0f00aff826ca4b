"""Scores of a classifier: accuracy, F1 and the confusion matrix, also as a picture."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress, product
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor
from transformers import EvalPrediction

from ..inspection.pictures import label_axis, labels_for, write_figure

# With more classes than this, names and counts are unreadable, and drawing takes minutes.
MAX_NAMED_CLASSES = 40


@dataclass(frozen=True)
class ClassificationScores:
    """Number of texts by true class (row) and predicted class (column), [L, L], and the names."""

    confusion: Tensor
    names: Sequence[str]

    @property
    def accuracy(self) -> float:
        """Share of the texts whose class was predicted correctly."""
        return float(self.confusion.trace() / self.confusion.sum())

    @property
    def f1(self) -> list[float]:
        """Harmonic mean of precision and recall, for each class; 0 for a class without texts."""
        correct = self.confusion.diagonal().double()
        predicted, true = self.confusion.sum(0), self.confusion.sum(1)
        return (2 * correct / (predicted + true).clamp(min=1)).tolist()

    @property
    def macro_f1(self) -> float:
        """Mean F1 of the classes that occur as a label or a prediction, as in scikit-learn."""
        occurs = (self.confusion.sum(0) + self.confusion.sum(1) > 0).tolist()
        return statistics.mean(compress(self.f1, occurs))

    def __str__(self) -> str:
        counts = self.confusion.sum(1).tolist()
        rows = [("accuracy", self.accuracy, sum(counts)), ("macro F1", self.macro_f1, sum(counts))]
        rows += zip(self.names, self.f1, counts, strict=True)
        width = max(len(name) for name, *_ in rows)
        return "\n".join(
            f"{name:<{width}} {100 * score:6.2f}  {count:,} texts" for name, score, count in rows
        )


def score_classes(
    predicted: Sequence[int], labels: Sequence[int], names: Sequence[str]
) -> ClassificationScores:
    """Compare the predicted class of each text with its label."""
    size = len(names)
    places = torch.as_tensor(labels) * size + torch.as_tensor(predicted)
    confusion = torch.bincount(places, minlength=size * size).view(size, size)
    return ClassificationScores(confusion, names)


def classification_metrics(prediction: EvalPrediction) -> dict[str, float]:
    """Accuracy and macro F1 in percent, for a trainer's compute_metrics; logits are [N, L]."""
    logits = prediction.predictions
    names = [str(number) for number in range(logits.shape[-1])]
    scores = score_classes(logits.argmax(-1), prediction.label_ids, names)
    return {"accuracy": 100 * scores.accuracy, "macro_f1": 100 * scores.macro_f1}


def draw_confusion(scores: ClassificationScores, path: str | Path) -> None:
    """Draw counts to a .png or .svg file; colors show each count's share of its true class."""
    counts = scores.confusion
    shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
    size = len(scores.names)
    names, families = labels_for(path, scores.names) if size <= MAX_NAMED_CLASSES else ([], [])
    side = max(4.0, 0.7 * min(size, MAX_NAMED_CLASSES) + 2) + 0.1 * max(map(len, names), default=0)
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(shares.numpy(), cmap="Blues", vmin=0, vmax=1)
    if names:
        for row, column in product(range(size), repeat=2):
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, f"{counts[row, column]:,}", ha="center", va="center", c=colour)
        label_axis(axes.xaxis, names, families)
        label_axis(axes.yaxis, names, families)
    axes.set(xlabel="predicted class", ylabel="true class")
    axes.set(title=f"Accuracy {100 * scores.accuracy:.2f} %")
    figure.colorbar(image, ax=axes, label="share of the true class")
    write_figure(figure, path)
