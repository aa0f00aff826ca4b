"""Any text as a label of a picture: nothing is a formula, nothing is invisible, nothing a box."""

import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import matplotlib
from matplotlib.font_manager import FontEntry, fontManager, get_font, weight_dict

FAMILY = "DejaVu Sans"
# Between letters and emoji they join or part what is around them.
JOINERS = "\u200c\u200d"
# What a label of nothing but blanks is written with.
OPEN_BOX = "\N{OPEN BOX}"


def code_point(character: str) -> str:
    """A character's number as Unicode writes it: U+6F22."""
    return f"U+{ord(character):04X}"


def visible(text: str) -> str:
    """Text in which what cannot be seen, or moves what can, stands as a code point or a sign.

    These are control and format characters, line breaks, surrogates and code points of no
    character. XML has no place for most of them.

    Args:
        text: Any text.

    Returns:
        The same, on one line.
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
    """Labels that fonts of this machine have glyphs for, and which fonts.

    Args:
        texts: Any texts.

    Returns:
        The texts, `visible`, with a code point where no font has a glyph; and the families to draw
        them with, in the order in which to ask them.
    """
    shown = [visible(text) for text in texts]
    families, missing = _families(frozenset("".join(shown)))
    return (
        ["".join(code_point(c) if c in missing else c for c in text) for text in shown],
        list(families),
    )


@lru_cache(maxsize=64)
def _families(characters: frozenset[str]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Families that have the characters between them, as few as serve, and what none has."""
    families: list[str] = []
    missing = set(characters)
    faces: dict[str, FontEntry] = {}
    for entry in sorted(filter(_is_for_text, fontManager.ttflist), key=_rank):
        faces.setdefault(entry.name, entry)
    for name, face in faces.items():
        found = {character for character in missing if _has_glyph(face, character)}
        if found or name == FAMILY:
            families.append(name)
            missing -= found
        if not missing:
            break
    return tuple(families), frozenset(missing)


def _rank(entry: FontEntry) -> tuple[bool, str, bool, int, str]:
    """The default first, then by name; of a family first the face that its name alone asks for."""
    is_plain = entry.style == "normal" and entry.variant == "normal" and entry.stretch == "normal"
    weight = weight_dict[entry.weight] if isinstance(entry.weight, str) else entry.weight
    return entry.name != FAMILY, entry.name, not is_plain, abs(weight - 400), entry.fname


def _is_for_text(entry: FontEntry) -> bool:
    """Whether a font has letters in their places.

    matplotlib's other fonts are for formulas, and a font of last resort has boxes for letters.
    """
    is_for_formulas = Path(entry.fname).is_relative_to(matplotlib.get_data_path())
    is_box = entry.name.replace(" ", "").startswith("LastResort")
    return entry.name == FAMILY or not (is_for_formulas or is_box)


def _has_glyph(entry: FontEntry, character: str) -> bool:
    """Whether a font draws a character; the glyphs of colour fonts are often empty."""
    try:
        font = get_font(entry.fname)
    except (OSError, RuntimeError):  # gone since matplotlib listed it, or of a kind it cannot read
        return False
    if not font.get_char_index(ord(character)):
        return False
    if character.isspace() or character in JOINERS:
        return True
    font.load_char(ord(character))
    return len(font.get_path()[0]) > 0
