"""Models and tokenizers in the library's own classes, from a folder that holds them whole."""

import copy
import fnmatch
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ..loading import check_model_folder, check_weight_file, check_weights
from ..tokenization import TARGET_TOKENIZER_FOLDER


def fetch(repo_id: str) -> Path:
    """A model's repository on the Hub as a folder, weights in one format.

    Args:
        repo_id: Repository, as in Helsinki-NLP/opus-mt-en-de.

    Returns:
        The folder, in the Hub's cache.

    Raises:
        OSError: The Hub could not be reached, or has no such repository.
    """
    formats = ["*.safetensors", "pytorch_model*.bin"]
    hub = HfApi()
    names = hub.list_repo_files(repo_id)
    weights = next((each for each in formats if fnmatch.filter(names, each)), formats[0])
    patterns = ["*.json", "*.spm", "*.txt", weights]
    return Path(hub.snapshot_download(repo_id, allow_patterns=patterns))


def load_peer(model_class: type[PreTrainedModel], source: str | Path) -> PreTrainedModel:
    """A model in its own class and the type that its weights are kept in.

    Args:
        model_class: The class.
        source: A folder. Pickled weights are read too, by torch's reader of harmless ones.

    Returns:
        The model.

    Raises:
        OSError: There is no such folder, or it holds no such model.
        ValueError: The configuration is of another model, or weights are missing or not finite.
    """
    folder = Path(source)
    check_model_folder(folder)
    found, _ = model_class.config_class.get_config_dict(folder)
    if found.get("model_type") != model_class.config_class.model_type:
        raise ValueError(
            f"{folder}: model_type must be {model_class.config_class.model_type!r}, got "
            f"{found.get('model_type')!r}."
        )
    for weights in folder.glob("*.safetensors"):
        check_weight_file(weights)
    # Sizes are looked at here: the library's error has no name in it.
    model, loading_info = model_class.from_pretrained(
        folder,
        dtype="auto",
        local_files_only=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
    )
    if loading_info["mismatched_keys"]:
        name, got, expected = sorted(loading_info["mismatched_keys"])[0]
        raise ValueError(
            f"{folder}: {name} must have shape {tuple(expected)} by the configuration, got "
            f"{tuple(got)}."
        )
    # Sinusoids are computed, and fairseq's files do not hold them.
    missing = loading_info["missing_keys"]
    learned = [name for name in missing if not name.endswith("embed_positions.weight")]
    check_weights(folder, model, loading_info | {"missing_keys": learned})
    return model


def in_float32(peer: PreTrainedModel) -> PreTrainedModel:
    """A copy that computes in float32, with positions that were never rounded to less.

    Args:
        peer: A model in its own class.

    Returns:
        The copy, in evaluation mode.
    """
    config = copy.deepcopy(peer.config)
    config.dtype = torch.float32
    fresh = type(peer)(config)
    weights = peer.state_dict()
    kept = {name: weights[name].float() for name in weights if "embed_positions" not in name}
    fresh.load_state_dict(kept, strict=False)
    fresh.generation_config = copy.deepcopy(peer.generation_config)
    return fresh.eval()


def load_tokenizer(
    tokenizer_class: type[PreTrainedTokenizerBase], folder: str | Path, needed: str, **options: Any
) -> PreTrainedTokenizerBase | None:
    """A folder's tokenizer in its own class.

    Args:
        tokenizer_class: The class.
        folder: The folder.
        needed: The file without which there is no tokenizer.
        **options: What the tokenizer is to be told in place of what the folder says.

    Returns:
        The tokenizer, or None: the folder has none.
    """
    if not (Path(folder) / needed).is_file():
        return None
    return tokenizer_class.from_pretrained(folder, local_files_only=True, **options)


def fast_tokenizers(
    folder: Path,
) -> tuple[PreTrainedTokenizerBase | None, PreTrainedTokenizerBase | None]:
    """A folder's fast tokenizers.

    Args:
        folder: The folder.

    Returns:
        Tokenizers of the source and, where it has one of its own, of the target; None for none.
    """
    found = [
        AutoTokenizer.from_pretrained(place, local_files_only=True)
        if (place / "tokenizer.json").is_file()
        else None
        for place in (folder, folder / TARGET_TOKENIZER_FOLDER)
    ]
    return found[0], found[1]


def own_generation_config(peer: PreTrainedModel) -> GenerationConfig:
    """How a model decodes, by its own generation config, or its configuration where that is silent.

    Args:
        peer: A model in its own class.

    Returns:
        A copy.
    """
    decoding = copy.deepcopy(peer.generation_config)
    for name in ("decoder_start_token_id", "forced_eos_token_id", "bad_words_ids", "num_beams"):
        if getattr(decoding, name, None) is None:
            setattr(decoding, name, getattr(peer.config, name, None))
    return decoding
