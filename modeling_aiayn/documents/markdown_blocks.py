"""Read the blocks of a Markdown document: CommonMark by markdown-it-py, and GitHub's tables.

markdown-it-py does not report the positions of marks in a line, so wrapped rules record them.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, groupby
from typing import Any

from ..tokenization import has_words
from ..translation.segments.marks import Block, BlockBuilder, Escape
from .html_blocks import END_TAG, FIXED, INLINE, START_TAG, VOID, is_fixed_tag, parse_html

logger = logging.getLogger(__name__)

# Front matter in YAML or TOML. A --- before a blank line is a horizontal rule.
FRONT_MATTER = re.compile(
    r"(?:---[ \t]*\n(?![ \t]*\n).*?\n(?:---|\.\.\.)|\+\+\+[ \t]*\n.*?\n\+\+\+)[ \t]*(?:\n|\Z)",
    re.DOTALL,
)
# The checkbox of a task, or [!NOTE].
LABEL = re.compile(r"\[[ xX]\][ \t]+|\[![A-Za-z]+\](?=\n|\Z)")
FOOTNOTE = re.compile(r"\[\^[^\]\s]+\]:")
# markdown-it strips these characters from lines. Python would also strip others, such as U+0085.
BLANKS = " \t\n"
# Markup to escape, anywhere in a line or at its beginning.
SPECIAL = re.compile(
    r"[\\`*\[\]]|(?<![^\W_])_|_(?![^\W_])|<(?=[A-Za-z/!?])|^~|~(?=~|$)|&(?=#?\w+;)"
)
LINE_START = re.compile(r"(?:[-+]|\#{1,6})(?=\s|$)|>|=+\s*$|-+\s*$")
NUMBER = re.compile(r"(\d{1,9})([.)])(?=\s|$)")
# Rules whose tokens are single delimiters, such as * or ~~.
DELIMITER_RULES = ("emphasis", "strikethrough")

Rule = Callable[[Any, bool], bool]


def escape_markdown(text: str, following: str = "") -> str:
    """Escape text so that Markdown finds no markup in it; `following` is the markup after it."""
    if text.endswith("!") and following.startswith("["):  # this would be a picture
        return escape_markdown(text[:-1]) + r"\!"
    text = SPECIAL.sub(r"\\\g<0>", text)
    text = NUMBER.sub(r"\1\\\2", text, count=1) if NUMBER.match(text) else text
    return f"\\{text}" if LINE_START.match(text) else text


def escape_cell(text: str, following: str = "") -> str:
    """Escape text for a table cell: as `escape_markdown` does, and | as well."""
    return escape_markdown(text, following).replace("|", r"\|")


def _noting(rule: Rule, name: str) -> Rule:
    def note(state: Any, silent: bool) -> bool:
        start, count = state.pos, len(state.tokens)
        is_link = name == "link" and state.src[start] == "["
        label_end = state.md.helpers.parseLinkLabel(state, start, True) if is_link else 0
        is_match = rule(state, silent)
        if is_match and not silent:
            new = [token for token in state.tokens[count:] if "span" not in token.meta]
            if name in DELIMITER_RULES:
                _note_delimiters(new, start, state.pos)
            else:
                _note_marks(new, start, label_end, state.pos)
        return is_match

    return note


def _note_delimiters(tokens: list[Any], start: int, end: int) -> None:
    for token in reversed(tokens):
        first = end - len(token.content)
        if first < start:  # the text before the run
            return
        token.meta["span"], end = (first, end), first


def _note_marks(tokens: list[Any], start: int, label_end: int, end: int) -> None:
    for token in tokens:
        if token.type == "link_open" and label_end:
            token.meta["span"] = (start, start + 1)
        elif token.type == "link_close" and label_end:
            token.meta |= {"span": (label_end, end), "label": (start + 1, label_end)}
        elif token.type != "text":
            token.meta["span"] = (start, end)


def _reference(state: Any, first: int, last: int, silent: bool) -> bool:
    """CommonMark's rule for reference definitions; it would also match footnotes of one word."""
    from markdown_it.rules_block import reference

    is_footnote = FOOTNOTE.match(state.src, state.bMarks[first] + state.tShift[first])
    return not is_footnote and reference(state, first, last, silent)


