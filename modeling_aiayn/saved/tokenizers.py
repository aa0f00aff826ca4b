"""Load the tokenizers of a saved model."""

from pathlib import Path, PurePosixPath
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.tokenization_utils_base import FULL_TOKENIZER_FILE, TOKENIZER_CONFIG_FILE

from ..configuration_aiayn import AiaynConfig
from ..tokenization import TARGET_TOKENIZER_FOLDER, portable_tokenizer
from .folders import find_file


def load_tokenizer(path: str | Path, **options: Any) -> PreTrainedTokenizerBase:
    """Load a tokenizer from a folder or a repository; options are AutoTokenizer's."""
    return portable_tokenizer(AutoTokenizer.from_pretrained(path, **options))


def load_tokenizers(
    path: str | Path, config: AiaynConfig, **options: Any
) -> tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]:
    """Load the tokenizers of source and target from a model's folder, one object if shared."""
    names = (TOKENIZER_CONFIG_FILE, FULL_TOKENIZER_FILE)
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
    """Load the tokenizer of the target language; None if source and target share one."""
    folder = str(PurePosixPath(subfolder, TARGET_TOKENIZER_FOLDER))
    if find_file(path, TOKENIZER_CONFIG_FILE, options | {"subfolder": folder}) is not None:
        return load_tokenizer(path, subfolder=folder, **options)
    if config.decoder_vocab_size is None:
        return None
    raise FileNotFoundError(
        f"{path} holds no tokenizer of the target language, which has a vocabulary of its own. "
        f"Save it in {Path(path, folder)} with save_pretrained."
    )
