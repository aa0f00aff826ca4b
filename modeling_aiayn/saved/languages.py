"""The languages that a translation model was trained for, saved with its source tokenizer."""

import difflib
import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.tokenization_utils_base import TOKENIZER_CONFIG_FILE

from ..data.parsing import read_json_object
from ..tokenization import SOURCE_TOKENIZER_FOLDER, language_tags, word_encoder
from .folders import find_file
from .loading import find_model

logger = logging.getLogger(__name__)

Languages = tuple[str, str]  # source and target, as codes of ISO 639: ("en", "de")
# MarianTokenizer has the same settings, so OPUS-MT models have them, too.
SETTINGS = ("source_lang", "target_lang")
DEFAULT_LANGUAGES: Languages = ("en", "de")


# Setting of a tokenizer with tags: the source carries the tag of the "source" language (the
# default) or of the "target" language.
TAG_SETTING = "language_in_source"


# Where an inserted space turns a tag into ordinary text. MarianTokenizer reads only initial tags.
TYPED = re.compile(r"^(?=>>)|(?<=<)(?=2[\w-]+>)")


@dataclass(frozen=True)
class LanguageTags:
    """Language tags of a tokenizer: they tell a multilingual model which languages to use.

    In M2M-100 and NLLB-200, the source carries the tag of its own language, and the translation
    begins with the tag of the target. In other models, the source carries the tag of the target.
    """

    tokenizer: PreTrainedTokenizerBase  # the source's
    ids: Mapping[str, int]  # the id of each language's tag, by the tokenizer's language names
    is_of_target: bool  # whether the source carries the tag of the target
    is_typed: bool  # whether tags are written in sources, as in OPUS-MT
    is_optional: bool  # whether users may write them themselves

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> "LanguageTags | None":
        """The tags of a tokenizer; None if it has none."""
        is_typed = not hasattr(tokenizer, "set_src_lang_special_tokens")
        setting = tokenizer.init_kwargs.get(TAG_SETTING)
        is_of_target, is_optional = is_typed or setting == "target", is_typed and not setting
        ids = language_tags(tokenizer)
        return cls(tokenizer, ids, is_of_target, is_typed, is_optional) if ids else None

    @classmethod
    def needed_by(cls, tokenizer: PreTrainedTokenizerBase) -> "LanguageTags | None":
        """The tags of a tokenizer, if users cannot write them into sources; else None."""
        tags = cls.of(tokenizer)
        return None if tags is None or tags.is_optional else tags

    def direction(self, source_lang: str | None, target_lang: str | None) -> Languages | None:
        """Check two languages, and return the tokenizer's names of them.

        Returns None if tags are optional and no target is given.
        """
        if self.is_optional:  # the source's language has no tag
            found = target_lang and self.check(target_lang, "target_lang")
            return (source_lang or "", found) if found else None
        source = self.check(source_lang, "source_lang")
        target = self.check(target_lang, "target_lang")
        if source == target:
            raise ValueError(f"source_lang and target_lang must be different, got {source} twice.")
        return source, target

    def check(self, name: str | None, kind: str) -> str:
        """Return the tokenizer's name of a language, or raise a ValueError with similar names."""
        if name in self.ids:
            return str(name)
        if found := name and known_language(name, tuple(self.ids)):
            return found
        near = difflib.get_close_matches(name or "", self.ids, n=5, cutoff=0.4) or [*self.ids][:5]
        raise ValueError(
            f"{kind} must be one of the model's {len(self.ids)} languages, such as "
            f"{', '.join(near)}; got {name!r}."
        )

    def encode(self, texts: list[str], source_lang: str, target_lang: str) -> list[list[int]]:
        """Encode sources of one direction, each with its tag and the end token."""
        tag = self.ids[target_lang if self.is_of_target else source_lang]
        ids = self.text_ids(texts)
        if getattr(self.tokenizer, "legacy_behaviour", False):
            return [[*text, self.tokenizer.eos_token_id, tag] for text in ids]
        return [[tag, *text, self.tokenizer.eos_token_id] for text in ids]

    def encode_target(self, texts: list[str], target_lang: str) -> list[list[int]]:
        """Encode translations by the same tokenizer, with a tag if translations begin with one."""
        first, end = self.first_ids(target_lang), self.tokenizer.eos_token_id
        return [[*first, *text, end] for text in self.text_ids(texts)]

    def text_ids(self, texts: list[str]) -> list[list[int]]:
        """Encode texts without tag and end token. A tag that a text contains is ordinary text."""
        texts = [TYPED.sub(" ", text) for text in texts] if self.is_typed else texts
        if self._encode_words is not None:
            return [ids[:-1].tolist() for ids in self._encode_words(texts)]
        options: Any = {"add_special_tokens": False, "split_special_tokens": True}
        return self.tokenizer(texts, **options).input_ids

    @cached_property
    def _encode_words(self) -> Any:
        return word_encoder(self.tokenizer)

    def first_ids(self, target_lang: str) -> list[int]:
        """The ids that each translation into a language begins with."""
        return [] if self.is_of_target else [self.ids[target_lang]]


