"""Split a text of any format into sentences, and write it with their translations."""

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from ..tokenization import replace_surrogates
from ..translation.segments.marks import Block
from ..translation.segments.placement import Attention
from ..translation.segments.rendering import translated_block
from ..translation.segments.whole_texts import SplitText, sentences_of
from .formats import FORMATS, parse_plain
from .html_blocks import Value, with_html_values

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Document:
    """A text of a format in `FORMATS`: markup that is copied, and blocks that are translated.

    The sentences of attribute values come first. language, an ISO 639 code, selects the rules for
    splitting sentences. target, if given, becomes the language that the text declares.
    """

    text: str
    format_name: str
    language: str
    target: str | None = None

    @cached_property
    def parts(self) -> list[str | Block]:
        """Markup, and a block for each sentence."""
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
        """Return the text with the translations of its sentences; attention places the marks."""
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
        text_format, parts = FORMATS[self.format_name], self.parts
        if changed:
            text = with_html_values(self.text, changed)
            parts = self._sentences_of(text_format.parse(text))
        return text_format.finish(written(parts))


class DocumentLines:
    """Splits the lines of a text into sentences, and returns its lines with the translations.

    language is an ISO 639 code.
    """

    def __init__(self, lines: Iterable[str], language: str) -> None:
        self._lines, self._language = lines, language
        self._splits: deque[SplitText] = deque()
        self._translations: list[str] = []

    def __iter__(self) -> Iterator[str]:
        """Yield the sentences, and "" for a line without sentences.

        Lone surrogates, which stand for invalid bytes, are replaced, with a warning.
        """
        for number, line in enumerate(self._lines, start=1):
            valid = replace_surrogates(line)
            if valid != line:
                logger.warning("Line %d: replaced invalid Unicode with U+FFFD.", number)
            split = SplitText.of(valid, self._language)
            self._splits.append(split)
            yield from split.sentences or [""]

    def add(self, translation: str) -> list[str]:
        """Add the next sentence's translation; return the line if it is complete now."""
        count = len(self._splits[0].sentences)
        self._translations.append(translation)
        if len(self._translations) < count:
            return []
        text = self._splits.popleft().joined(self._translations[:count])
        self._translations.clear()
        return [text]
