"""Subtitles: SubRip (.srt) and WebVTT (.vtt). A sentence may span lines and cues."""

import html
import re
from collections.abc import Callable, Iterator

from ..tokenization import has_words
from ..translation.segments.marks import Block, BlockBuilder, Escape
from .html_blocks import escape_html
from .tagged_text import add_tagged

TIME = r"(?:\d+:)?\d{1,2}:\d{2}(?:[.,] ?\d{1,3})?"
TIMES = re.compile(rf"^[ \t]*({TIME})[ \t]*-->[ \t]*({TIME})[^\n]*(?:\n|\Z)", re.MULTILINE)
LINE = re.compile(r"\S(?:[^\n]*\S)?")
# Markup around the whole text of a cue.
PLACE = re.compile(r"\s*(?:\{\\[^{}\n]*\}\s*)+")
AROUND = re.compile(r"\s*<([a-zA-Z]\w*)[^<>]*>(?:(?!</\1\b).)*(</\1\s*>)\s*", re.DOTALL)
# The end of a sentence, and the start of another: a speaker, a song or a sound.
END = re.compile(r"[.!?…:♪\])\"”»](?:</\w+>)*$")
OTHER = re.compile(r"(?:<[^<>]*>)*\s*[-\u2013\u2014♪\[(]")
DIALOGUE = re.compile(r"(?:<[^<>]*>)*\s*[-\u2013\u2014]")
# Join cues into one sentence: maximum pause in seconds, maximum length in characters.
PAUSE, LONGEST = 1.0, 300
MAX_AROUND = 5  # maximum number of tags around a whole cue
# Marks a break, to drop the spaces around it. No text contains this character.
BREAK = "\0"


def parse_srt(text: str) -> list[str | Block]:
    """Read SubRip: numbers and times are copied, and the text of cues is translated."""

    def body(text: str, is_last: bool) -> str:
        head, _, last = text.rstrip().rpartition("\n")
        return head if last.strip().isdigit() and not is_last else text

    return _parse(text, body, lambda text, _: text)


def parse_vtt(text: str) -> list[str | Block]:
    """Read WebVTT: notes, styles and times are copied, and the text of cues is translated."""

    def body(text: str, _: bool) -> str:
        return re.split(r"^\r?$", text, maxsplit=1, flags=re.MULTILINE)[0]

    return _parse(text, body, escape_html, html.unescape, escape_html)


def _parse(
    text: str,
    body: Callable[[str, bool], str],
    escape: Escape,
    *conversions: Callable[[str], str],
) -> list[str | Block]:
    parts: list[str | Block] = []
    builder, raw = BlockBuilder(), ""
    for before, line, goes_on in _lines(text, body):
        if goes_on:
            builder.add_break(BREAK + before)
            raw += before
        else:
            parts += builder.parts(escape) if has_words(builder.text) else [raw]
            parts.append(before)
            builder, raw = BlockBuilder(), ""
        add_tagged(builder, line, *conversions)
        raw += line
    return [part for part in parts if part]


def _lines(text: str, body: Callable[[str, bool], str]) -> Iterator[tuple[str, str, bool]]:
    """Yield the markup before a line, the line, and whether it continues a sentence."""
    here, size, last, ended = 0, 0, "", -2 * PAUSE
    cues = [*TIMES.finditer(text)]
    ends = [*(cue.start() for cue in cues), len(text)][1:]
    for cue, following in zip(cues, ends, strict=True):
        content = body(text[cue.end() : following], following == len(text))
        start, end = _inner(text, cue.end(), cue.end() + len(content))
        goes_on = bool(last) and 0 <= _seconds(cue[1]) - ended <= PAUSE and not END.search(last)
        for line in LINE.finditer(text, start, end):
            begins = OTHER if not goes_on or ended else DIALOGUE
            goes_on = goes_on and size < LONGEST and not begins.match(line.group())
            size = size * goes_on + len(line.group())
            yield text[here : line.start()], line.group(), goes_on
            here, last, goes_on, ended = line.end(), line.group(), True, 0.0
        ended = _seconds(cue[2])
    yield text[here:], "", False


def _inner(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the start and end of a cue's text, without markup around the whole text."""
    if place := PLACE.match(text, start, end):
        start = place.end()
    for _ in range(MAX_AROUND):
        if around := AROUND.fullmatch(text, start, end):
            start, end = text.index(">", start) + 1, around.start(2)
    return start, end


def _seconds(time: str) -> float:
    total = 0.0
    for part in time.replace(",", ".").replace(" ", "").split(":"):
        total = 60 * total + float(part)
    return total


def without_breaks(text: str) -> str:
    """Remove break characters, and spaces around them, from translated subtitles."""
    return re.sub(f"(?<! ) *{BREAK} *", "", text)
