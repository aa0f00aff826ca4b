"""Weights from OpenNMT-py's .pt files, and its vocabularies."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .foreign_model import ForeignModel, read_foreign
from .layout import one_table
from .pickled import dtype_of, read_pickled, tensors_in
from .vocabularies import tokenizer_of_pieces
from .weight_names import NameTable, sizes_of

PROJECTIONS = {
    "q_proj": "linear_query",
    "k_proj": "linear_keys",
    "v_proj": "linear_values",
    "out_proj": "final_linear",
}


def _layer(attentions: Mapping[str, str], norms: Mapping[str, str]) -> dict[str, str]:
    return {
        **{
            f"{ours}.{projection}": f"{theirs}.{name}"
            for ours, theirs in attentions.items()
            for projection, name in PROJECTIONS.items()
        },
        **norms,
        "fc1": "feed_forward.w_1",
        "fc2": "feed_forward.w_2",
        "final_layer_norm": "feed_forward.layer_norm",
    }


OPENNMT_NAMES = NameTable(
    around={
        "model.encoder.embed_tokens": "encoder.embeddings.make_embedding.emb_luts.0",
        "model.decoder.embed_tokens": "decoder.embeddings.make_embedding.emb_luts.0",
        "model.encoder.layer_norm": "encoder.layer_norm",
        "model.decoder.layer_norm": "decoder.layer_norm",
        "lm_head": ("generator", "generator.0"),
    },
    encoder=_layer({"self_attn": "self_attn"}, {"self_attn_layer_norm": "layer_norm"}),
    decoder=_layer(
        {"self_attn": "self_attn", "encoder_attn": "context_attn"},
        {"self_attn_layer_norm": "layer_norm_1", "encoder_attn_layer_norm": "layer_norm_2"},
    ),
    encoder_layer="encoder.transformer.{n}.",
    decoder_layer="decoder.transformer_layers.{n}.",
    left_out={r"(en|de)coder\.embeddings\.make_embedding\.pe\.pe": "sinusoids are computed"},
    # Its options add_qkvbias and add_ffnbias.
    optional_biases=(r".*_attn\.[qkv]_proj\.bias", r".*\.fc[12]\.bias"),
)
POSITIONS = tuple(f"{half}.embeddings.make_embedding.pe.pe" for half in ("encoder", "decoder"))
LAYER_NORM_EPS = 1e-6
ACTIVATIONS = {"relu": "relu", "gelu": "gelu"}
# Options that this model does not have, and what they must be.
NEEDED_OPTIONS: dict[str, Any] = {
    "encoder_type": "transformer",
    "decoder_type": "transformer",
    "layer_norm": "standard",
    "position_encoding": True,
    "max_relative_positions": 0,
    "copy_attn": False,
    "parallel_residual": False,
    "multiquery": False,
    "aan_useffn": False,
    "num_kv": 0,
}
# Two ways to compute the same attention.
ATTENTION_TYPES = ("scaled-dot", "scaled-dot-flash")
SPECIAL_TOKENS = {
    "bos_token": "<s>",
    "pad_token": "<blank>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
}


def read_opennmt(path: str | Path) -> ForeignModel:
    """An OpenNMT-py transformer: pre-norm, a biased output, sources without `</s>`.

    Norms in files of its first years are called a_2 and b_2 and divide by the sample's deviation.

    Args:
        path: The .pt file, with its vocabularies as lists (version 3; tools/convertv2_v3.py of
            OpenNMT-py makes such of older ones).

    Returns:
        What there is of it, with tokenizers of texts that come in pieces between spaces.

    Raises:
        OSError: The file is missing or damaged.
        ValueError: The file is no such model's, or one that this model cannot be: the message
            names option or tensor.
    """
    checkpoint = read_pickled(path)
    for name in ("model", "generator", "vocab", "opt"):
        if not isinstance(checkpoint.get(name), (Mapping, argparse.Namespace)):
            raise ValueError(f"{path}: an OpenNMT-py checkpoint holds {name!r}, this one does not.")
    tensors = tensors_in(checkpoint["model"], f"{path}: 'model'") | {
        f"generator.{name}": tensor
        for name, tensor in tensors_in(checkpoint["generator"], f"{path}: 'generator'").items()
    }
    options = checkpoint["opt"]
    options = vars(options) if isinstance(options, argparse.Namespace) else dict(options)
    refuse_what_is_not_ours(options)
    source, target = _vocabularies(checkpoint["vocab"], path)
    for half, tokens in (("encoder", source), ("decoder", target)):
        rows = OPENNMT_NAMES.need(tensors, f"model.{half}.embed_tokens.weight").size(0)
        if len(tokens) != rows:
            raise ValueError(
                f"{path}: 'vocab' must have a token for each of the {half}'s {rows} entries, got "
                f"{len(tokens)}."
            )
    has_deviation = "encoder.layer_norm.a_2" in tensors
    epsilon = float(options.get("norm_eps", LAYER_NORM_EPS))
    return read_foreign(
        "OpenNMT-py",
        OPENNMT_NAMES,
        tensors,
        {
            **sizes_of(OPENNMT_NAMES, tensors),
            **_fields(options),
            **_token_ids(source, target, checkpoint["vocab"]),
            "lm_head_bias": True,
            "layer_norm_eps": epsilon**2 if has_deviation else epsilon,
        },
        one_table(tensors, *POSITIONS),
        has_sample_deviation=has_deviation,
        dtype=dtype_of(tensors),
        source_tokenizer=tokenizer_of_pieces(
            source,
            {name: token for name, token in SPECIAL_TOKENS.items() if token in source},
            around="$A",
        ),
        target_tokenizer=tokenizer_of_pieces(target, SPECIAL_TOKENS),
    )


def refuse_what_is_not_ours(options: Mapping[str, Any]) -> None:
    """Name the first option that this model has no way to express.

    Args:
        options: OpenNMT-py's.

    Raises:
        ValueError: There is one.
    """
    for name, needed in NEEDED_OPTIONS.items():
        if options.get(name, needed) != needed:
            raise ValueError(f"{name} must be {needed!r} here, got {options[name]!r}.")
    attention = options.get("self_attn_type", ATTENTION_TYPES[0])
    if attention not in ATTENTION_TYPES:
        raise ValueError(
            f"self_attn_type must be one of {', '.join(ATTENTION_TYPES)} here, got {attention!r}."
        )
    activation = options.get("pos_ffn_activation_fn", "relu")
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"pos_ffn_activation_fn must be one of {', '.join(ACTIVATIONS)} here, got "
            f"{activation!r}."
        )


def _fields(options: Mapping[str, Any]) -> dict[str, Any]:
    def first(name: str) -> float:
        """A rate; OpenNMT-py has a list of them, one for each stage of training."""
        value = options.get(name, 0.0)
        return float(value[0] if isinstance(value, list) else value)

    depths = {"encoder_layers": "enc_layers", "decoder_layers": "dec_layers"}
    return {
        **{ours: options[theirs] for ours, theirs in depths.items() if theirs in options},
        "encoder_attention_heads": options.get("heads", 8),
        "decoder_attention_heads": options.get("heads", 8),
        "dropout": first("dropout"),
        "attention_dropout": first("attention_dropout"),
        "activation_dropout": first("dropout"),
        "activation_function": ACTIVATIONS[options.get("pos_ffn_activation_fn", "relu")],
        "norm_first": True,
    }


def _vocabularies(vocabulary: Any, path: str | Path) -> tuple[Sequence[str], Sequence[str]]:
    if not isinstance(vocabulary, Mapping) or not all(
        isinstance(vocabulary.get(side), list) for side in ("src", "tgt")
    ):
        raise ValueError(
            f"{path}: 'vocab' must hold lists of tokens, as OpenNMT-py 3 writes them: convert "
            "older files with its tools/convertv2_v3.py."
        )
    return vocabulary["src"], vocabulary["tgt"]


def _token_ids(
    source: Sequence[str], target: Sequence[str], vocabulary: Mapping[str, Any]
) -> dict[str, int]:
    start = vocabulary.get("decoder_start_token", "<s>")
    names = {
        "bos_token_id": "<s>",
        "pad_token_id": "<blank>",
        "eos_token_id": "</s>",
        "decoder_start_token_id": start,
    }
    for token in names.values():
        if token not in target:
            raise ValueError(f"The target's vocabulary has no {token!r}.")
    ids = {name: target.index(token) for name, token in names.items()}
    for token in ("<blank>", "<unk>"):
        if token not in source:
            raise ValueError(f"The source's vocabulary has no {token!r}.")
    if source.index("<blank>") != ids["pad_token_id"]:
        raise ValueError(
            f"<blank> must have one id on both sides, got {source.index('<blank>')} and "
            f"{ids['pad_token_id']}."
        )
    return ids
