"""Weights of the Annotated Transformer (Rush et al., 2018 and 2022)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..data.lines import read_lines
from .foreign_model import (
    ASSUMED_FIELDS,
    INFERRED_FIELDS,
    ForeignModel,
    check_given_fields,
    read_foreign,
)
from .layout import shared_position_table
from .pickled import dtype_of, read_state_dict
from .vocabularies import OPENNMT_SPECIALS, check_vocabulary_size, tokenizer_of_pieces
from .weight_names import NameTable, sizes_of

ANNOTATED_NAMES = NameTable(
    outside={
        "model.encoder.embed_tokens": "src_embed.0.lut",
        "model.decoder.embed_tokens": "tgt_embed.0.lut",
        "model.encoder.layer_norm": "encoder.norm",
        "model.decoder.layer_norm": "decoder.norm",
        "lm_head": "generator.proj",
    },
    encoder_layer="encoder.layers.{n}.",
    decoder_layer="decoder.layers.{n}.",
    cross_attention="src_attn",
    projections=[f"linears.{index}" for index in range(4)],
    feed_forward=("feed_forward.w_1", "feed_forward.w_2"),
    encoder_norms=[f"sublayer.{index}.norm" for index in range(2)],
    decoder_norms=[f"sublayer.{index}.norm" for index in range(3)],
    left_out={r"(src|tgt)_embed\.1\.pe": "sinusoids are computed"},
)
# Its vocabulary begins with <s>, </s>, <blank> and <unk>.
ANNOTATED_SPECIAL_IDS = {
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "decoder_start_token_id": 0,
}
# It adds 1e-6 to the standard deviation. Our epsilon is added to the variance: its square.
ANNOTATED_LAYER_NORM_EPS = 1e-12


def read_annotated(
    source: str | Path | Mapping[str, Tensor],
    fields: Mapping[str, Any],
    vocabularies: tuple[str | Path, str | Path] | None = None,
) -> ForeignModel:
    """Read an Annotated Transformer: pre-norm by the sample's deviation, biases everywhere.

    Args:
        source: Its state dict, or a file of it.
        fields: Fields of `AiaynConfig`. encoder_attention_heads and decoder_attention_heads are
            required; dropout and token ids where they are not the document's.
        vocabularies: Files of source and target with one token a line, in the order of their ids.
            Texts are then words with spaces between them. None: no tokenizer.

    Raises:
        OSError: A file is missing or damaged.
        ValueError: A tensor is missing, has the wrong shape, or belongs to no parameter.
    """
    check_given_fields(fields, INFERRED_FIELDS)
    tensors = read_state_dict(source)
    positions = shared_position_table(tensors, "src_embed.1.pe", "tgt_embed.1.pe")
    # In the document a source begins with <s> and ends with </s>; a target only ends with </s>.
    templates = {"encoder": "<s> $A </s>", "decoder": "$A </s>"}
    tokenizers = [
        _word_tokenizer(path, tensors, half, template)
        for path, (half, template) in zip(
            vocabularies or (None, None), templates.items(), strict=True
        )
    ]
    return read_foreign(
        "The Annotated Transformer",
        ANNOTATED_NAMES,
        tensors,
        {
            **sizes_of(ANNOTATED_NAMES, tensors),
            **ANNOTATED_SPECIAL_IDS,
            "norm_first": True,
            "attention_bias": True,
            "lm_head_bias": True,
            "layer_norm_eps": ANNOTATED_LAYER_NORM_EPS,
            **fields,
        },
        positions,
        has_sample_deviation=True,
        dtype=dtype_of(tensors),
        assumed_fields=ASSUMED_FIELDS,
        source_tokenizer=tokenizers[0],
        target_tokenizer=tokenizers[1],
    )


def _word_tokenizer(
    path: str | Path | None, tensors: Mapping[str, Tensor], half: str, template: str
) -> PreTrainedTokenizerBase | None:
    if path is None:
        return None
    tokens = read_lines(path)
    embeddings = ANNOTATED_NAMES.get(tensors, f"model.{half}.embed_tokens.weight")
    check_vocabulary_size(path, tokens, len(embeddings))
    return tokenizer_of_pieces(tokens, OPENNMT_SPECIALS, template)
