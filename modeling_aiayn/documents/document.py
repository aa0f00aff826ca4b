"""A text of any format: its sentences, and the text with their translations."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Self

from torch import Tensor

from ..tokenization import replace_surrogates
from ..translation import Translator
from ..translation.segments.marks import Block
from ..translation.segments.placement import Attention
from ..translation.segments.rendering import translated_block
from ..translation.segments.whole_texts import SplitText
from ..translation.segments.word_attention import word_attention
from .formats import FORMATS

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Document:
    """A text: markup that is copied, and blocks that are translated, each split into sentences."""

    parts: Sequence[str | Block]
    splits: Sequence[SplitText]

    @classmethod
    def of(cls, text: str, format_name: str, language: str) -> Self:
        """Read a text of a format in `FORMATS`; language, an ISO 639 code, splits it."""
        parts = FORMATS[format_name].parse(text)
        blocks = [part for part in parts if isinstance(part, Block)]
        return cls(parts, [SplitText.of(block.text, language) for block in blocks])

    @cached_property
    def sentences(self) -> list[str]:
        """The sentences to translate."""
        return list(chain.from_iterable(split.sentences for split in self.splits))

    @property
    def has_marks(self) -> bool:
        """Whether there are marks, whose places in a translation are found by attention."""
        return any(isinstance(part, Block) and part.marks for part in self.parts)

    def translated(self, translations: Sequence[str], attention: Attention) -> str:
        """The text with the translations of its sentences; attention places the marks."""
        remaining, splits = iter(translations), iter(self.splits)
        written = []
        for part in self.parts:
            if isinstance(part, str):
                written.append(part)
                continue
            split = next(splits)
            of_block = [next(remaining) for _ in split.sentences]
            written.append(translated_block(part, split, of_block, attention))
        return "".join(written)


class DocumentLines:
    """Splits the lines of a text into sentences, and returns its lines with the translations.

    A text of a format with markup is kept in memory. The arguments are those of `Document`.
    """

    def __init__(
        self, lines: Iterable[str], format_name: str, language: str, attention: Attention
    ) -> None:
        self._lines, self._format_name, self._language = lines, format_name, language
        self._attention = attention
        self._documents: deque[Document] = deque()
        self._translations: list[str] = []

    def __iter__(self) -> Iterator[str]:
        """The sentences; an empty one for a line or a document without sentences."""
        has_markup = FORMATS[self._format_name].has_markup
        lines = valid_lines(self._lines)
        for text in ["\n".join(lines)] if has_markup else lines:
            document = Document.of(text, self._format_name, self._language)
            self._documents.append(document)
            yield from document.sentences or [""]

    def add(self, translation: str) -> list[str]:
        """Take the next sentence's translation; return the lines that are complete with it."""
        self._translations.append(translation)
        if len(self._translations) < len(self._documents[0].sentences):
            return []
        text = self._documents.popleft().translated(self._translations, self._attention)
        self._translations.clear()
        return text.split("\n")


def document_lines(
    translator: Translator,
    lines: Iterable[str],
    format_name: str,
    language: str,
    prepare: Callable[[str], str],
) -> DocumentLines:
    """The sentences of a text that a translator will translate; prepare changes each for it."""
    FORMATS[format_name].check_packages()

    def attention(source: str, target: str) -> Tensor:
        return word_attention(translator, prepare(source), target)

    return DocumentLines(lines, format_name, language, attention)


def valid_lines(lines: Iterable[str]) -> Iterator[str]:
    """Replace lone surrogates, which stand for invalid bytes, with a warning."""
    for number, line in enumerate(lines, start=1):
        valid = replace_surrogates(line)
        if valid != line:
            logger.warning("Line %d: replaced invalid Unicode with U+FFFD.", number)
        yield valid
