"""The languages that a translation model was trained for, saved with its source tokenizer."""

import logging
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from ..data.parsing import read_json_object
from ..tokenization import SOURCE_TOKENIZER_FOLDER
from .folders import find_file
from .loading import find_model

logger = logging.getLogger(__name__)

# The source and the target, as codes of ISO 639: ("en", "de").
Languages = tuple[str, str]
SETTINGS_FILE = "tokenizer_config.json"
# MarianTokenizer has the same settings, so OPUS-MT models have them, too.
SETTINGS = ("source_lang", "target_lang")
DEFAULT_LANGUAGES: Languages = ("en", "de")


def set_languages(tokenizer: PreTrainedTokenizerBase, source_lang: str, target_lang: str) -> None:
    """Add a model's languages to the settings that its source tokenizer saves."""
    tokenizer.init_kwargs |= dict(zip(SETTINGS, (source_lang, target_lang), strict=True))


def saved_languages(path: str | Path, hub: bool = False, **location: Any) -> Languages | None:
    """The languages of a saved model, source and target; None if it was saved without them.

    Args:
        path: A folder, the name of a bundled model, or with hub the name of a repository. If there
            is no such folder, the languages are None.
        hub: Whether path is a repository on the Hub.
        **location: The repository's revision, subfolder, ..., as from_pretrained takes them.
    """
    path = find_model(path)
    # Exported models keep the source's tokenizer in a folder.
    files = [Path(path, SETTINGS_FILE), Path(path, SOURCE_TOKENIZER_FOLDER, SETTINGS_FILE)]
    cached = find_file(path, SETTINGS_FILE, location) if hub else None
    for file in [cached] if cached else files:
        settings = read_json_object(file) if file.is_file() else {}
        source, target = (settings.get(name) for name in SETTINGS)
        if source and target:
            return str(source), str(target)
    return None


def choose_languages(
    source_lang: str | None, target_lang: str | None, model: str | None = None, hub: bool = False
) -> Languages:
    """Complete the languages that flags give with those of a saved model, or English and German.

    Args:
        source_lang: Source language, if it was given.
        target_lang: Target language, if it was given.
        model: A saved model, as for `saved_languages`. None: use English and German.
        hub: Whether the model is a repository on the Hub.

    Raises:
        ValueError: One language was given and the other one would be the same.
    """
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
