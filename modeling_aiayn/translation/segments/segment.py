"""Divide a plain text into text to translate and parts to copy."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from ...tokenization import clean_text
from .marks import BULLET, FIXED, FIXED_SIGN, Block, BlockBuilder, Mark
from .placement import Attention
from .rendering import translated_block


@dataclass(frozen=True)
class Segment:
    """A sentence, divided into a list bullet, text, and atoms such as addresses."""

    bullet: str
    block: Block

    @classmethod
    def of(cls, text: str) -> Self:
        """Divide a sentence."""
        text = clean_text(text)
        bullet = match.group() if (match := BULLET.match(text)) else ""
        text = text[len(bullet) :]
        if FIXED_SIGN.search(text) is None or FIXED.search(text) is None:
            return cls(bullet, Block(text, [], _as_it_is))
        builder = BlockBuilder()
        builder.add_text(text)
        return cls(bullet, builder.block(_as_it_is))

    @property
    def has_inner_marks(self) -> bool:
        """Whether attention is needed to place a part inside the translation."""
        return any(0 < mark.start < len(self.block.text) for mark in self.block.marks)

    def joined(self, translation: str, attention: Attention, terms: Sequence[Mark] = ()) -> str:
        """Return the translation with the copied parts and with terms, placed by attention."""
        marks = sorted([*self.block.marks, *terms], key=lambda mark: mark.start)
        if marks:
            translation = translated_block(replace(self.block, marks=marks), translation, attention)
        return f"{self.bullet}{translation}"


def _as_it_is(text: str, _: str) -> str:
    return text
