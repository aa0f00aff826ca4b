"""Write pictures as PNG or SVG files, with labels in any script."""

import math
import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axis import Axis, XAxis
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, fontManager, get_font
from matplotlib.ft2font import FT2Font

from ..saved.whole_files import new_file

PICTURE_ENDINGS = (".png", ".svg")
DOTS_PER_INCH = 120
# Larger pictures cannot be opened everywhere, so their resolution is reduced.
MAX_PIXELS = 60_000_000
MAX_PIXELS_OF_SIDE = 30_000
# matplotlib takes minutes to lay out hundreds of labels, so only some are drawn.
MAX_LABELS = 100
# Maximum number of characters of a label.
MAX_LENGTH = 30
# Font families that together cover most languages; the installed ones are used. Color fonts are
# left out, because matplotlib cannot draw their glyphs.
SCRIPTS = (
    "Arabic Armenian Bengali Devanagari Ethiopic Georgian Gujarati Gurmukhi Hebrew Kannada Khmer "
    "Lao Malayalam Myanmar Oriya Sinhala Tamil Telugu Thai Tifinagh"
)
FONT_FAMILIES = (
    "DejaVu Sans",
    "Noto Sans",
    *(f"Noto Sans {script}" for script in [*SCRIPTS.split(), "Ol Chiki", "CJK SC", "Symbols"]),
    *("Noto Serif Tibetan", "Noto Emoji", "Symbola"),
    *("Segoe UI", "Microsoft YaHei", "Yu Gothic", "Malgun Gothic", "Nirmala UI", "Leelawadee UI"),
    *("Arial Unicode MS", "PingFang SC", "Hiragino Sans", "Apple SD Gothic Neo"),
)
# Invisible characters that join or separate letters and emoji.
JOINERS = "\u200c\u200d"
# Drawn for each space in a label that has only spaces.
OPEN_BOX = "\N{OPEN BOX}"


def check_ending(path: str | Path, endings: Sequence[str] = PICTURE_ENDINGS) -> str:
    """Check that a file has one of the `endings`, and return its ending in lower case."""
    ending = Path(path).suffix.lower()
    if ending not in endings:
        raise ValueError(
            f"The name of a picture must end in {' or '.join(endings)}, got {str(path)!r}."
        )
    return ending


def labels_for(path: str | Path, texts: Iterable[str]) -> tuple[list[str], list[str]]:
    """Prepare labels of a picture, and choose the font families to draw them with.

    Long labels are truncated. The viewer of an SVG chooses the fonts. A PNG uses this machine's
    fonts, and shows the code point of a character that is in none of them.
    """
    shown = [
        visible(text if len(text) <= MAX_LENGTH else f"{text[: MAX_LENGTH - 1]}…") for text in texts
    ]
    fonts = installed_fonts()
    if check_ending(path) == ".svg":
        return shown, [*fonts, "sans-serif"]

    def drawn(character: str) -> str:
        is_known = any(font.get_char_index(ord(character)) for font in fonts.values())
        return character if is_known else code_point(character)

    return ["".join(map(drawn, text)) for text in shown], list(fonts)


@cache
def installed_fonts() -> dict[str, FT2Font]:
    """The fonts of `FONT_FAMILIES` on this machine, by family."""
    installed = fontManager.get_font_names()
    return {name: get_font(findfont(name)) for name in FONT_FAMILIES if name in installed}


def label_axis(
    axis: Axis, names: Sequence[str], families: Sequence[str], font_size: float = 10.0
) -> None:
    """Label a map's columns or rows, without reading dollar signs as formulas."""
    step = 1 + (len(names) - 1) // MAX_LABELS
    axis.set_ticks(
        range(0, len(names), step),
        names[::step],
        rotation=90 if isinstance(axis, XAxis) else 0,
        parse_math=False,
        family=list(families),
        fontsize=font_size,
    )


def write_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure as PNG or SVG; the same figure always gives the same file."""
    ending = check_ending(path)
    width, height = figure.get_size_inches()
    side, area = MAX_PIXELS_OF_SIDE / max(width, height), MAX_PIXELS / (width * height)
    dots = min(DOTS_PER_INCH, side, math.sqrt(area))
    with (
        new_file(path) as unfinished,
        matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "modeling_aiayn"}),
        warnings.catch_warnings(),
    ):
        options: dict[str, Any] = {"dpi": dots, "bbox_inches": "tight", "pad_inches": 0.1}
        if ending == ".svg":
            options["metadata"] = {"Date": None}
            # The viewer draws the text, so a missing glyph here does not matter.
            warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from", UserWarning)
        figure.savefig(unfinished, format=ending[1:], **options)


def code_point(character: str) -> str:
    """Return a character's number as Unicode writes it: U+6F22."""
    return f"U+{ord(character):04X}"


def visible(text: str) -> str:
    """Replace invisible characters with their code points, and a text of spaces with open boxes."""
    categories = [unicodedata.category(character) for character in text]
    if set(categories) == {"Zs"}:
        return OPEN_BOX * len(text)
    # Control, format, unassigned and similar characters, and line breaks.
    is_hidden = [category[0] == "C" or category in ("Zl", "Zp") for category in categories]
    return "".join(
        code_point(character) if hidden and character not in JOINERS else character
        for character, hidden in zip(text, is_hidden, strict=True)
    )
