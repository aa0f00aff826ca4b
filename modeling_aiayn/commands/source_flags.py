"""Flags of the jobs that translate whole texts."""

from dataclasses import dataclass

from transformers.hf_argparser import HfArg

from ..languages import DEFAULT_LANGUAGES, saved_languages
from ..translation.letter_case import natural_case


@dataclass(kw_only=True)
class SourceFlags:
    """The language of the source, and its letters."""

    source_lang: str = HfArg(
        default=None,
        help="Language of the input, an ISO 639 code, by which texts are split into sentences. "
        "Default: the model's, or en.",
    )
    restore_case: bool = HfArg(
        default=False,
        help="Translate a sentence in capitals, or In Title Case, as if it had a capital at its "
        "beginning alone.",
    )

    def choose_source(self, model: str, hub: bool) -> None:
        """Set the language to that of a saved model, unless its flag was given."""
        saved = saved_languages(model, hub) or DEFAULT_LANGUAGES
        self.source_lang = self.source_lang or saved[0]

    def written(self, sentence: str) -> str:
        """A sentence as the model gets it."""
        return natural_case(sentence, self.source_lang) if self.restore_case else sentence
