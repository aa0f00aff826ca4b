"""Read gettext's message catalogs (.po, .pot) with polib."""

import re

from ..translation.segments.marks import Block, BlockBuilder
from .tagged_text import add_tagged
from .xml_blocks import FORMS

BLANKS = re.compile(r"([\n\t]+)")


def parse_po(text: str) -> list[str | Block]:
    """Read a catalog: messages without a translation are translated, and marked as fuzzy."""
    import polib

    catalogue = polib.pofile(f"\n{text}")  # polib would read one line as a file name
    messages: list[str] = []

    def place(message: str) -> str:
        messages.append(message)
        return f"\0{len(messages) - 1}\0"

    if catalogue.metadata:
        catalogue.metadata["Content-Type"] = "text/plain; charset=UTF-8"
    for entry in catalogue.untranslated_entries():
        if FORMS.search(entry.msgid):
            continue
        if entry.msgid_plural:
            forms = entry.msgstr_plural or {0: "", 1: ""}
            entry.msgstr_plural = {
                number: text or place(entry.msgid_plural if number else entry.msgid)
                for number, text in forms.items()
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
        if index % 2 or not part.strip():
            parts.append(escape(part))
        else:
            before, text, after = part.partition(part.strip())
            add_tagged(builder, text, write=escape, write_tag=escape)
            parts += [before, *builder.parts(lambda text, _: escape(text)), after]
    return parts
