"""Text that contains tags, as in subtitles and message catalogs."""

import re
from collections.abc import Callable

from ..translation.segments.marks import BlockBuilder

# A tag, a time in a cue, or the position of a subtitle, such as {\an8}.
TAG = re.compile(r"<(/?)([a-zA-Z][\w-]*+)[^<>]*+>|<\d[\d:.]*>|\{\\[^{}\n]*\}")


def add_tagged(
    builder: BlockBuilder,
    text: str,
    read: Callable[[str], str] = str,
    write: Callable[[str], str] = str,
    write_tag: Callable[[str], str] = str,
) -> None:
    """Add a text to a block: pairs of tags become marks, and other tags become atoms.

    read decodes text from the format; write and write_tag encode text and tags.
    """
    tags = [*TAG.finditer(text)]
    paired: set[re.Match[str]] = set()
    opened: list[re.Match[str]] = []
    for tag in tags:
        if tag[2] and not tag[1]:
            opened.append(tag)
        elif opened and tag[2] == opened[-1][2]:
            paired |= {opened.pop(), tag}
    here = 0
    for tag in tags:
        builder.add_text(read(text[here : tag.start()]), write)
        here, raw = tag.end(), write_tag(tag.group())
        if tag not in paired:
            builder.add_atom(raw)
        elif tag[1]:
            builder.close(tag[2], raw)
        else:
            builder.open(tag[2], raw)
    builder.add_text(read(text[here:]), write)
