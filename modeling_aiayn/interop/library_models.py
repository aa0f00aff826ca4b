"""Load models in transformers' own classes, called peers, and check models before an export."""

import copy
import fnmatch
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.hf_argparser import HfArg

from ..configuration_aiayn import AiaynConfig
from ..data.parsing import read_json_object
from ..modeling_aiayn import AiaynForConditionalGeneration
from ..saved.folders import check_index, check_model_folder, check_weights, named_weight_errors
from ..saved.loading import LOADING_OPTIONS
from ..tokenization import TARGET_TOKENIZER_FOLDER, portable_tokenizer
from ..translation import Translator
from .foreign_model import LAYER_NORM_EPS, ForeignModel, read_foreign
from .weight_names import NameTable

# Tokenizers of source and target; None for a missing one.
Tokenizers = tuple[PreTrainedTokenizerBase | None, PreTrainedTokenizerBase | None]
# Configuration fields that have the same name and meaning in peers.
SHARED_FIELDS = (
    *("vocab_size", "d_model"),
    *("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim"),
    *("decoder_layers", "decoder_attention_heads", "decoder_ffn_dim"),
    *("dropout", "attention_dropout", "activation_dropout"),
    *("activation_function", "scale_embedding"),
    *("bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id"),
)


@dataclass(frozen=True)
class HubOptions:
    """The location of the model."""

    hub: bool = HfArg(default=False, help="--source is a repository on the Hub.")


def fetch(repo_id: str) -> Path:
    """Download a repository to the Hub's cache, with weights in one format only."""
    hub = HfApi()
    names = hub.list_repo_files(repo_id)
    is_safe = bool(fnmatch.filter(names, "*.safetensors"))
    weights = "*.safetensors" if is_safe else "pytorch_model*.bin"
    patterns = ["*.json", "*.spm", "*.txt", weights]
    return Path(hub.snapshot_download(repo_id, allow_patterns=patterns))


def open_peer(
    model_class: type[PreTrainedModel],
    source: str | Path | PreTrainedModel,
    options: HubOptions | None,
    load_tokenizers: Callable[[Path], Tokenizers],
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Load a peer, its tokenizers and its repository's name, as fields of `ForeignModel`."""
    if isinstance(source, model_class):
        return copy.deepcopy(source), {}
    repo_id = str(source) if options is not None and options.hub else None
    folder = Path(source) if repo_id is None else fetch(repo_id)
    model = _load_peer(model_class, folder)
    tokenizers = load_tokenizers(folder)
    for tokenizer, half in zip(tokenizers, (model.model.encoder, model.model.decoder), strict=True):
        if tokenizer is not None:
            highest, size = max(tokenizer.get_vocab().values()), half.embed_tokens.num_embeddings
            padding = (tokenizer.pad_token_id, model.config.pad_token_id)
            if highest >= size or padding[0] != padding[1]:
                raise ValueError(
                    f"{folder}: the vocabulary must belong to the model, which has ids below "
                    f"{size} and pads with {padding[1]}; got ids up to {highest} and padding "
                    f"{padding[0]}."
                )
    names = ("source_tokenizer", "target_tokenizer", "repo_id")
    return model, dict(zip(names, (*tokenizers, repo_id), strict=True))


def _load_peer(model_class: type[PreTrainedModel], folder: Path) -> PreTrainedModel:
    """Load a model in the type of its weights. Pickled weights are read without running code."""
    check_model_folder(folder)
    check_index(folder, {})
    wanted = model_class.config_class.model_type
    found = read_json_object(folder / "config.json").get("model_type")
    if found != wanted:  # transformers would load the weights whose names match
        raise ValueError(f"{folder}: the model must have the type {wanted}, got {found}.")
    with named_weight_errors(folder):
        model, loading_info = model_class.from_pretrained(
            folder, dtype="auto", local_files_only=True, **LOADING_OPTIONS
        )
    # Sinusoids are computed; files that fairseq wrote do not contain them.
    missing = loading_info["missing_keys"]
    learned = [name for name in missing if not name.endswith("embed_positions.weight")]
    check_weights(folder, model, loading_info | {"missing_keys": learned})
    return model


def read_peer(
    system: str,
    table: NameTable,
    peer: PreTrainedModel,
    more: Mapping[str, Any],
    *,
    first_position: int = 0,
    tensors: Mapping[str, Tensor] | None = None,
    **fields: Any,
) -> ForeignModel:
    """Build a foreign model from a peer, whose first token has the given position.

    `more` comes from `open_peer`. `tensors` replace tensors of the peer's state dict. `fields` are
    fields of our configuration in addition to `SHARED_FIELDS`.
    """
    positions = _computed_positions(peer)
    return read_foreign(
        system,
        table,
        {**peer.state_dict(), **(tensors or {})},
        {
            **{name: getattr(peer.config, name, None) for name in SHARED_FIELDS},
            "layer_norm_eps": LAYER_NORM_EPS,
            **fields,
        },
        positions[first_position:],
        dtype=peer.dtype,
        generation_config=_own_generation_config(peer),
        peer=peer,
        **more,
    )


def _computed_positions(peer: PreTrainedModel) -> Tensor:
    """Compute positions in float32, as stored ones may be rounded; return the encoder's, [n, D]."""
    for half in (peer.model.decoder, peer.model.encoder):
        positions = half.embed_positions.float()
        table = next(chain(positions.parameters(), positions.buffers()))  # M2M-100's is a buffer
        table._is_hf_initialized = False  # otherwise transformers would keep it
        peer._init_weights(positions)
    return table


def _own_generation_config(peer: PreTrainedModel) -> GenerationConfig:
    """Copy the generation config; older models keep some of its options in their configuration."""
    decoding = copy.deepcopy(peer.generation_config)
    # Translator's defaults then follow this configuration, with generate()'s length penalty.
    decoding.length_normalization = "power"
    decoding._from_model_config = False  # otherwise this field of a saved file is ignored
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


def copy_to_export(translator: Translator) -> AiaynForConditionalGeneration:
    """Copy a translator's only model to float32 on the CPU."""
    return copy.deepcopy(single_model(translator)).float().cpu().eval()


def single_model(translator: Translator) -> AiaynForConditionalGeneration:
    """Return a translator's model, or raise a ValueError for an ensemble."""
    if len(translator.models) > 1:
        raise ValueError(
            "The export needs a translator of one model, got an ensemble of "
            f"{len(translator.models)}. Export each model by itself."
        )
    return translator.model


def save_tokenizers(translator: Translator, folder: Path) -> None:
    """Save a translator's tokenizers into the folder of its model."""
    translator.source_tokenizer.save_pretrained(folder)
    if translator.target_tokenizer is not translator.source_tokenizer:
        translator.target_tokenizer.save_pretrained(folder / TARGET_TOKENIZER_FOLDER)


def check_head_width(config: AiaynConfig, system: str) -> None:
    """Check that heads have the width that a system expects, d_model / heads."""
    for half in ("encoder", "decoder"):
        heads = getattr(config, f"{half}_attention_heads")
        width = config.get_text_config(**{half: True}).head_dim
        if heads * width != config.d_model:
            raise ValueError(
                f"{system} needs head_dim = d_model / {half}_attention_heads, got "
                f"head_dim={width}, d_model={config.d_model} and {heads} heads."
            )


def library_generation_config(model: AiaynForConditionalGeneration) -> GenerationConfig:
    """Copy the decoding options that transformers supports."""
    options = copy.deepcopy(model.generation_config)
    for name in ("max_tokens_beyond_source", "length_normalization"):
        vars(options).pop(name, None)
    return options
