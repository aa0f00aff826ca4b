"""Texts of several sentences: translated sentence by sentence, with their lines and spaces."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from ..loading import check_package


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
        check_package("sentencex", "server")
        from sentencex import segment

        sentences, blanks = [], [""]
        for line in text.splitlines(keepends=True):
            for part in segment(language, line):
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
