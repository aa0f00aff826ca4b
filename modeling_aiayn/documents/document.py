"""A text of any format: its sentences, and the text with their translations."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from ..tokenization import replace_surrogates
from ..translation import Translator
from ..translation.segments.marks import Block
from ..translation.segments.placement import Attention
from ..translation.segments.rendering import translated_block
from ..translation.segments.whole_texts import sentences_of
from ..translation.segments.word_attention import word_attention
from .formats import FORMATS, parse_plain
from .html_blocks import Value, with_html_values

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Document:
    """A text of a format in `FORMATS`: markup that is copied, and blocks that are translated.

    Values of attributes come before them. language, an ISO 639 code, splits texts into sentences;
    target, if it is known, becomes the language that the text gives as its own.
    """

    text: str
    format_name: str
    language: str
    target: str | None = None

    @cached_property
    def parts(self) -> list[str | Block]:
        """Markup and sentences."""
        return self._sentences_of(FORMATS[self.format_name].parse(self.text))

    @cached_property
    def values(self) -> list[tuple[Value, list[str | Block]]]:
        """The values of attributes that are translated, and their sentences."""
        values = FORMATS[self.format_name].values(self.text)
        return [(value, self._sentences_of(parse_plain(value.text))) for value in values]

    def _sentences_of(self, parts: Iterable[str | Block]) -> list[str | Block]:
        found = ([x] if isinstance(x, str) else sentences_of(x, self.language) for x in parts)
        return [*chain.from_iterable(found)]

    @cached_property
    def sentences(self) -> list[str]:
        """The sentences to translate."""
        parts = chain(*(parts for value, parts in self.values if not value.is_language), self.parts)
        return [part.text for part in parts if isinstance(part, Block)]

    @property
    def has_marks(self) -> bool:
        """Whether there are marks, whose places in a translation are found by attention."""
        return any(isinstance(part, Block) and part.marks for part in self.parts)

    def translated(self, translations: Sequence[str], attention: Attention) -> str:
        """The text with the translations of its sentences; attention places the marks."""
        remaining = iter(translations)

        def written(parts: Iterable[str | Block]) -> str:
            return "".join(
                x if isinstance(x, str) else translated_block(x, next(remaining), attention)
                for x in parts
            )

        values = [
            value._replace(
                text=(self.target or value.text) if value.is_language else written(parts)
            )
            for value, parts in self.values
        ]
        changed = [new for new, (old, _) in zip(values, self.values, strict=True) if new != old]
        if not changed:
            return written(self.parts)
        text = with_html_values(self.text, changed)
        return written(self._sentences_of(FORMATS[self.format_name].parse(text)))


class DocumentLines:
    """Splits the lines of a text into sentences, and returns its lines with the translations.

    A text of a format with markup is kept in memory. prepare changes a sentence for translator.
    """

    def __init__(
        self,
        translator: Translator,
        lines: Iterable[str],
        format_name: str,
        language: str,
        prepare: Callable[[str], str],
    ) -> None:
        FORMATS[format_name].check_packages()
        self._lines, self._format_name = lines, format_name
        self._languages = (language, translator.codes[1])
        self._attention = lambda source, target: word_attention(translator, prepare(source), target)
        self._documents: deque[Document] = deque()
        self._translations: list[str] = []

    def __iter__(self) -> Iterator[str]:
        """The sentences; an empty one for a line or a document without sentences."""
        has_markup = FORMATS[self._format_name].has_markup
        lines = valid_lines(self._lines)
        for text in ["\n".join(lines)] if has_markup else lines:
            document = Document(text, self._format_name, *self._languages)
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


def valid_lines(lines: Iterable[str]) -> Iterator[str]:
    """Replace lone surrogates, which stand for invalid bytes, with a warning."""
    for number, line in enumerate(lines, start=1):
        valid = replace_surrogates(line)
        if valid != line:
            logger.warning("Line %d: replaced invalid Unicode with U+FFFD.", number)
        yield valid
