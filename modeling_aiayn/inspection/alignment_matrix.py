"""Attention over the source as an alignment matrix, beside links that were made by hand."""

import dataclasses
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ..tokenization import clean_text
from ..translation import Translator
from .alignment import AttentionChoice, Links, words_of_maps
from .alignment_scores import GoldPair
from .attention_weights import AttentionMaps, attention_maps
from .heat_maps import COLOURS, TOKEN, label_columns, label_rows
from .pictures import labels_for, write_figure
from .token_words import Tokens


def word_attention_maps(translator: Translator, pair: GoldPair) -> AttentionMaps:
    """Where a model looks while it says a pair's target, between the pair's own words.

    Args:
        translator: A model and its tokenizers.
        pair: The pair.

    Returns:
        The maps; what is in no word, as `</s>`, is by itself.

    Raises:
        ValueError: A word is not in its sentence.
    """
    source, target = clean_text(pair.source), clean_text(pair.target)
    maps = attention_maps(translator, source, target)
    of_source, of_target = words_of_maps(translator, source, target, pair.words, maps)
    words = [list(side) for side in pair.words]
    return dataclasses.replace(
        maps,
        source=Tokens(maps.source_tokens, of_source, words[0]),
        target=Tokens(maps.target_tokens, of_target, words[1]),
        inputs=Tokens(maps.input_tokens, [None, *of_target[:-1]], words[1]),
    ).merged()


def draw_alignment_matrix(
    maps: AttentionMaps, choice: AttentionChoice, pair: GoldPair, path: str | Path
) -> None:
    """Draw attention between words, with the links that a pair should have.

    Args:
        maps: The pair's `word_attention_maps`.
        choice: Which layer and head.
        pair: Words and links: sure ones are framed whole, possible ones in dashes.
        path: The PNG or SVG to write.

    Raises:
        OSError: The file cannot be written.
        ValueError: There is no such layer or head, or the file's ending is another.
    """
    view = maps.view("cross")
    names, families = labels_for(path, [*view.rows, *view.columns])
    rows, columns = names[: len(view.rows)], names[len(view.rows) :]
    size = (max(TOKEN * len(columns), 2.5) + 3, max(TOKEN * len(rows), 1.5) + 2)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(choice.of(view.weights).numpy(), vmin=0, cmap=COLOURS)
    label_columns(axes, columns, families)
    label_rows(axes, rows, families)
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
    """Frame the cells of links whose words are there: a source that is cut has lost some."""
    columns, rows = (
        {word: place for place, word in enumerate(side.word_of) if word is not None}
        for side in (maps.source, maps.target)
        if side is not None
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
