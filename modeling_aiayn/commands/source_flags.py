"""Flags of the jobs that translate whole texts."""

from dataclasses import dataclass

from transformers.hf_argparser import HfArg

from ..translation.letter_case import natural_case


@dataclass(kw_only=True)
class SourceFlags:
    """The language of the source, and its letters."""

    source_lang: str = HfArg(
        default="en",
        help="Language of the input, an ISO 639 code, by which texts are split into sentences.",
    )
    restore_case: bool = HfArg(
        default=False,
        help="Translate a sentence in capitals, or In Title Case, as if it had a capital at its "
        "beginning alone.",
    )

    def written(self, sentence: str) -> str:
        """A sentence as the model gets it."""
        return natural_case(sentence, self.source_lang) if self.restore_case else sentence
