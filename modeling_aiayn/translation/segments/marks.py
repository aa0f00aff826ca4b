"""A text with its inline markup: tags around words, and parts that are copied, such as code."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice, takewhile

BLANK_CHARACTERS = " \t\r\n\f"
BLANKS = re.compile(f"[{BLANK_CHARACTERS}]+")
# First characters of emoji.
EMOJI = "[\u2600-\u27bf\u2b50\u2b55\u231a\u231b\U0001f000-\U0001faff]"
# Units of numbers that stay as they are.
UNITS = "km/h|[kcm]?m[²³]?|[km]?g|[kMGT]i?B|k?Wh?|[kMG]?Hz|°[CF]|[mc]?l"
# Text that stays as it is.
FIXED = re.compile(
    r"(?:https?://|www\.)(?:\([^\s()]*\)|[^\s<>\"()])*(?:\([^\s()]*\)|[^\s<>\"().,;:!?\]'])"
    r"|(?<![\w.+-])[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+"  # e-mail
    r"|\[\^[^\]\s]{1,99}\]:?"  # references to footnotes
    r"|\{\{[^{}\n]*\}\}|\$?\{[^{}\s]*\}|%\(\w+\)[a-z]|%(?:\d+\$)?[sdif]\b"  # placeholders
    r"|(?<![\w@])@\w+|(?<![\w#&])#\w*[^\W\d]\w*"  # user names and hashtags
    r"|(?<![\w/.<])(?:~|\.{1,2})?(?:/[\w.-]*\w){2,}/?|\b[A-Za-z]:\\\S*\w"  # file paths
    r"|(?<![\w./-])[\w.-]*\w(?:/[\w.-]+)+\.\w{1,5}\b"
    rf"|(?:{EMOJI}[\u200d\ufe0f\U0001f3fb-\U0001f3ff]*)+"
    rf"|(?<![\w.,])(?<!\d[\u2013-])[+\u2212\u2013-]?\d+(?:[.,\u2013-]\d+)*\s?(?:{UNITS})(?!\w)"
)
# Each of these texts has one of these signs. Looking for them alone takes a tenth of the time.
FIXED_SIGN = re.compile(rf"[/@^{{%#\\\d]|www\.|{EMOJI}")
# The beginning of a list item.
BULLET = re.compile(r"\s*(?:[-\u2013\u2014*\u2022\u25aa\u2023\u25e6]|\(?\d{1,3}[.)])\s+(?=\S)")
# Superscripts that stay as they are: exponents and footnote numbers.
NUMBERS = re.compile(r"[\d+\u2212\u2013-]+|\[\d+\]|\(\d+\)|[*†‡]")
# Maximum nesting of marks; deeper marks become atoms.
MAX_DEPTH = 50
# Marks inside sentences. Other adjacent marks separate sentences, such as entries of a menu.
STYLES = frozenset(
    {"b", "i", "em", "strong", "s", "u", "del", "ins", "sub", "sup", "small", "big", "mark", "font"}
)
# Text that joins two atoms into one, such as the + between two keys.
JOINT = re.compile(" ?[+/\u2013-] ?")
POSSESSIVE = re.compile("['\u2019]s\\b")
CLOSING = tuple(".,;:!?)]}»”")

Escape = Callable[[str, str], str]


@dataclass(eq=False)
class Mark:
    """Markup around text[start:end], or an atom: markup without text, such as a picture.

    An atom has all of its markup in opening; has_space_before and has_space_after describe the
    spaces beside it. inner are the nested marks, in the order of the text.
    """

    start: int
    end: int
    opening: str
    closing: str = ""
    inner: list["Mark"] = field(default_factory=list)
    is_atom: bool = False
    has_space_before: bool = False
    has_space_after: bool = False
    written: str | None = None  # text that replaces the marked text, for a glossary
    name: str = ""
    is_split: bool = False  # whether its tags stand between blocks
    is_break: bool = False  # whether it divides the text into parts, none of which may be empty

    @property
    def raw(self) -> str:
        """All markup of an atom."""
        return self.opening + "".join(mark.raw for mark in self.inner) + self.closing


@dataclass(frozen=True)
class Block:
    """A paragraph, heading, item or cell: text that is translated, and its marks, in order.

    In formats with markup, each run of whitespace becomes one space. escape takes translated text
    and the markup that follows, and escapes the text so that it is not read as markup.
    """

    text: str
    marks: list[Mark]
    escape: Escape


class BlockBuilder:
    """Collects the text and the markup of a block."""

    def __init__(self) -> None:
        self.text = ""
        self.marks: list[Mark] = []
        self._open: list[Mark] = []

    @property
    def _siblings(self) -> list[Mark]:
        return self._open[-1].inner if self._open else self.marks

    def add_text(self, text: str, write: Callable[[str], str] = str) -> None:
        """Add text; parts that stay as they are become atoms, after `write` has escaped them."""
        position = 0
        for match in FIXED.finditer(text):
            self._add_plain(text[position : match.start()])
            self.add_atom(write(match.group()))
            position = match.end()
        self._add_plain(text[position:])

    def _add_plain(self, text: str) -> None:
        text = BLANKS.sub(" ", text)
        if not text:
            return
        end = len(self.text)
        siblings = reversed(self._siblings)
        before = [*takewhile(lambda mark: mark.is_atom and mark.start == end, siblings)]
        if before and (possessive := POSSESSIVE.match(text)):
            before[0].opening += possessive.group()
            text = text[possessive.end() :]
        if before:
            before[0].has_space_after |= text.startswith(" ")
        is_first = not self.text and not any(mark.is_split for mark in self.marks)
        if text.startswith(" ") and (is_first or self.text.endswith(" ")):
            text = text[1:]
        elif before and self.text.endswith(" ") and text.startswith(CLOSING):
            # Without its atom, "Use `x`." becomes "Use.".
            self.text = self.text[:-1]
            for atom in before:
                atom.start = atom.end = len(self.text)
        self.text += text

    def add_atom(self, raw: str) -> None:
        """Add markup without text to translate, such as a picture or code."""
        before = self._siblings[-1] if self._siblings else None
        if before and before.is_atom and JOINT.fullmatch(self.text, before.start):
            blank = " " * before.has_space_after
            before.opening += f"{blank}{self.text[before.start :].lstrip()}{raw}"
            self.text = self.text[: before.start]
            before.has_space_after = False
            return
        mark = Mark(len(self.text), len(self.text), raw)
        self._make_atom(mark)
        self._siblings.append(mark)

    def add_break(self, raw: str) -> None:
        """Add a divider, such as a line end. The parts before and after it keep their order."""
        self._add_plain(" ")
        place = len(self.text)
        self._siblings.append(Mark(place, place, raw, is_break=True))

    def open(self, name: str, raw: str) -> None:
        """Begin a mark."""
        if len(self._open) == MAX_DEPTH:
            self.add_atom(raw)
            return
        mark = Mark(len(self.text), len(self.text), raw, name=name)
        self._siblings.append(mark)
        self._open.append(mark)

    def close(self, name: str, raw: str) -> None:
        """End the last mark of this name."""
        if all(name != mark.name for mark in self._open):  # it began in an earlier block
            self._divide(len(self._siblings), Mark(len(self.text), len(self.text), raw))
            return
        while (mark := self._open.pop()).name != name:  # that mark ends in a later block
            mark.end = len(self.text)
            self._divide(len(self._siblings) - 1, self._siblings.pop())
        number = self.text[mark.start :]
        if name == "sup" and NUMBERS.fullmatch(number):
            around = [mark]  # and nested marks around the whole number, such as a link
            while (inner := around[-1].inner) and inner[0].end - inner[0].start == len(number):
                around.append(inner[0])
            if not around[-1].inner:
                ends = "".join(x.closing for x in reversed(around))
                mark.opening = "".join(x.opening for x in around) + number + ends
                mark.inner, self.text = [], self.text[: mark.start]
        mark.end, mark.closing = len(self.text), raw
        siblings = self._siblings
        before = next((x for x in islice(reversed(siblings), 1, None) if not x.is_atom), None)
        if not self.text[mark.start : mark.end].strip():
            self._make_atom(mark)
        elif (
            before
            and before.end == mark.start
            and self.text[mark.start - 1] != " "
            and self.text[mark.start].isalnum()
            and STYLES.isdisjoint((before.name, name))
        ):
            self._divide(len(siblings) - 1, Mark(mark.start, mark.start, ""))

    def _divide(self, index: int, mark: Mark) -> None:
        """Make the tags of a mark, and of the open marks around it, stand between blocks."""
        self._siblings.insert(index, mark)
        for divided in (mark, *self._open):
            divided.is_split = True

    def _make_atom(self, mark: Mark) -> None:
        """Turn a mark without text into one atom."""
        mark.opening, mark.inner, mark.closing = mark.raw, [], ""
        mark.end, mark.is_atom = mark.start, True
        mark.has_space_before = self.text.endswith(" ", 0, mark.start)
        mark.has_space_after = self.text.startswith(" ", mark.start)

    def block(self, escape: Escape) -> Block:
        """Return the block, without spaces around its text. All marks must be closed."""
        return _block(self.text, 0, len(self.text), self.marks, escape)

    def parts(self, escape: Escape) -> list[str | Block]:
        """Return blocks, and between them the tags whose other half is in another block."""
        end = len(self.text.rstrip(BLANK_CHARACTERS))
        for mark in self._open:
            mark.end, mark.is_split = end, True
        return [*parts_of(self.text, 0, end, self.marks, escape)]


def parts_of(
    text: str, start: int, end: int, marks: list[Mark], escape: Escape
) -> Iterator[str | Block]:
    """Yield the blocks of a text, and the whitespace and tags between them."""
    group: list[Mark] = []
    for mark in [*marks, Mark(end, end, "", is_split=True)]:
        if not mark.is_split:
            group.append(mark)
            continue
        part = text[start : mark.start]
        block = _block(text, start, mark.start, group, escape)
        if block.text.strip():
            yield part[: len(part) - len(part.lstrip())]
            yield block
            yield part[len(part.rstrip()) :]
        else:
            yield part + "".join(atom.raw for atom in block.marks)
        yield mark.opening
        if mark.inner or mark.end > mark.start:
            yield from parts_of(text, mark.start, mark.end, mark.inner, escape)
        yield mark.closing
        start, group = mark.end, []


def _block(text: str, start: int, end: int, marks: list[Mark], escape: Escape) -> Block:
    part = text[start:end]
    start += len(part) - len(part.lstrip())
    end = max(start, end - len(part) + len(part.rstrip()))
    return Block(text[start:end], _stripped(marks, text, start, end, start), escape)


def _stripped(marks: list[Mark], text: str, first: int, last: int, origin: int) -> list[Mark]:
    """Limit marks to [first, last], strip spaces at their ends, and count from origin.

    Adjacent atoms become one.
    """
    kept: list[Mark] = []
    for mark in marks:
        mark.start, mark.end = (max(first, min(place, last)) for place in (mark.start, mark.end))
        before = kept[-1] if kept else None
        if not mark.is_atom:
            part = text[mark.start : mark.end]
            mark.start += len(part) - len(part.lstrip())
            mark.end -= len(part) - len(part.rstrip())
            mark.inner = _stripped(mark.inner, text, mark.start, mark.end, origin)
        mark.start, mark.end = mark.start - origin, mark.end - origin
        is_near = before and before.start == mark.start and not before.has_space_after
        if before and mark.is_atom and before.is_atom and is_near:
            before.opening += mark.opening
            before.has_space_after = mark.has_space_after
            continue
        kept.append(mark)
    return kept
