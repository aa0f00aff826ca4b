"""Flags of the jobs that translate whole texts."""

import logging
from dataclasses import dataclass

from transformers.hf_argparser import HfArg

from ..saved.languages import DEFAULT_LANGUAGES, saved_languages
from ..translation.letter_case import natural_case

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class SourceFlags:
    """The language of the source, and its letters."""

    source_lang: str = HfArg(
        default=None,
        help="Language of the input (an ISO 639 code): its rules split whole texts into sentences. "
        "Default: the model's, or en.",
    )
    restore_case: bool = HfArg(
        default=False,
        help="Translate a sentence IN CAPITALS or In Title Case as if only its first letter were a "
        "capital.",
    )

    def set_source_lang(self, model: str, hub: bool) -> None:
        """Set source_lang to the saved model's language, unless --source_lang was passed."""
        saved = saved_languages(model, hub)
        if saved is not None and self.source_lang not in (None, saved[0]):
            logger.warning(
                "%s was saved as a model from %s to %s. --source_lang %s does not change that.",
                *(model, *saved, self.source_lang),
            )
        self.source_lang = self.source_lang or (saved or DEFAULT_LANGUAGES)[0]

    def prepare_sentence(self, sentence: str) -> str:
        """Return a sentence as the model gets it, with --restore_case in natural case."""
        return natural_case(sentence, self.source_lang) if self.restore_case else sentence
