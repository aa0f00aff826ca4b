"""Draw attention weights with their tokens: the picture that every notebook uses."""

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
    """Draw weights as a heat map: each row is a query, each column is a key.

    Args:
        axes: The axes to draw on.
        weights: Weights, [T, S].
        rows: Labels of the T queries.
        columns: Labels of the S keys.
        title: Title of the picture.
        highest: The weight with the darkest colour. None: the largest weight.
    """
    axes.imshow(weights.detach(), cmap="Blues", vmin=0, vmax=highest)
    # Without parse_math=False, a token such as "$x$" would be drawn as a formula.
    axes.set_xticks(range(len(columns)), columns, rotation=60, ha="right", parse_math=False)
    axes.set_yticks(range(len(rows)), rows, parse_math=False)
    axes.set_xlabel("looked at (key)")
    axes.set_ylabel("looks (query)")
    axes.set_title(title, fontsize=10)
