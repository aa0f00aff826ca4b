"""Texts of several sentences: translated sentence by sentence, with their lines and spaces."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from sentencex import segment

from ...tokenization import replace_surrogates

# sentencex 1.0.32 fails at "x. Y", a blank of two bytes, and ".", so it gets plain blanks.
OTHER_BLANKS = re.compile(r"[^\S\r\n]")


@dataclass(frozen=True)
class SplitText:
    """A text as sentences, and the blanks and line ends before each and after the last."""

    sentences: Sequence[str]
    blanks: Sequence[str]

    @classmethod
    def of(cls, text: str, language: str) -> Self:
        """Split a text; a line end always ends a sentence. language is an ISO 639 code."""
        sentences, blanks = [], [""]
        for line in text.splitlines(keepends=True):
            position = 0
            for piece in segment(language, OTHER_BLANKS.sub(" ", replace_surrogates(line))):
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
        """The text with a translation in the place of each sentence."""
        parts = [self.blanks[0]]
        for translation, blank in zip(translations, self.blanks[1:], strict=True):
            parts += [translation, blank]
        return "".join(parts)
