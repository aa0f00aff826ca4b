"""Draw a confusion matrix."""

from itertools import product
from pathlib import Path

from matplotlib.figure import Figure

from ..inspection.pictures import label_axis, labels_for, write_figure
from .scores import ClassificationScores

# With more classes than these, names and counts cannot be read, and take minutes to draw.
MAX_NAMED_CLASSES = 40


def draw_confusion(scores: ClassificationScores, path: str | Path) -> None:
    """Draw the confusion matrix to a .png or .svg file.

    The cells show counts; their colours show the share of the true class. With more than
    MAX_NAMED_CLASSES classes there are colours alone, and the numbers of the classes.
    """
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
    axes.set(
        xlabel="predicted class",
        ylabel="true class",
        title=f"Accuracy {100 * scores.accuracy:.2f} %",
    )
    figure.colorbar(image, ax=axes, label="share of the true class")
    write_figure(figure, path)