def _parser() -> Any:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    parser.core.ruler.disable("text_join")
    parser.block.ruler.at("reference", _reference)
    names = parser.get_active_rules()["inline"]
    for name, rule in zip(names, parser.inline.ruler.getRules(""), strict=True):
        parser.inline.ruler.at(name, _noting(rule, name))
    return parser


def _place(lines: list[tuple[int, int]], position: int) -> int:
    inner, outer = next(line for line in reversed(lines) if line[0] <= position)
    return outer + position - inner


def _end_of_escaped(content: str, document: str, begin: int) -> int:
    """Return the end of a cell with escaped bars, or begin if the cell is not found."""
    escaped = content.strip(BLANKS).replace("|", r"\|")
    place = document.find(escaped, begin)
    return begin if place < 0 else place + len(escaped)


def _located(
    content: str, document: str, starts: list[int], first: int, begin: int, is_cell: bool
) -> list[tuple[int, int]]:
    """Find the lines of a paragraph, heading or cell: their positions in the content and document.

    It begins in the document's line `first`, after `begin`. A missing line: LookupError.
    """
    lines, position = [], 0
    for number, line in enumerate(content.split("\n"), first):
        stripped = line.strip(BLANKS)
        start = max(begin, starts[number])
        whole = document[start : starts[number + 1]].rstrip(BLANKS)
        # Only another cell, or the # that may close a heading, can follow this text in its line.
        texts = () if is_cell else (whole, whole.rstrip("#").rstrip(BLANKS))
        ends = [len(text) for text in texts if text.endswith(stripped)]
        place = ends[0] - len(stripped) if ends else whole.find(stripped)
        if place < 0:
            raise LookupError(stripped)
        lines.append((position + len(line) - len(line.lstrip(BLANKS)), start + place))
        position += len(line) + 1
    return lines


class _Segments:
    """Divides the text of a block at hard line breaks, and collects the marks of each part."""

    def __init__(self, content: str, escape: Escape) -> None:
        self.content, self.escape, self._builder = content, escape, BlockBuilder()
        label = LABEL.match(content)
        self._begin = label.end() if label else 0
        self._fixed: tuple[str, int] | None = None  # name and start of an HTML element to copy

    def read(self, tokens: list[Any]) -> Iterator[tuple[int, int, list[str | Block]]]:
        """Yield the start and end of each part in the content, and its blocks."""
        first = self._begin
        for token in _joined_texts(_without_addresses(tokens)):
            span = token.meta.get("span")
            if first and token.content.startswith(self.content[:first]):  # skip the label
                token.content = token.content[first:]
                first = 0
            if self._is_break(token) and self._fixed is None:
                yield from self._part(span[0])
                self._builder, self._begin = BlockBuilder(), span[1]
            elif token.type == "html_inline" or self._fixed is not None:
                self._take_html(token, span)
            else:
                self._take(token, span)
        yield from self._part(len(self.content))

    def _is_break(self, token: Any) -> bool:
        """Whether a token ends a line: two spaces, <br>, or the line end before a footnote."""
        if token.type == "softbreak":
            return FOOTNOTE.match(self.content, token.meta["span"][1]) is not None
        tag = START_TAG.match(token.content) if token.type == "html_inline" else None
        return token.type == "hardbreak" or (tag is not None and tag[1].lower() == "br")

    def _part(self, end: int) -> Iterator[tuple[int, int, list[str | Block]]]:
        if self._fixed is not None:  # its end tag is missing
            self._builder.add_atom(self.content[self._fixed[1] : end])
            self._fixed = None
        if has_words(self._builder.text):
            part = self.content[self._begin : end]
            begin = self._begin + len(part) - len(part.lstrip(BLANKS))
            yield begin, len(self.content[:end].rstrip(BLANKS)), self._builder.parts(self.escape)

    def _take(self, token: Any, span: tuple[int, int] | None) -> None:
        raw = self.content[slice(*span)] if span else ""
        name = token.type.rpartition("_")[0]
        if token.type == "softbreak":
            self._builder.add_text(" ")
        elif token.nesting and token.markup != "autolink":
            if raw in ("]", "][]"):  # the link's text is also its reference
                label = self.content[slice(*token.meta["label"])].replace("\n", " ")
                raw = f"][{label}]"
            mark = self._builder.open if token.nesting == 1 else self._builder.close
            mark(name, token.markup or raw)
        elif token.type in ("text", "text_special"):
            has_escapes = token.meta.get("has_escapes", False)
            self._builder.add_text(token.content, self._written if has_escapes else str)
        else:  # code, a picture, an address
            self._builder.add_atom(raw)

    def _written(self, fixed: str) -> str:
        # An address or a reference to a footnote, from a text with escapes.
        return fixed if fixed.startswith("[^") else self.escape(fixed, "")

    def _take_html(self, token: Any, span: tuple[int, int] | None) -> None:
        raw = token.content if token.type == "html_inline" else ""
        end, start = END_TAG.match(raw), START_TAG.match(raw)
        tag = end or start
        name = tag[1].lower() if tag else ""
        if self._fixed is not None:
            if end and name == self._fixed[0] and span:
                self._builder.add_atom(self.content[self._fixed[1] : span[1]])
                self._fixed = None
        elif end and name in INLINE:
            self._builder.close(name, raw)
        elif raw.endswith("/>") and name in FIXED:
            self._builder.add_atom(raw)
        elif start and span and (name in FIXED or is_fixed_tag(raw)):
            self._fixed = (name, span[0])
        elif start and name in INLINE and name not in VOID:
            self._builder.open(name, raw)
        else:
            self._builder.add_atom(raw)


