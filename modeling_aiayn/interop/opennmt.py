"""Weights and vocabularies of OpenNMT-py's .pt files."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from .foreign_model import ForeignModel, read_foreign
from .layout import shared_position_table
from .pickled import options_in, read_checkpoint_file
from .vocabularies import OPENNMT_SPECIALS, tokenizer_of_pieces
from .weight_names import NameTable

OPENNMT_NAMES = NameTable(
    outside={
        "model.encoder.embed_tokens": "encoder.embeddings.make_embedding.emb_luts.0",
        "model.decoder.embed_tokens": "decoder.embeddings.make_embedding.emb_luts.0",
        "model.encoder.layer_norm": "encoder.layer_norm",
        "model.decoder.layer_norm": "decoder.layer_norm",
        "lm_head": ("generator", "generator.0"),
    },
    encoder_layer="encoder.transformer.{n}.",
    decoder_layer="decoder.transformer_layers.{n}.",
    cross_attention="context_attn",
    projections=("linear_query", "linear_keys", "linear_values", "final_linear"),
    feed_forward=("feed_forward.w_1", "feed_forward.w_2"),
    encoder_norms=("layer_norm", "feed_forward.layer_norm"),
    decoder_norms=("layer_norm_1", "layer_norm_2", "feed_forward.layer_norm"),
    left_out={r"(en|de)coder\.embeddings\.make_embedding\.pe\.pe": "sinusoids are computed"},
    # The options add_qkvbias and add_ffnbias enable them.
    optional_biases=(r".*_attn\.[qkv]_proj\.bias", r".*\.fc[12]\.bias"),
)
POSITION_TABLES = [f"{half}.embeddings.make_embedding.pe.pe" for half in ("encoder", "decoder")]
OPENNMT_LAYER_NORM_EPS = 1e-6
# The values of OpenNMT-py's options that our model supports, the default first.
SUPPORTED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("encoder_type", "decoder_type"), ("transformer",)),
    **dict.fromkeys(("copy_attn", "parallel_residual", "multiquery", "aan_useffn"), (False,)),
    **dict.fromkeys(("max_relative_positions", "num_kv"), (0,)),
    "layer_norm": ("standard",),
    "position_encoding": (True,),
    "self_attn_type": ("scaled-dot", "scaled-dot-flash"),  # two ways to compute the same
    "pos_ffn_activation_fn": ("relu", "gelu"),
}


def read_opennmt(path: str | Path) -> ForeignModel:
    """Read an OpenNMT-py transformer: pre-norm, a biased output, sources without `</s>`.

    In early files, the norms are called a_2 and b_2 and divide by the sample standard deviation.
    The tokenizers expect texts that are already split into pieces, with spaces between them.

    Args:
        path: A .pt file of version 3, whose vocabularies are lists. Convert older files with
            OpenNMT-py's tools/convertv2_v3.py. Weights may be in a .safetensors file beside it.

    Raises:
        OSError: A file is missing or damaged.
        ValueError: The file does not contain such a model, or our model does not support it. The
            message names the option or tensor.
    """
    checkpoint = read_checkpoint_file(path)
    options, vocabulary = options_in(checkpoint.get("opt")), checkpoint.get("vocab")
    if not options or not vocabulary:
        raise ValueError(f"{path} must be a checkpoint of OpenNMT-py 3, with 'opt' and 'vocab'.")
    tensors = _weights(checkpoint, Path(path))
    for name, values in SUPPORTED.items():
        if options.get(name, values[0]) not in values:
            supported = " or ".join(map(repr, values))
            raise ValueError(f"{name} must be {supported}, got {options[name]!r}.")
    source, target = vocabulary["src"], vocabulary["tgt"]
    has_deviation = "encoder.layer_norm.a_2" in tensors
    epsilon = float(options.get("norm_eps", OPENNMT_LAYER_NORM_EPS))
    foreign = read_foreign(
        "OpenNMT-py",
        OPENNMT_NAMES,
        tensors,
        {
            **_opennmt_fields(options),
            **_token_ids(source, target, vocabulary.get("decoder_start_token", "<s>")),
            "lm_head_bias": True,
            "layer_norm_eps": epsilon**2 if has_deviation else epsilon,
        },
        shared_position_table(tensors, *POSITION_TABLES),
        has_sample_deviation=has_deviation,
    )
    source_specials = {name: token for name, token in OPENNMT_SPECIALS.items() if token in source}
    return replace(
        foreign,
        source_tokenizer=tokenizer_of_pieces(source, source_specials, template="$A"),
        target_tokenizer=tokenizer_of_pieces(target, OPENNMT_SPECIALS),
    )


def _weights(checkpoint: Mapping[str, Any], path: Path) -> dict[str, Tensor]:
    """Return the weights, perhaps from the file beside it (-save_format safetensors)."""
    if "model" not in checkpoint:
        return read_checkpoint_file(path.with_suffix(".safetensors"))
    generator = checkpoint.get("generator") or {}
    return {
        **checkpoint["model"],
        **{f"generator.{name}": tensor for name, tensor in generator.items()},
    }


def _opennmt_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    def dropout(name: str) -> float:
        """Return a rate: the first, if OpenNMT-py has a list with one for each training stage."""
        value = options.get(name) or 0.0
        return float(value[0] if isinstance(value, list) else value)

    return {
        "encoder_attention_heads": options.get("heads", 8),
        "decoder_attention_heads": options.get("heads", 8),
        "dropout": dropout("dropout"),
        "attention_dropout": dropout("attention_dropout"),
        "activation_dropout": dropout("dropout"),
        "activation_function": options.get("pos_ffn_activation_fn", "relu"),
        "norm_first": True,
    }


def _token_ids(source: Sequence[str], target: Sequence[str], start: str) -> dict[str, int]:
    padding = source.index("<blank>"), target.index("<blank>")
    if padding[0] != padding[1]:
        raise ValueError(
            "<blank> must have the same id in both vocabularies, got "
            f"{padding[0]} in the source's and {padding[1]} in the target's."
        )
    return {
        "bos_token_id": target.index("<s>"),
        "pad_token_id": padding[1],
        "eos_token_id": target.index("</s>"),
        "decoder_start_token_id": target.index(start),
    }
