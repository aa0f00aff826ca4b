"""Attention weights as heat maps."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from .attention_weights import AttentionChoice, AttentionView
from .pictures import label_axis, labels_for, write_figure

COLOURS = "Blues"
# Size of a row or column, in inches.
CELL_SIZE = 0.3
# The same in a picture of all heads.
SMALL_CELL_SIZE = 0.16


def draw_heat_map(view: AttentionView, choice: AttentionChoice, path: str | Path) -> None:
    """Draw one head, or one mean, as a PNG or SVG.

    Raises:
        OSError: The file cannot be written.
        ValueError: The model has no such layer or head, or the path has another ending.
    """
    _draw_maps(view, [[choice]], CELL_SIZE, path)


def draw_layers(view: AttentionView, path: str | Path) -> None:
    """Draw one map for each layer, the mean of its heads, as a PNG or SVG.

    Raises:
        OSError: The file cannot be written.
        ValueError: The path has another ending.
    """
    choices = [AttentionChoice(layer) for layer in range(view.weights.size(0))]
    _draw_maps(view, [choices], CELL_SIZE, path)


def draw_head_grid(view: AttentionView, path: str | Path) -> None:
    """Draw every head, one row of maps for each layer, as a PNG or SVG.

    Raises:
        OSError: The file cannot be written.
        ValueError: The path has another ending.
    """
    layers, heads = view.weights.shape[:2]
    grid = [[AttentionChoice(layer, head) for head in range(heads)] for layer in range(layers)]
    _draw_maps(view, grid, SMALL_CELL_SIZE, path)


def _draw_maps(
    view: AttentionView,
    choices: Sequence[Sequence[AttentionChoice]],
    cell_size: float,
    path: str | Path,
) -> None:
    """Draw rows of maps with one colour scale."""
    names, families = labels_for(path, [*view.rows, *view.columns])
    rows, columns = names[: len(view.rows)], names[len(view.rows) :]
    font_size = min(10.0, 60 * cell_size)
    # A map is at least as large as its titles.
    height, width = (
        max(cell_size * len(labels) + 0.35, 0.13 * font_size) for labels in (rows, columns)
    )
    beside, below = (0.5 + 0.009 * font_size * max(map(len, labels)) for labels in (rows, columns))
    figure = Figure(
        figsize=(
            max(len(choices[0]) * width, 2.5) + beside + 1.2,
            max(len(choices) * height, 1.5) + below + 0.3,
        ),
        layout="constrained",
    )
    grid = figure.subplots(len(choices), len(choices[0]), squeeze=False, sharex=True, sharey=True)
    panels = [
        (axes, str(choice), choice.of(view.weights))
        for axes_row, choice_row in zip(grid, choices, strict=True)
        for axes, choice in zip(axes_row, choice_row, strict=True)
    ]
    highest = max(float(weights.max()) for _, _, weights in panels)
    for axes, title, weights in panels:
        image = axes.imshow(weights.numpy(), vmin=0, vmax=highest, cmap=COLOURS)
        axes.set_title(title, fontsize=min(10.0, font_size + 1))
        axes.tick_params(length=0)
    for axes in grid[-1]:
        label_axis(axes.xaxis, columns, families, font_size)
        axes.set_xlabel(view.column_title, fontsize=font_size)
    for axes in grid[:, 0]:
        label_axis(axes.yaxis, rows, families, font_size)
        axes.set_ylabel(view.row_title, fontsize=font_size)
    figure.colorbar(image, ax=grid.ravel().tolist(), label="attention weight", shrink=0.8)
    write_figure(figure, path)
