"""Pictures as PNG or SVG files, with labels of any text.

No label is read as a formula, and no character of a label is invisible or drawn as an empty box.
"""

import math
import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import matplotlib
from matplotlib.axis import Axis, XAxis
from matplotlib.figure import Figure
from matplotlib.font_manager import FontEntry, fontManager, get_font, weight_dict

from ..saved.whole_files import new_file

PICTURE_ENDINGS = (".png", ".svg")
DOTS_PER_INCH = 120
# Larger pictures cannot be opened everywhere, so their resolution is reduced.
MAX_PIXELS = 60_000_000
MAX_PIXELS_OF_SIDE = 30_000
# matplotlib takes minutes to lay out hundreds of labels, so only some are drawn.
MAX_LABELS = 100
# Characters of a label.
MAX_LENGTH = 30
DEFAULT_FONT = "DejaVu Sans"
# Invisible characters that join or separate letters and emoji.
JOINERS = "\u200c\u200d"
# Drawn for each space in a label of nothing but spaces.
OPEN_BOX = "\N{OPEN BOX}"


def check_ending(path: str | Path, endings: Iterable[str] = PICTURE_ENDINGS) -> str:
    """Check that a file has one of the `endings`, and return its ending in lower case."""
    ending = Path(path).suffix.lower()
    endings = list(endings)
    if ending not in endings:
        raise ValueError(
            f"The name of a picture must end in {' or '.join(endings)}, got {str(path)!r}."
        )
    return ending


def labels_for(path: str | Path, texts: Iterable[str]) -> tuple[list[str], list[str]]:
    """Prepare labels of a picture, and choose the font families to draw them with.

    Long labels are cut: a web address would take more room than the picture. An SVG keeps the text,
    and its viewer chooses the fonts. A PNG uses this machine's fonts, and the code point of a
    character that no font has.
    """
    texts = [each if len(each) <= MAX_LENGTH else f"{each[: MAX_LENGTH - 1]}…" for each in texts]
    labels, families = drawable(texts)
    if check_ending(path) == ".svg":
        return [visible(text) for text in texts], [*families, "sans-serif"]
    return labels, families


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
    """Write a figure as PNG or SVG; the same figure always gives the same file.

    Raises:
        OSError: The file cannot be written.
        ValueError: The path has another ending.
    """
    ending = check_ending(path)
    width, height = figure.get_size_inches()
    dots = min(
        DOTS_PER_INCH,
        MAX_PIXELS_OF_SIDE / max(width, height),
        math.sqrt(MAX_PIXELS / (width * height)),
    )
    with (
        new_file(path) as unfinished,
        matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "modeling_aiayn"}),
        warnings.catch_warnings(),
    ):
        if ending == ".svg":
            # The viewer draws the text, so a missing glyph here does not matter.
            warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from", UserWarning)
        metadata = {"Date": None} if ending == ".svg" else None
        figure.savefig(
            unfinished,
            dpi=dots,
            format=ending[1:],
            metadata=metadata,
            bbox_inches="tight",
            pad_inches=0.1,
        )


def code_point(character: str) -> str:
    """Return a character's number as Unicode writes it: U+6F22."""
    return f"U+{ord(character):04X}"


def visible(text: str) -> str:
    """Replace invisible characters by their code points, and a text of spaces by open boxes.

    Invisible are control and format characters, line breaks, surrogates and unassigned code
    points. XML does not allow most of them.
    """
    if text and all(unicodedata.category(character) == "Zs" for character in text):
        return OPEN_BOX * len(text)
    return "".join(
        code_point(character)
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
        and character not in JOINERS
        else character
        for character in text
    )


def drawable(texts: Iterable[str]) -> tuple[list[str], list[str]]:
    """Prepare labels for this machine's fonts, and choose the families that matplotlib should try.

    Invisible characters, and characters that no font has, are replaced by their code points.
    """
    shown = [visible(text) for text in texts]
    families, missing = _families_for(frozenset("".join(shown)))
    return (
        ["".join(code_point(c) if c in missing else c for c in text) for text in shown],
        list(families),
    )


@lru_cache(maxsize=64)
def _families_for(characters: frozenset[str]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Choose font families for the characters, and return the characters that no font has."""
    families: list[str] = []
    missing = set(characters)
    faces: dict[str, FontEntry] = {}
    for entry in sorted(filter(_is_text_font, fontManager.ttflist), key=_font_rank):
        faces.setdefault(entry.name, entry)
    for name, face in faces.items():
        drawable = {character for character in missing if _has_glyph(face, character)}
        if drawable or name == DEFAULT_FONT:
            families.append(name)
            missing -= drawable
        if not missing:
            break
    return tuple(families), frozenset(missing)


def _font_rank(entry: FontEntry) -> tuple[bool, str, bool, int, str]:
    """Sort the default font first, then by name; in a family the plain face first."""
    is_plain = entry.style == "normal" and entry.variant == "normal" and entry.stretch == "normal"
    weight = weight_dict[entry.weight] if isinstance(entry.weight, str) else entry.weight
    return entry.name != DEFAULT_FONT, entry.name, not is_plain, abs(weight - 400), entry.fname


def _is_text_font(entry: FontEntry) -> bool:
    """Exclude matplotlib's formula fonts and fonts that draw boxes for all letters."""
    is_formula_font = Path(entry.fname).is_relative_to(matplotlib.get_data_path())
    draws_boxes = entry.name.replace(" ", "").startswith("LastResort")
    return entry.name == DEFAULT_FONT or not (is_formula_font or draws_boxes)


def _has_glyph(entry: FontEntry, character: str) -> bool:
    try:
        font = get_font(entry.fname)
    except (OSError, RuntimeError):  # deleted since matplotlib listed it, or not readable
        return False
    if not font.get_char_index(ord(character)):
        return False
    if character.isspace() or character in JOINERS:
        return True
    # Colour fonts often contain empty glyphs.
    font.load_char(ord(character))
    return len(font.get_path()[0]) > 0
