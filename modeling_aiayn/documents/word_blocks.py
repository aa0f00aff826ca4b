"""Read the blocks of a Word document (.docx): paragraphs, which consist of formatted runs.

The most frequent format of a paragraph is its default. Runs of other formats become marks.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ..tokenization import has_words
from ..translation.segments.marks import BlockBuilder
from .html_blocks import escape_html, name_set
from .xml_blocks import Elements, XmlReader, child_of, range_of, tags, with_nested

# Elements that contain runs.
CONTAINERS = name_set("hyperlink ins moveTo smartTag fldSimple sdt customXml dir bdo")
# Elements in runs that end a sentence; that are special characters; that are dropped.
BREAKS = name_set("tab br cr ptab")
SIGNS = {"noBreakHyphen": "\u2011", "softHyphen": ""}
NEEDLESS = name_set("rPr lastRenderedPageBreak proofErr")
# Identifiers of editing sessions, which split runs of the same format.
SESSION = re.compile(r' w:rsid\w*="[^"]*"')
# Empty runs, which marks leave behind.
EMPTY_RUN = re.compile(
    r"<w:r(?: [^>]*)?>(?:<w:rPr>(?:(?!</w:rPr>).)*</w:rPr>)?"
    r'<w:t xml:space="preserve"></w:t></w:r>',
    re.DOTALL,
)


@dataclass(frozen=True)
class Item:
    """A part of a paragraph: a text, an atom, the start or the end of a mark, a break, a field."""

    kind: str
    raw: str
    run: str = ""  # the tags before the text of a run of this format
    text: str = ""  # or the type of a field character, or the name of a range


class WordReader(XmlReader):
    """Reads markup and blocks from a part of a document."""

    def __init__(self) -> None:
        super().__init__(Elements(texts=name_set("p")))

    def read_text(self, node: Any) -> None:
        """Read a paragraph."""
        if not has_words("".join(_texts(node))):
            self.parts += map(self.kept, node.childNodes)
            return
        items = _without_fields(self._items(node))
        sizes: Counter[str] = Counter()
        for item in items:
            sizes[item.run] += len(item.text) * (item.kind == "text")
        ((run, _),) = sizes.most_common(1)
        end = "</{0}t></{0}r>".format(node.tagName.removesuffix("p"))
        builder = BlockBuilder()
        for this_run, group in groupby(items, lambda item: item.run):
            if not this_run:
                for item in group:
                    _add_other(builder, item, f"{end}{item.raw}{run}")
                continue
            if this_run != run:
                builder.open("run", end + this_run)
            builder.add_text("".join(item.text for item in group), escape_html)
            if this_run != run:
                builder.close("run", end + run)
        self.parts += [_raw(child_of(node, "pPr")), self.ranges["start"], run]
        self.parts += [*builder.parts(escape_html), end, self.ranges["end"]]
        self.ranges = {"start": "", "end": ""}

    def _items(self, node: Any) -> Iterator[Item]:
        for child in node.childNodes:
            if child.localName == "r":
                yield from self._run(child)
            elif child.localName in CONTAINERS:
                inner = child_of(child, "sdtContent") or child
                raw = inner.toxml()
                before, _, after = child.toxml().partition(raw)
                opening, closing = tags(inner)
                yield Item("open", before + opening)
                yield from self._items(inner)
                yield Item("close", closing + after)
            elif range_name := range_of(child):
                kind = "open" if child.localName.endswith("Start") else "close"
                yield Item(kind, child.toxml(), text=range_name)
            elif child.localName not in ("pPr", *NEEDLESS):
                raw = self.kept(child)
                if not self.is_range(child, raw):
                    yield Item("atom", raw)

    def _run(self, node: Any) -> Iterator[Item]:
        opening, closing = tags(node)
        opening = SESSION.sub("", opening) + _raw(child_of(node, "rPr"))
        prefix = node.tagName.removesuffix("r")
        space = ' xml:space="preserve"' if prefix == "w:" else ""
        run = f"{opening}<{prefix}t{space}>"
        for piece in node.childNodes:
            if piece.localName == "t" or piece.localName in SIGNS:
                text = SIGNS.get(piece.localName, "".join(x.data for x in piece.childNodes))
                raw = f"{run}{escape_html(text)}</{prefix}t>{closing}"
                yield Item("text", raw, run, text)
            elif piece.localName not in NEEDLESS:
                raw = f"{opening}{self.kept(piece)}{closing}"
                kind = "field" if piece.localName == "fldChar" else "atom"
                text = piece.getAttribute("w:fldCharType") if kind == "field" else ""
                yield Item("break" if piece.localName in BREAKS else kind, raw, text=text)


def _add_other(builder: BlockBuilder, item: Item, raw: str) -> None:
    name = item.text or "container"
    if item.kind == "atom":
        builder.add_atom(raw)
    elif item.kind == "open":
        builder.open(name, raw)
    else:  # no open mark is named "break", so closing it ends the sentence
        builder.close(name if item.kind == "close" else item.kind, raw)


def _raw(properties: Any) -> str:
    return properties.toxml() if properties and properties.childNodes else ""


def _texts(node: Any) -> Iterator[str]:
    """Yield the texts of a paragraph's runs."""
    for child in node.childNodes:
        if child.localName == "t":
            yield from (text.data for text in child.childNodes)
        elif child.localName in ("r", "sdtContent", *CONTAINERS):
            yield from _texts(child)


def _without_fields(items: Iterator[Item]) -> list[Item]:
    """Turn each field that shows words into a mark, and every other field into an atom.

    If a field begins or ends in another paragraph, its field characters stay in their order.
    """
    found: list[Item] = []
    opened: list[tuple[int, int]] = []  # indices of the begin and of the shown text
    for item in items:
        found.append(item)
        if item.text == "begin" and item.kind == "field":
            opened.append((len(found) - 1, len(found)))
        elif item.kind == "field" and opened:
            begin, shown = opened.pop()
            if item.text == "separate":
                opened.append((begin, len(found)))
                continue
            inner = found[shown:-1]
            if has_words("".join(x.text for x in inner if x.kind == "text")):
                head = "".join(x.raw for x in found[begin:shown])
                found[begin:] = [Item("open", head), *inner, Item("close", item.raw)]
            else:
                found[begin:] = [Item("atom", "".join(x.raw for x in found[begin:]))]
    return found


def with_runs(text: str) -> str:
    """Finish a translated document: insert nested texts, and remove empty runs."""
    return EMPTY_RUN.sub("", with_nested(text))
