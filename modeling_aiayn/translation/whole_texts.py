"""Texts of several sentences: translated sentence by sentence, with their lines and spaces."""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from ..saved.loading import check_package
from ..tokenization import replace_surrogates

# sentencex 1.0.32 fails at "x. Y", a blank of two bytes, and ".", so it gets plain blanks.
OTHER_BLANKS = re.compile(r"[^\S\r\n]")


@dataclass(frozen=True)
class SplitText:
    """A text as sentences, and the blanks between them.

    Args:
        sentences: The sentences, without blanks around them.
        blanks: Blanks and line ends before each sentence, and those after the last.
    """

    sentences: Sequence[str]
    blanks: Sequence[str]

    @classmethod
    def of(cls, text: str, language: str) -> Self:
        """Split a text; a line end always ends a sentence.

        Args:
            text: The text.
            language: Its language, an ISO 639 code; the splitter knows abbreviations of many.
        """
        check_package("sentencex", "documents")
        from sentencex import segment

        sentences, blanks = [], [""]
        for line in text.splitlines(keepends=True):
            position = 0
            for piece in segment(language, OTHER_BLANKS.sub(" ", replace_surrogates(line))):
                part = line[position : position + len(piece)]
                position += len(piece)
                sentence = part.strip()
                if not sentence:
                    blanks[-1] += part
                    continue
                start = part.index(sentence)
                blanks[-1] += part[:start]
                sentences.append(sentence)
                blanks.append(part[start + len(sentence) :])
        return cls(sentences, blanks)

    def joined(self, translations: Sequence[str]) -> str:
        """The text with a translation in the place of each sentence."""
        parts = [self.blanks[0]]
        for translation, blank in zip(translations, self.blanks[1:], strict=True):
            parts += [translation, blank]
        return "".join(parts)


class WholeLines:
    """Splits lines into sentences, and joins the translations of each line again.

    Args:
        lines: The lines of a text.
        language: Its language, an ISO 639 code.
    """

    def __init__(self, lines: Iterable[str], language: str) -> None:
        self._lines, self._language = lines, language
        self._begun: deque[SplitText] = deque()
        self._translations: list[str] = []

    def __iter__(self) -> Iterator[str]:
        """The sentences of all lines; an empty one for a line without sentences."""
        for line in self._lines:
            split = SplitText.of(line, self._language)
            if not split.sentences:
                split = SplitText([""], [line, ""])
            self._begun.append(split)
            yield from split.sentences

    def add(self, translation: str) -> list[str]:
        """Take the translation of the next sentence; return its line if it is the line's last."""
        self._translations.append(translation)
        if len(self._translations) < len(self._begun[0].sentences):
            return []
        line = self._begun.popleft().joined(self._translations)
        self._translations.clear()
        return [line]
