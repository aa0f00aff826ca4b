"""Read the blocks of an HTML document with the standard library's parser."""

import html
import re
from collections.abc import Iterable
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any, NamedTuple, cast

from ..tokenization import has_words
from ..translation.segments.marks import BLANK_CHARACTERS, Block, BlockBuilder


class Value(NamedTuple):
    """The value of an attribute, and its position in the document, quotes included."""

    start: int
    end: int
    text: str
    is_language: bool = False  # the lang of the root


def name_set(names: str) -> frozenset[str]:
    """The set of the names in a text."""
    return frozenset(names.split())


# Inline elements; all others end a block.
INLINE = name_set("""
    a abbr acronym b bdi bdo big cite data del dfn em font i ins label mark q rp rt ruby s small
    span strike strong sub sup time tt u wbr img input button code kbd samp var svg math object
    video audio canvas
""")
# Elements that are copied with their content.
FIXED = name_set("""
    code kbd samp var svg math script style pre textarea template object video audio canvas select
""")
# Elements without an end tag.
VOID = name_set("area base br col embed hr img input link meta param source track wbr")
# Elements whose end tag may be missing, and elements that then end them; any block ends <p>.
ENDED_BY = {
    **dict.fromkeys(("dt", "dd"), name_set("dt dd")),
    **dict.fromkeys(("td", "th"), name_set("td th tr")),
    **{"li": name_set("li"), "tr": name_set("tr"), "option": name_set("option optgroup")},
}
START_TAG = re.compile(r"<([a-zA-Z][^\s/>]*)")
END_TAG = re.compile(r"</\s*([a-zA-Z][^\s/>]*)")
# An attribute with its value; the attributes whose values are translated.
ATTRIBUTE = re.compile(r"""\s([^\s=>"'/]+)\s*=\s*("[^"]*"|'[^']*'|[^\s"'>]+)""")
READ = name_set("alt title placeholder aria-label")
DESCRIPTION = re.compile(r"<meta\s[^>]*\bname\s*=\s*[\"']?description\b", re.IGNORECASE)
COMMENT = re.compile(r"<!--(?:-?>|.*?(?:--!?>|\Z))", re.DOTALL)


def escape_html(text: str, _: str = "") -> str:
    """Escape text so that HTML does not read it as markup."""
    return html.escape(text, quote=False)


def _handler(kind: str) -> Any:
    return lambda events, _: events._add(kind)


