"""Load the tokenizers of a saved model."""

from pathlib import Path, PurePosixPath
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import cached_file

from ..configuration_aiayn import AiaynConfig
from ..tokenization import TARGET_TOKENIZER_FOLDER, portable_tokenizer
from .folders import check_settings_files, named_load_errors


def load_tokenizers(
    path: str | Path, config: AiaynConfig, **options: Any
) -> tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]:
    """Load the tokenizers of source and target from a model's folder, one object if shared.

    Raises:
        OSError: A tokenizer is missing, or the Hub could not be reached.
    """
    names = ("tokenizer_config.json", "tokenizer.json")
    if Path(path).is_dir() and not any(Path(path, name).is_file() for name in names):
        raise FileNotFoundError(
            f"{path} holds no tokenizer: there is no {names[0]} in it. Save the model's tokenizer "
            "there with save_pretrained."
        )
    source = load_tokenizer(path, **options)
    return source, load_target_tokenizer(path, config, **options) or source


def load_target_tokenizer(
    path: str | Path, config: AiaynConfig, *, subfolder: str = "", **options: Any
) -> PreTrainedTokenizerBase | None:
    """Load the tokenizer of the target language; None if source and target share one.

    subfolder is that of the model in a repository.

    Raises:
        OSError: The target has its own vocabulary and its tokenizer is missing, or the Hub could
            not be reached.
    """
    folder = PurePosixPath(subfolder, TARGET_TOKENIZER_FOLDER)
    is_there = config.decoder_vocab_size is not None or Path(path, folder).is_dir()
    if Path(path).is_dir() and is_there and not Path(path, folder).is_dir():
        raise FileNotFoundError(
            f"{path} holds no tokenizer of the target language, which has a vocabulary of its "
            f"own. Save it in {Path(path, folder)} with save_pretrained."
        )
    if not is_there and not Path(path).is_dir():
        where = {name: value for name, value in options.items() if name != "trust_remote_code"}
        is_there = None is not cached_file(
            path,
            "tokenizer_config.json",
            subfolder=str(folder),
            _raise_exceptions_for_missing_entries=False,
            **where,
        )
    if not is_there:
        return None
    return load_tokenizer(path, subfolder=str(folder), **options)


def load_tokenizer(path: str | Path, **options: Any) -> PreTrainedTokenizerBase:
    """Load a tokenizer from a folder or a repository; options are AutoTokenizer's.

    Raises:
        OSError: There is no tokenizer, or the Hub could not be reached.
        ValueError: A file of it is damaged.
    """
    if Path(path).is_dir():
        check_settings_files(path)
    with named_load_errors(path):
        return portable_tokenizer(AutoTokenizer.from_pretrained(path, **options))
