"""Split texts into sentences, and join translations with the same lines and spaces."""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Self

from sentencex import segment

from ...tokenization import replace_surrogates
from .marks import BULLET, FIXED, Block, Mark, parts_of

# sentencex 1.0.32 fails on "x. Y", a two-byte space, and ".", so it gets plain spaces.
OTHER_BLANKS = re.compile(r"[^\S\r\n]")
ENDS = re.compile("[.!?]")


@dataclass(frozen=True)
class SplitText:
    """A text as sentences, with the whitespace before each and after the last."""

    sentences: Sequence[str]
    blanks: Sequence[str]

    @classmethod
    def of(cls, text: str, language: str) -> Self:
        """Split a text; a line end always ends a sentence. language is an ISO 639 code."""
        sentences, blanks = [], [""]
        for line in text.splitlines(keepends=True):
            position = 0
            # No sentence ends within an address or a path.
            plain = FIXED.sub(lambda found: ENDS.sub("x", found.group()), replace_surrogates(line))
            for piece in segment(language, OTHER_BLANKS.sub(" ", plain)):
                part = line[position : position + len(piece)]
                position += len(piece)
                sentence = part.strip()
                if sentence:
                    start, _, end = part.partition(sentence)
                    blanks[-1] += start
                    sentences.append(sentence)
                    blanks.append(end)
                else:
                    blanks[-1] += part
        return cls(sentences, blanks)

    def joined(self, translations: Sequence[str]) -> str:
        """Return the text with each sentence replaced by its translation."""
        parts = [self.blanks[0]]
        for translation, blank in zip(translations, self.blanks[1:], strict=True):
            parts += [translation, blank]
        return "".join(parts)


def paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Join wrapped lines into paragraphs, which end at a blank line or before a list item."""
    joined = ""
    for line in lines:
        if joined and (not line.strip() or BULLET.match(line)):
            yield joined
            joined = ""
        if line.strip():
            joined = f"{joined} {line.strip()}" if joined else line.rstrip()
        else:
            yield line
    if joined:
        yield joined


def sentences_of(block: Block, language: str) -> Iterator[str | Block]:
    """Yield the sentences of a block, and the whitespace and tags between them."""
    split = SplitText.of(block.text, language)
    pieces = zip(split.sentences, split.blanks[1:], strict=True)
    places = accumulate((len(x) + len(y) for x, y in pieces), initial=len(split.blanks[0]))
    for place in [*places][1:-1]:
        _cut(block.marks, place)
    return parts_of(block.text, 0, len(block.text), block.marks, block.escape)


def _cut(marks: list[Mark], place: int) -> None:
    """Split marks at a position; a mark around it becomes tags between sentences."""
    index = bisect_left(marks, place, key=lambda mark: mark.start)
    if index and marks[index - 1].end > place:
        marks[index - 1].is_split = True
        _cut(marks[index - 1].inner, place)
    elif index < len(marks) and marks[index].is_break and marks[index].start == place:
        marks[index].is_split = True
    else:
        marks.insert(index, Mark(place, place, "", is_split=True))
