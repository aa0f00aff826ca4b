"""Message catalogues of gettext (.po, .pot), by polib."""

import re

from ..translation.segments.marks import Block, BlockBuilder
from .tagged_text import add_tagged

BLANKS = re.compile(r"(^\s+|\s*[\n\t]\s*|\s+$)")


def parse_po(text: str) -> list[str | Block]:
    """Read a catalogue: messages without a translation are translated, and marked as fuzzy."""
    import polib

    catalogue = polib.pofile(f"\n{text}")  # a text with a line end is no name of a file
    messages: list[str] = []

    def place(message: str) -> str:
        messages.append(message)
        return f"\0{len(messages) - 1}\0"

    for entry in catalogue.untranslated_entries():
        if entry.msgid_plural:
            entry.msgstr_plural = {
                number: place(entry.msgid_plural if number else entry.msgid)
                for number in entry.msgstr_plural or (0, 1)
            }
        else:
            entry.msgstr = place(entry.msgid)
        entry.flags.append("fuzzy")
    parts: list[str | Block] = []
    for index, part in enumerate(re.split("\0(\\d+)\0", str(catalogue))):
        parts += _blocks(messages[int(part)]) if index % 2 else [part]
    return parts


def _blocks(message: str) -> list[str | Block]:
    from polib import escape

    parts: list[str | Block] = []
    for index, part in enumerate(BLANKS.split(message)):
        builder = BlockBuilder()
        if index % 2:
            parts.append(escape(part))
        else:
            add_tagged(builder, part, write=escape, write_tag=escape)
            parts += builder.parts(lambda text, _: escape(text))
    return parts
