"""A document with markup: its sentences, and the document with their translations."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import Self

from ..translation.whole_texts import SplitText
from .html_blocks import parse_html
from .markdown_blocks import parse_markdown
from .marks import Block, Mark
from .placement import Attention, Place, PlacedSentence

# Opening markup of emphasis in Markdown.
EMPHASIS = ("*", "**", "_", "__", "~", "~~")
PARSERS = {"html": parse_html, "markdown": parse_markdown}


@dataclass(frozen=True)
class Document:
    """A document: markup that is copied, and text that is translated.

    Args:
        parts: Markup, which stays as it is, and blocks.
        split: The sentences of each block.
    """

    parts: Sequence[str | Block]
    split: Sequence[SplitText]

    @classmethod
    def of(cls, text: str, kind: str, language: str) -> Self:
        """Read a document.

        Args:
            text: The document.
            kind: "html" or "markdown".
            language: Its language, an ISO 639 code, by which it is split into sentences.
        """
        parts = PARSERS[kind](text)
        blocks = [part for part in parts if isinstance(part, Block)]
        return cls(parts, [SplitText.of(block.text, language) for block in blocks])

    @cached_property
    def sentences(self) -> list[str]:
        """The sentences to translate."""
        return list(chain.from_iterable(split.sentences for split in self.split))

    def translated(self, translations: Sequence[str], attention: Attention) -> str:
        """The document with the translations of its sentences.

        Args:
            translations: A translation of each sentence.
            attention: Returns the attention between the words of a translation and of its source,
                from which the marks get their places.
        """
        rest, splits = iter(translations), iter(self.split)
        written = []
        for part in self.parts:
            if isinstance(part, str):
                written.append(part)
                continue
            split = next(splits)
            own = [next(rest) for _ in split.sentences]
            written.append(_translated_block(part, split, own, attention))
        return "".join(written)


def _translated_block(
    block: Block, split: SplitText, translations: list[str], attention: Attention
) -> str:
    """A block with its marks around the translations."""
    places: dict[int, Place] = {}
    starts = _starts(split, split.sentences)
    bounds = [0, *starts[1:], len(block.text) + 1]
    target = split.joined(translations)
    for index, (translation, shift) in enumerate(
        zip(translations, _starts(split, translations), strict=True)
    ):
        start = starts[index]
        sentence = PlacedSentence(
            block.text,
            start,
            start + len(split.sentences[index]),
            range(bounds[index], bounds[index + 1]),
            translation,
            attention,
        )
        for key, place in sentence.places(block.marks).items():
            first = places.get(key)
            begin = first.start if first else place.start + shift
            places[key] = Place(begin, place.end + shift, place.before, place.after)
    return "".join(_rendered(block, block.marks, places, target, 0, len(target)))


def _starts(split: SplitText, sentences: Sequence[str]) -> list[int]:
    """Where sentences begin in their joined text."""
    lengths = (
        len(sentence) + len(blank)
        for sentence, blank in zip(sentences, split.blanks[1:], strict=True)
    )
    return list(accumulate(lengths, initial=len(split.blanks[0])))[:-1]


def _rendered(
    block: Block, marks: Sequence[Mark], places: dict[int, Place], text: str, start: int, end: int
) -> Iterator[str]:
    """The parts of a translated text from start to end, with the marks in it."""
    here, before = start, ""
    for mark in sorted(marks, key=lambda mark: (places[id(mark)].start, places[id(mark)].end)):
        place = places[id(mark)]
        inner = "".join(_rendered(block, mark.inner, places, text, place.start, place.end))
        # Markdown reads delimiters without text between them, such as ****, as text.
        if mark.opening in EMPHASIS and not inner.strip():
            continue
        raw = f"{place.before}{mark.opening}{inner}{mark.closing}"
        if here == place.start and before.endswith("`") and raw.startswith("`"):
            raw = f" {raw}"  # two spans of code without a blank would be one
        yield block.escape(text[here : place.start], raw)
        yield raw + place.after
        here, before = place.end, raw + place.after
    yield block.escape(text[here:end], "")


class DocumentLines:
    """Splits the lines of a document into sentences, and returns its lines with the translations.

    Args:
        lines: The lines of the document; all of it is kept in memory.
        kind: "html" or "markdown".
        language: Its language, an ISO 639 code.
        attention: Returns the attention between the words of a translation and of its source.
    """

    def __init__(
        self, lines: Iterable[str], kind: str, language: str, attention: Attention
    ) -> None:
        self._lines, self._kind, self._language = lines, kind, language
        self._attention = attention
        self._document: Document | None = None
        self._translations: list[str] = []

    def __iter__(self) -> Iterator[str]:
        """The sentences of the document; an empty one if it has none."""
        document = Document.of("\n".join(self._lines), self._kind, self._language)
        self._document = document
        yield from document.sentences or [""]

    def add(self, translation: str) -> list[str]:
        """Take the translation of the next sentence; after the last one, return all lines."""
        self._translations.append(translation)
        document = self._document
        if document is None or len(self._translations) < len(document.sentences):
            return []
        return document.translated(self._translations, self._attention).split("\n")
