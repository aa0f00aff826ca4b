"""The languages that a translation model was trained for, saved with its source tokenizer."""

import logging
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.tokenization_utils_base import TOKENIZER_CONFIG_FILE

from ..data.parsing import read_json_object
from ..tokenization import SOURCE_TOKENIZER_FOLDER
from .folders import find_file
from .loading import find_model

logger = logging.getLogger(__name__)

Languages = tuple[str, str]  # source and target, as codes of ISO 639: ("en", "de")
# MarianTokenizer has the same settings, so OPUS-MT models have them, too.
SETTINGS = ("source_lang", "target_lang")
DEFAULT_LANGUAGES: Languages = ("en", "de")


def set_languages(tokenizer: PreTrainedTokenizerBase, source_lang: str, target_lang: str) -> None:
    """Add a model's languages to the settings that its source tokenizer saves."""
    tokenizer.init_kwargs |= dict(zip(SETTINGS, (source_lang, target_lang), strict=True))


def saved_languages(path: str | Path, hub: bool = False, **location: Any) -> Languages | None:
    """The languages of a saved model, source and target; None if it was saved without them.

    path is as for find_model, or with hub a repository, whose revision, subfolder, ... are in
    location. If there is no such folder, the languages are None.
    """
    path = find_model(path)
    # Exported models keep the source's tokenizer in a folder.
    files = [Path(path, place, TOKENIZER_CONFIG_FILE) for place in ("", SOURCE_TOKENIZER_FOLDER)]
    cached = find_file(path, TOKENIZER_CONFIG_FILE, location) if hub else None
    for file in [cached] if cached else files:
        settings = read_json_object(file) if file.is_file() else {}
        source, target = (settings.get(name) for name in SETTINGS)
        if source and target:
            return str(source), str(target)
    return None


def choose_languages(
    source_lang: str | None, target_lang: str | None, model: str | None = None, hub: bool = False
) -> Languages:
    """Complete the languages that flags give with those of a saved model, or English and German."""
    saved = None if model is None else saved_languages(model, hub)
    source_default, target_default = saved or DEFAULT_LANGUAGES
    chosen = (source_lang or source_default, target_lang or target_default)
    if chosen[0] == chosen[1] and None in (source_lang, target_lang):
        raise ValueError(
            f"source_lang and target_lang are both {chosen[0]!r}. Pass both --source_lang and "
            "--target_lang."
        )
    if saved is not None and saved != chosen:
        message = "%s was saved as a model from %s to %s. The flags say from %s to %s."
        logger.warning(message, model, *saved, *chosen)
    return chosen
