"""The one picture that every notebook draws: attention weights with the tokens beside them."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from torch import Tensor


def draw_weights(
    axes: Axes,
    weights: Tensor,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    highest: float | None = 1.0,
) -> None:
    """Draw weights as a heat map: a row looks, a column is looked at.

    Args:
        axes: Where to draw.
        weights: Weights, [T, S].
        rows: Names of the T that look.
        columns: Names of the S that are looked at.
        title: What is drawn.
        highest: The weight that is darkest; None: the largest there is.
    """
    axes.imshow(weights.detach(), cmap="Blues", vmin=0, vmax=highest)
    # A token such as "$x$" is text and not mathematics.
    axes.set_xticks(range(len(columns)), columns, rotation=60, ha="right", parse_math=False)
    axes.set_yticks(range(len(rows)), rows, parse_math=False)
    axes.set_xlabel("looked at (key)")
    axes.set_ylabel("looks (query)")
    axes.set_title(title, fontsize=10)
