"""Cross-attention as an alignment matrix, with hand-made links framed in it."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ..translation import Translator
from .alignment import Links, maps_with_words
from .alignment_scores import GoldPair
from .attention_weights import AttentionChoice, AttentionMaps
from .heat_maps import CELL_SIZE, COLOURS
from .pictures import label_axis, labels_for, write_figure


def word_attention_maps(translator: Translator, pair: GoldPair) -> AttentionMaps:
    """Compute the attention between a pair's own words.

    Tokens outside words, such as `</s>`, stay as they are.
    """
    return maps_with_words(translator, pair.source, pair.target, pair.words).merged()


def draw_alignment_matrix(
    maps: AttentionMaps, choice: AttentionChoice, pair: GoldPair, path: str | Path
) -> None:
    """Draw a pair's `word_attention_maps` as a PNG or SVG, and frame the links that it should have.

    Sure links have solid frames, and possible ones have dashed frames.

    Raises:
        OSError: The file cannot be written.
        ValueError: The model has no such layer or head, or the path has another ending.
    """
    view = maps.view("cross")
    names, families = labels_for(path, [*view.rows, *view.columns])
    rows, columns = names[: len(view.rows)], names[len(view.rows) :]
    size = (max(CELL_SIZE * len(columns), 2.5) + 3, max(CELL_SIZE * len(rows), 1.5) + 2)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(choice.of(view.weights).numpy(), vmin=0, cmap=COLOURS)
    label_axis(axes.xaxis, columns, families)
    label_axis(axes.yaxis, rows, families)
    axes.tick_params(length=0)
    axes.set(xlabel=view.column_title, ylabel=view.row_title)
    axes.set_title(str(choice), fontsize=10)
    _frame_links(axes, maps, pair.possible - pair.sure, "possible link", (0, (2, 1.5)))
    _frame_links(axes, maps, pair.sure, "sure link", "solid")
    figure.colorbar(image, ax=axes, label="attention weight")
    if axes.patches:
        figure.legend(loc="outside upper right", fontsize=8, ncols=2, frameon=False)
    write_figure(figure, path)


def _frame_links(axes: Axes, maps: AttentionMaps, links: Links, name: str, line: object) -> None:
    """Frame the cells of links; links to words that truncation removed are skipped."""
    columns, rows = (
        {word: place for place, word in enumerate(side.word_of) if word is not None}
        for side in (maps.source, maps.target)
    )
    label: str | None = name
    for source, target in sorted(links):
        if source in columns and target in rows:
            corner = (columns[source] - 0.42, rows[target] - 0.42)
            frame = Rectangle(
                corner, 0.84, 0.84, fill=False, edgecolor="C1", linewidth=1.8, linestyle=line
            )
            frame.set_label(label)
            label = None
            axes.add_patch(frame)