def _without_addresses(tokens: list[Any]) -> Iterator[Any]:
    """Yield the tokens, but only the first token of each <address>."""
    is_address = False
    for token in tokens:
        if token.markup == "autolink":
            is_address = token.nesting == 1
            if is_address:
                yield token
        elif not is_address:
            yield token


def _joined_texts(tokens: Iterable[Any]) -> Iterator[Any]:
    r"""Yield the tokens, with adjacent texts joined: an address may contain \_ or &amp;."""

    def is_text(token: Any) -> bool:  # an escaped bracket stays alone: [^ would begin a footnote
        return token.type in ("text", "text_special") and token.content != "["

    for are_texts, group in groupby(tokens, is_text):
        if not are_texts:
            yield from group
            continue
        first, *others = group
        first.content += "".join(token.content for token in others)
        if others:
            first.meta["has_escapes"] = True
        yield first


def parse_markdown(text: str) -> list[str | Block]:
    """Read a Markdown document: markup, and blocks of text with their marks.

    Code, link addresses, pictures, front matter and reference definitions are copied.
    Lines of a paragraph become one line.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")
    front = FRONT_MATTER.match(text)
    here = front.end() if front else 0
    body = text[here:]
    parts: list[str | Block] = [text[:here]]
    starts = list(accumulate((len(line) + 1 for line in body.split("\n")), initial=0))
    cursor, previous, quotes = 0, "", 0
    searched = 0  # search for cells after this position
    for token in _parser().parse(body):
        quotes += token.nesting if token.type.startswith("blockquote") else 0
        is_cell = previous in ("th_open", "td_open")
        previous = token.type
        if token.type == "html_block" and quotes:
            logger.warning("HTML in a quotation is not translated: %r.", token.content[:60])
        elif token.type == "html_block":
            first, last = (min(starts[line], len(body)) for line in token.map)
            parts += [body[cursor:first], *parse_html(body[first:last])]
            cursor = last
        if token.type != "inline" or not token.content:
            continue
        try:
            begin = max(cursor, searched) if is_cell else cursor
            lines = _located(token.content, body, starts, token.map[0], begin, is_cell)
            searched = _place(lines, len(token.content))
        except LookupError:
            searched = _end_of_escaped(token.content, body, max(cursor, searched))
            logger.warning("A part of the document is not translated: %r.", token.content[:60])
            continue
        escape = escape_cell if is_cell else escape_markdown
        for first, last, blocks in _Segments(token.content, escape).read(token.children):
            begin, end = _place(lines, first), _place(lines, last - 1) + 1
            parts += [body[cursor:begin], *blocks]
            cursor = end
    return [part for part in (*parts, body[cursor:]) if part]
