"""Attention weights as heat maps."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from .alignment import AttentionChoice
from .attention_weights import AttentionView
from .pictures import labels_for, write_figure

COLOURS = "Blues"
MAX_LABELS = 100
# Inches, of a row or column with its token.
TOKEN = 0.3
# The same where a picture has many maps.
SMALL_TOKEN = 0.16


def draw_heat_map(view: AttentionView, choice: AttentionChoice, path: str | Path) -> None:
    """Draw one map: a head's, or a mean's.

    Args:
        view: The weights with their labels.
        choice: Which of them.
        path: The PNG or SVG to write.

    Raises:
        OSError: The file cannot be written.
        ValueError: There is no such layer or head, or the file's ending is another.
    """
    _draw(view, [[(str(choice), choice.of(view.weights))]], TOKEN, path)


def draw_layers(view: AttentionView, path: str | Path) -> None:
    """Draw one map per layer, the mean of its heads.

    Args:
        view: The weights with their labels.
        path: The PNG or SVG to write.

    Raises:
        OSError: The file cannot be written.
        ValueError: Its ending is another.
    """
    choices = [AttentionChoice(layer) for layer in range(view.weights.size(0))]
    _draw(view, [[(str(choice), choice.of(view.weights)) for choice in choices]], TOKEN, path)


def draw_head_grid(view: AttentionView, path: str | Path) -> None:
    """Draw every head, a row of maps per layer.

    Args:
        view: The weights with their labels.
        path: The PNG or SVG to write.

    Raises:
        OSError: The file cannot be written.
        ValueError: Its ending is another.
    """
    layers, heads = view.weights.shape[:2]
    panels = [
        [(f"layer {layer}, head {head}", view.weights[layer, head]) for head in range(heads)]
        for layer in range(layers)
    ]
    _draw(view, panels, SMALL_TOKEN, path)


def _draw(
    view: AttentionView,
    panels: Sequence[Sequence[tuple[str, Tensor]]],
    token: float,
    path: str | Path,
) -> None:
    """Maps in rows under one scale; titled matrices, [T, S] each."""
    names, families = labels_for(path, [*view.rows, *view.columns])
    rows, columns = names[: len(view.rows)], names[len(view.rows) :]
    gap = 0.35
    margin = 0.5 + 0.3 * token * max(map(len, names))
    figure = Figure(
        figsize=(
            max(len(panels[0]) * (token * len(columns) + gap), 2.5) + margin + 1.2,
            max(len(panels) * (token * len(rows) + gap), 1.5) + margin + 0.3,
        ),
        layout="constrained",
    )
    grid = figure.subplots(len(panels), len(panels[0]), squeeze=False, sharex=True, sharey=True)
    highest = max(float(matrix.max()) for row in panels for _, matrix in row)
    font_size = min(10.0, 60 * token)
    for axes_row, panel_row in zip(grid, panels, strict=True):
        for axes, (title, matrix) in zip(axes_row, panel_row, strict=True):
            image = axes.imshow(matrix.numpy(), vmin=0, vmax=highest, cmap=COLOURS)
            axes.set_title(title, fontsize=min(10.0, font_size + 1))
            axes.tick_params(length=0)
    for axes in grid[-1]:
        label_columns(axes, columns, families, font_size)
        axes.set_xlabel(view.column_title, fontsize=font_size)
    for axes in grid[:, 0]:
        label_rows(axes, rows, families, font_size)
        axes.set_ylabel(view.row_title, fontsize=font_size)
    figure.colorbar(image, ax=grid.ravel().tolist(), label="attention weight", shrink=0.8)
    write_figure(figure, path)


def label_columns(
    axes: Axes, names: Sequence[str], families: Sequence[str], font_size: float = 10.0
) -> None:
    """Names below a map's columns, as text and no formulas, whatever dollar signs they have."""
    step = _step(names)
    axes.set_xticks(
        range(0, len(names), step),
        names[::step],
        rotation=90,
        parse_math=False,
        family=list(families),
        fontsize=font_size,
    )


def label_rows(
    axes: Axes, names: Sequence[str], families: Sequence[str], font_size: float = 10.0
) -> None:
    """Names beside a map's rows, as text and no formulas."""
    step = _step(names)
    axes.set_yticks(
        range(0, len(names), step),
        names[::step],
        parse_math=False,
        family=list(families),
        fontsize=font_size,
    )


def _step(names: Sequence[str]) -> int:
    """Which names are written: laying out hundreds takes minutes, and nobody reads them."""
    return 1 + (len(names) - 1) // MAX_LABELS