class _Events(HTMLParser):
    """Collects the positions where tags, text and other parts begin."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=False)
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self.events: list[tuple[int, str, str]] = []
        # Decode references later: after an invalid one, such as "&#", the parser reads only text.
        text = text.replace("&", ".")
        # After the last ">", no tag is complete, but Python 3.11 would search for its end from each
        # "<", which takes seconds for 20 kB. Only a comment may begin or continue there.
        end = text.rfind(">") + 1
        self.feed(text[:end])
        self.close()
        open_comment = COMMENT.match(text, self.events[-1][0]) if self.events else None
        if open_comment is None or open_comment.end() <= end:
            comment = COMMENT.search(text, end)
            start = comment.start() if comment else len(text)
            self.events += [(end, "text", "")] if end < start else []
            self.events += [(start, "other", "")] if comment else []

    def _add(self, kind: str, name: str = "") -> None:
        line, column = self.getpos()
        self.events.append((self._line_starts[line - 1] + column, kind, name))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        is_fixed = values.get("translate", "").lower() == "no"
        is_fixed |= "notranslate" in values.get("class", "").split()
        self._add("void" if tag in VOID else "fixed" if is_fixed else "start", tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        # Only foreign elements can be self-closing; "<b/>" begins bold text.
        if tag in ("svg", "math"):
            self._add("void", tag)
        else:
            self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        self._add("end", tag)

    def parse_comment(self, i: int, report: bool = True) -> int:  # noqa: ARG002
        """Read a comment as browsers do: "<!-->", "--!>" and the end of the document end it."""
        self.handle_comment("")
        return cast(re.Match[str], COMMENT.match(self.rawdata, i)).end()

    def parse_html_declaration(self, i: int) -> int:
        """Read "<![x" as a comment, as browsers do; Python 3.11 asserts that x is known."""
        try:
            return super().parse_html_declaration(i)
        except AssertionError:
            return self.parse_bogus_comment(i)

    handle_data = _handler("text")
    handle_comment = handle_decl = handle_pi = unknown_decl = _handler("other")


def is_fixed_tag(raw: str) -> bool:
    """Whether a tag begins an element with translate="no" or the class notranslate."""
    return any(kind == "fixed" for _, kind, _ in _Events(raw).events)


class _Fixed:
    """An element that is copied with its content."""

    def __init__(self, name: str, begin: int) -> None:
        self.name, self.begin = name, begin
        self._open: list[str] = []

    def ends_before(self, kind: str, name: str) -> bool:
        """Whether the element has no end tag and ends before the next part."""
        is_block = kind not in ("text", "other") and name not in INLINE
        if kind == "end":  # end of the parent element; HTML ignores a stray end tag
            needs_no_end = self.name == "p" or self.name in ENDED_BY
            return needs_no_end and is_block and name not in (self.name, "p", *self._open)
        return not self._open and (
            (self.name == "p" and is_block) or name in ENDED_BY.get(self.name, ())
        )

    def ends_with(self, kind: str, name: str) -> bool:
        """Process the next part; return whether it is the end tag."""
        if kind in ("start", "fixed"):
            self._open.append(name)
        elif kind == "end" and name in self._open:
            while self._open.pop() != name:
                pass
        elif kind == "end":
            return name == self.name
        return False


class _Reader:
    """Turns the events of a document into blocks."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.parts: list[str | Block] = []
        self._builder = BlockBuilder()
        self._begin = 0  # first character of the block
        self._fixed: _Fixed | None = None
        self.values: list[Value] = []

    def read(self) -> list[str | Block]:
        events = [*_Events(self.text).events, (len(self.text), "end", "")]
        for (start, kind, name), (end, _, _) in pairwise(events):
            if self._fixed is not None and self._fixed.ends_before(kind, name):
                self._end_fixed(self._fixed, start)
            if self._fixed is None:
                self._take(kind, name, start, end)
            elif self._fixed.ends_with(kind, name):
                self._end_fixed(self._fixed, end)
        end = len(self.text)
        self._flush(end if self._fixed is None else self._fixed.begin, end)
        return self.parts

    def _add_values(self, name: str, raw: str, start: int) -> None:
        is_root = name == "html"
        names = {"content"} if DESCRIPTION.match(raw) else {"lang"} if is_root else READ
        for found in ATTRIBUTE.finditer(raw):
            if found[1].lower() in names:
                is_quoted = found[2][0] in "\"'"
                text = html.unescape(found[2][1:-1] if is_quoted else found[2])
                self.values.append(
                    Value(start + found.start(2), start + found.end(2), text, is_root)
                )

    def _take(self, kind: str, name: str, start: int, end: int) -> None:
        raw = self.text[start:end]
        if kind in ("start", "void"):
            self._add_values(name, raw, start)
        if kind == "text":
            self._builder.add_text(html.unescape(raw), escape_html)
        elif kind == "fixed" or (kind == "start" and name in FIXED):
            self._fixed = _Fixed(name, start)
        elif kind == "other" or (kind == "void" and name in INLINE):
            self._builder.add_atom(raw)
        elif name not in INLINE:
            self._flush(start, end)
        elif kind == "start":
            self._builder.open(name, raw)
        else:
            self._builder.close(name, raw)

    def _end_fixed(self, fixed: _Fixed, end: int) -> None:
        self._fixed = None
        if fixed.name in INLINE:
            self._builder.add_atom(self.text[fixed.begin : end])
        else:
            self._flush(fixed.begin, end)

    def _flush(self, start: int, end: int) -> None:
        """End the block at `start`; the next one begins at `end`."""
        raw = self.text[self._begin : start]
        if has_words(self._builder.text):
            before, _, after = raw.partition(raw.strip(BLANK_CHARACTERS))
            self.parts += [before, *self._builder.parts(escape_html), after]
        else:
            self.parts.append(raw)
        self.parts.append(self.text[start:end])
        self._builder, self._begin = BlockBuilder(), end


def parse_html(text: str) -> list[str | Block]:
    """Read an HTML document or a part of one: markup, and blocks of text with their marks.

    Scripts, styles, code, preformatted text and elements with translate="no" are copied.
    """
    return [part for part in _Reader(text).read() if part]


def html_values(text: str) -> list[Value]:
    """Return the values of attributes that are translated, and the root's language."""
    reader = _Reader(text)
    reader.read()
    return [value for value in reader.values if has_words(value.text)]


def with_html_values(text: str, values: Iterable[Value]) -> str:
    """Replace values in a document."""
    for value in sorted(values, reverse=True):
        text = f'{text[: value.start]}"{html.escape(value.text)}"{text[value.end :]}'
    return text
