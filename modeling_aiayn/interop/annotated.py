"""Weights from the Annotated Transformer (Rush et al., 2018 and 2022)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from .foreign_model import ForeignModel, read_foreign, refuse_derived
from .layout import one_table
from .marian import ATTENTION
from .pickled import dtype_of, read_state_dict
from .vocabularies import read_tokens, tokenizer_of_pieces
from .weight_names import NameTable, refuse_missing_heads, sizes_of


def _layer(attentions: Mapping[str, str]) -> dict[str, str]:
    names = {"fc1": "feed_forward.w_1", "fc2": "feed_forward.w_2"}
    for number, (ours, theirs) in enumerate(attentions.items()):
        names[f"{ours}_layer_norm"] = f"sublayer.{number}.norm"
        for index, projection in enumerate(ATTENTION):
            names[f"{ours}.{projection}"] = f"{theirs}.linears.{index}"
    return names | {"final_layer_norm": f"sublayer.{len(attentions)}.norm"}


ANNOTATED_NAMES = NameTable(
    around={
        "model.encoder.embed_tokens": "src_embed.0.lut",
        "model.decoder.embed_tokens": "tgt_embed.0.lut",
        "model.encoder.layer_norm": "encoder.norm",
        "model.decoder.layer_norm": "decoder.norm",
        "lm_head": "generator.proj",
    },
    encoder=_layer({"self_attn": "self_attn"}),
    decoder=_layer({"self_attn": "self_attn", "encoder_attn": "src_attn"}),
    encoder_layer="encoder.layers.{n}.",
    decoder_layer="decoder.layers.{n}.",
    left_out={r"(src|tgt)_embed\.1\.pe": "sinusoids are computed"},
)
# Its vocabulary begins with <s>, </s>, <blank> and <unk>.
SPECIAL_IDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "decoder_start_token_id": 0}
# It adds 1e-6 to the standard deviation: the square of it, to the variance, is as negligible.
LAYER_NORM_EPS = 1e-12
SPECIAL_TOKENS = {
    "bos_token": "<s>",
    "pad_token": "<blank>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
}


def read_annotated(
    source: str | Path | Mapping[str, Tensor],
    fields: Mapping[str, Any],
    vocabularies: tuple[str | Path, str | Path] | None = None,
) -> ForeignModel:
    """The Annotated Transformer: pre-norm by the sample's standard deviation, biases everywhere.

    Args:
        source: Its state dict, or a file of it.
        fields: What no tensor tells: encoder_attention_heads and decoder_attention_heads always,
            and dropout and token ids where they are not the document's.
        vocabularies: Files of source and target with a token a line, in the order of their ids;
            texts then come in words between spaces. None: no tokenizer.

    Returns:
        What there is of it.

    Raises:
        OSError: A file is missing or damaged.
        ValueError: A tensor is missing, has another shape, or no place.
    """
    refuse_missing_heads(fields)
    tensors = read_state_dict(source)
    refuse_derived(fields)
    positions = one_table(tensors, "src_embed.1.pe", "tgt_embed.1.pe")
    tokenizers = _tokenizers(tensors, vocabularies)
    return read_foreign(
        "The Annotated Transformer",
        ANNOTATED_NAMES,
        tensors,
        {
            **sizes_of(ANNOTATED_NAMES, tensors),
            **SPECIAL_IDS,
            "norm_first": True,
            "attention_bias": True,
            "lm_head_bias": True,
            "layer_norm_eps": LAYER_NORM_EPS,
            **fields,
        },
        positions,
        has_sample_deviation=True,
        dtype=dtype_of(tensors),
        source_tokenizer=tokenizers[0],
        target_tokenizer=tokenizers[1],
    )


def _tokenizers(
    tensors: Mapping[str, Tensor], vocabularies: tuple[str | Path, str | Path] | None
) -> tuple[PreTrainedTokenizerBase | None, ...]:
    """Sources stand between <s> and </s> in this document; targets end in </s>."""
    if vocabularies is None:
        return None, None
    return tuple(
        tokenizer_of_pieces(
            read_tokens(
                path, len(ANNOTATED_NAMES.need(tensors, f"model.{half}.embed_tokens.weight"))
            ),
            SPECIAL_TOKENS,
            around,
        )
        for path, half, around in zip(
            vocabularies, ("encoder", "decoder"), ("<s> $A </s>", "$A </s>"), strict=True
        )
    )
