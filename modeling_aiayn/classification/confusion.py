"""Which classes are taken for which, as a picture."""

from pathlib import Path

from matplotlib.figure import Figure

from .scores import ClassificationScores


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
