"""Models that transformers has a class for: Marian and FSMT share this reader.

A model in its own class is called the peer of our model.
"""

import copy
import fnmatch
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi
from torch import Tensor
from transformers import (
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ..data.parsing import read_json_object
from ..saved.folders import (
    check_model_folder,
    check_settings_files,
    check_weight_files,
    check_weights,
    named_load_errors,
)
from ..tokenization import portable_tokenizer
from .foreign_model import LAYER_NORM_EPS, ForeignModel, read_foreign
from .pickled import read_checkpoint_file
from .weight_names import NameTable

# Tokenizers of source and target; None for a missing one.
Tokenizers = tuple[PreTrainedTokenizerBase | None, PreTrainedTokenizerBase | None]
# Files of these tokenizers that the library reads without naming them in its errors.
VOCABULARIES = ("vocab.json", "target_vocab.json", "vocab-src.json", "vocab-tgt.json")
# Configuration fields of the same name and meaning.
SHARED_FIELDS = (
    "encoder_layers",
    "decoder_layers",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "activation_function",
    "scale_embedding",
    "bos_token_id",
    "pad_token_id",
    "eos_token_id",
    "decoder_start_token_id",
)


def fetch(repo_id: str) -> Path:
    """Download a repository, such as Helsinki-NLP/opus-mt-en-de, to a folder in the Hub's cache.

    Weights are downloaded in one format only.

    Raises:
        OSError: The Hub cannot be reached, or has no such repository.
    """
    formats = ["*.safetensors", "pytorch_model*.bin"]
    hub = HfApi()
    with named_load_errors(repo_id):
        names = hub.list_repo_files(repo_id)
        weights = next((each for each in formats if fnmatch.filter(names, each)), formats[0])
        patterns = ["*.json", "*.spm", "*.txt", weights]
        return Path(hub.snapshot_download(repo_id, allow_patterns=patterns))


def open_peer(
    model_class: type[PreTrainedModel],
    source: str | Path | PreTrainedModel,
    load_tokenizers: Callable[[Path], Tokenizers],
) -> tuple[PreTrainedModel, Tokenizers]:
    """Load a peer and its tokenizers from a folder; return a given peer without tokenizers."""
    if isinstance(source, model_class):
        return source, (None, None)
    folder = Path(source)
    peer = _load_peer(model_class, folder)
    for name in VOCABULARIES:
        if (folder / name).is_file():
            read_json_object(folder / name)
    with named_load_errors(folder):
        tokenizers = load_tokenizers(folder)
    for tokenizer, half in zip(tokenizers, (peer.model.encoder, peer.model.decoder), strict=True):
        if tokenizer is not None:
            _check_vocabulary(folder, tokenizer, half.embed_tokens.num_embeddings, peer.config)
    return peer, tokenizers


def _check_vocabulary(
    folder: Path, tokenizer: PreTrainedTokenizerBase, size: int, config: PreTrainedConfig
) -> None:
    highest = max(tokenizer.get_vocab().values())
    if highest >= size or tokenizer.pad_token_id != config.pad_token_id:
        raise ValueError(
            f"{folder}: the vocabulary must belong to the model, which has ids below {size} and "
            f"pads with {config.pad_token_id}; got ids up to {highest} and padding "
            f"{tokenizer.pad_token_id}. Use the vocabulary that the model was trained with."
        )


def _load_peer(model_class: type[PreTrainedModel], folder: Path) -> PreTrainedModel:
    """Load a model in the type that its weights are stored in.

    Pickled weights are read too, by torch's reader that runs no code.
    """
    check_model_folder(folder)
    check_settings_files(folder)
    check_weight_files(folder)
    config, _ = model_class.config_class.get_config_dict(folder)
    if config.get("model_type") != model_class.config_class.model_type:
        raise ValueError(
            f"{folder}: model_type must be {model_class.config_class.model_type!r}, got "
            f"{config.get('model_type')!r}."
        )
    if not list(folder.glob("*.safetensors")):
        for weights in sorted(folder.glob("pytorch_model*.bin")):
            read_checkpoint_file(weights)  # its errors say what is wrong with a pickle
    # Shapes are checked below, because the library's error does not name the weight.
    with named_load_errors(folder):
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
    # Sinusoids are computed; files that fairseq wrote do not contain them.
    missing = loading_info["missing_keys"]
    learned = [name for name in missing if not name.endswith("embed_positions.weight")]
    check_weights(folder, model, loading_info | {"missing_keys": learned})
    return model


def read_peer(
    system: str,
    table: NameTable,
    given: PreTrainedModel,
    tokenizers: Tokenizers,
    *,
    first_position: int = 0,
    tensors: Mapping[str, Tensor] | None = None,
    **fields: Any,
) -> ForeignModel:
    """Build a foreign model from a peer, whose weights may have any type.

    The table of positions holds the first token in row `first_position`. `tensors` replace tensors
    of the peer's state dict. `fields` are fields of our configuration beside `SHARED_FIELDS`.
    """
    peer = _in_float32(given)
    return read_foreign(
        system,
        table,
        {**peer.state_dict(), **(tensors or {})},
        {
            **{name: getattr(peer.config, name) for name in SHARED_FIELDS},
            "layer_norm_eps": LAYER_NORM_EPS,
            "attention_bias": True,
            **fields,
        },
        peer.model.encoder.embed_positions.weight[first_position:],
        dtype=given.dtype,
        generation_config=_own_generation_config(peer),
        source_tokenizer=tokenizers[0],
        target_tokenizer=tokenizers[1],
        peer=peer,
    )


def _in_float32(peer: PreTrainedModel) -> PreTrainedModel:
    """Copy a peer to float32, and compute its positions anew: stored ones may be rounded."""
    config = copy.deepcopy(peer.config)
    config.dtype = torch.float32
    fresh = type(peer)(config)
    weights = peer.state_dict()
    kept = {name: weights[name].float() for name in weights if "embed_positions" not in name}
    fresh.load_state_dict(kept, strict=False)
    fresh.generation_config = copy.deepcopy(peer.generation_config)
    return fresh.eval()


def _own_generation_config(peer: PreTrainedModel) -> GenerationConfig:
    """Copy the generation config; older models keep some of its options in their configuration."""
    decoding = copy.deepcopy(peer.generation_config)
    # Translator's defaults then follow this configuration, by the penalty of generate().
    decoding.length_normalization = "power"
    decoding._from_model_config = False  # or this field would not be read from the saved file
    for name in ("decoder_start_token_id", "forced_eos_token_id", "bad_words_ids", "num_beams"):
        if getattr(decoding, name, None) is None:
            setattr(decoding, name, getattr(peer.config, name, None))
    return decoding


def load_if_present(
    tokenizer_class: type[Any], folder: Path, needed: str
) -> PreTrainedTokenizerBase | None:
    """Load a folder's tokenizer by a class; return None if the file `needed` is missing."""
    if not (folder / needed).is_file():
        return None
    options = {"local_files_only": True, "trust_remote_code": False}
    return portable_tokenizer(tokenizer_class.from_pretrained(folder, **options))