@lru_cache(maxsize=1000)
def known_language(name: str, languages: tuple[str, ...]) -> str | None:
    """Find the language of a model by a name: the model's own name, its token, or an ISO code.

    "en" means eng_Latn. "zh" means zho_Hans, its usual script. The log shows the choice. ISO codes
    need the package langcodes.
    """
    if name.strip("_") in languages:
        return name.strip("_")
    # A code without a script means the only language that has it: ko is kor_Hang.
    same = [] if re.search("[-_]", name) else [x for x in languages if iso_639(x) == iso_639(name)]
    found = same[0] if len(same) == 1 else None
    with suppress(ImportError, ValueError):
        from langcodes import closest_supported_match

        # Norwegian (no) and Bokmal (nb) have the distance 1; other languages are further apart.
        found = found or closest_supported_match(name, list(languages), max_distance=1)
    if found is not None:
        logger.info("The language %s is the model's %s.", name, found)
    return found


@lru_cache(maxsize=1000)
def iso_639(name: str, is_macro: bool = False) -> str:
    """The ISO 639 code of a language's name, if langcodes is installed: de for deu_Latn.

    With is_macro, the code of its macrolanguage, if it has one: ar for arb_Arab.
    """
    with suppress(ImportError, ValueError):
        from langcodes import standardize_tag

        return standardize_tag(name, macro=is_macro).partition("-")[0]
    return name


def set_languages(tokenizer: PreTrainedTokenizerBase, source_lang: str, target_lang: str) -> None:
    """Add a model's languages to the settings that its source tokenizer saves."""
    if tags := LanguageTags.needed_by(tokenizer):
        source_lang, target_lang = tags.direction(source_lang, target_lang) or ("", "")
        # For users of transformers without this package.
        settled: Any = tokenizer
        settled.src_lang = target_lang if tags.is_of_target else source_lang
    tokenizer.init_kwargs |= dict(zip(SETTINGS, (source_lang, target_lang), strict=True))


def languages_of(tokenizer: PreTrainedTokenizerBase) -> tuple[Any, Any]:
    """The languages in a source tokenizer's settings, which `set_languages` adds."""
    source, target = (tokenizer.init_kwargs.get(name) for name in SETTINGS)
    return source, target


def languages_of_rows(pairs: Any) -> list[Languages]:
    """The languages of each row of a dataset, if it has columns for them; else an empty list."""
    if not {*SETTINGS} <= {*pairs.column_names}:
        return []
    return [*zip(*(pairs[name] for name in SETTINGS), strict=True)]


def saved_languages(path: str | Path, hub: bool = False, **location: Any) -> Languages | None:
    """The languages of a saved model, source and target; None if it was saved without them.

    path is as in `find_model`. With hub, it is a repository, and location has its revision,
    subfolder, ... Returns None, too, if there is no such folder.
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
    """Fill in languages that are None: from a saved model, or else English and German."""
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
