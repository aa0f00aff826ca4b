"""Draw attention weights as heat maps, or with gold links as an alignment matrix."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from .alignment import Links
from .alignment_scores import GoldPair
from .attention_weights import AttentionChoice, AttentionMaps, AttentionView
from .pictures import label_axis, labels_for, write_figure

COLOURS = "Blues"
# Size of a row or column, in inches.
CELL_SIZE = 0.3
# The same in a picture of all heads.
SMALL_CELL_SIZE = 0.16


def draw_attention(view: AttentionView, attention: str, path: str | Path) -> None:
    """Draw "layers", "heads", or one map that `AttentionChoice.parse` accepts, as a PNG or SVG.

    Of "layers", each map is the mean of a layer's heads. "heads" has a row of maps for each layer.
    """
    layers, heads = map(range, view.weights.shape[:2])
    cell_size = CELL_SIZE
    if attention == "layers":
        choices = [[AttentionChoice(layer) for layer in layers]]
    elif attention == "heads":
        choices = [[AttentionChoice(layer, head) for head in heads] for layer in layers]
        cell_size = SMALL_CELL_SIZE
    else:
        choices = [[AttentionChoice.parse(attention)]]
    write_figure(_heat_maps(view, choices, cell_size, path), path)


def draw_alignment_matrix(
    maps: AttentionMaps, choice: AttentionChoice, pair: GoldPair, path: str | Path
) -> None:
    """Draw cross-attention between words as a PNG or SVG, and frame the gold links.

    Sure links have solid frames, and possible ones have dashed frames.
    """
    figure = _heat_maps(maps.view("cross"), [[choice]], CELL_SIZE, path)
    axes = figure.axes[0]
    _frame_links(axes, maps, pair.possible - pair.sure, "possible link", (0, (2, 1.5)))
    _frame_links(axes, maps, pair.sure, "sure link", "solid")
    if axes.patches:
        figure.legend(loc="outside upper right", fontsize=8, ncols=2, frameon=False)
    write_figure(figure, path)


def _frame_links(axes: Axes, maps: AttentionMaps, links: Links, name: str, line: Any) -> None:
    """Frame the cells of links; skip links to words that truncation removed."""
    columns, rows = maps.source.word_of, maps.target.word_of
    style: dict[str, Any] = {"edgecolor": "C1", "linewidth": 1.8, "linestyle": line, "label": name}
    for source, target in sorted(links):
        if source in columns and target in rows:
            corner = (columns.index(source) - 0.42, rows.index(target) - 0.42)
            axes.add_patch(Rectangle(corner, 0.84, 0.84, fill=False, **style))
            style["label"] = None


def _heat_maps(
    view: AttentionView,
    choices: Sequence[Sequence[AttentionChoice]],
    cell_size: float,
    path: str | Path,
) -> Figure:
    """Draw rows of maps with one color scale."""
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
    shown = {choice: choice.of(view.weights) for row in choices for choice in row}
    highest = max(float(weights.max()) for weights in shown.values())
    for axes, (choice, weights) in zip(grid.flat, shown.items(), strict=True):
        image = axes.imshow(weights.numpy(), vmin=0, vmax=highest, cmap=COLOURS)
        axes.set_title(str(choice), fontsize=min(10.0, font_size + 1))
        axes.tick_params(length=0)
    for axes in grid[-1]:
        label_axis(axes.xaxis, columns, families, font_size)
        axes.set_xlabel(view.column_title, fontsize=font_size)
    for axes in grid[:, 0]:
        label_axis(axes.yaxis, rows, families, font_size)
        axes.set_ylabel(view.row_title, fontsize=font_size)
    figure.colorbar(image, ax=grid.ravel().tolist(), label="attention weight", shrink=0.8)
    return figure
