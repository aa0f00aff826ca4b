"""Weights from torch.nn.Transformer, and the embeddings and output of the module around it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..layers import sinusoidal_positions
from .foreign_model import ForeignModel, read_foreign, refuse_derived
from .layout import PAPER_BASE, RECOGNISED_BY, recognise_sinusoids, table_of
from .marian import ATTENTION, LAYER_NORM_EPS
from .pickled import dtype_of, read_state_dict
from .weight_names import NameTable, Third, refuse_missing_heads, sizes_of


def _layer(attentions: Mapping[str, str], norms: tuple[str, ...]) -> dict[str, Any]:
    names: dict[str, Any] = {"fc1": "linear1", "fc2": "linear2"}
    for ours, theirs in attentions.items():
        names[f"{ours}.out_proj"] = f"{theirs}.out_proj"
        for index, projection in enumerate(ATTENTION[:3]):
            names[f"{ours}.{projection}"] = Third(f"{theirs}.in_proj_{{leaf}}", index)
    return names | {norm: f"norm{number}" for number, norm in enumerate(norms, start=1)}


ENCODER = _layer({"self_attn": "self_attn"}, ("self_attn_layer_norm", "final_layer_norm"))
DECODER = _layer(
    {"self_attn": "self_attn", "encoder_attn": "multihead_attn"},
    ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
)


@dataclass(frozen=True)
class TorchNames:
    """What a module around torch.nn.Transformer calls its parts: torch has no names for them.

    Args:
        transformer: The transformer.
        source_embedding: Embedding of the source.
        target_embedding: Embedding of the target; may be the same.
        output: The linear layer to the vocabulary; may be the target's embedding.
        positions: The tensor of positions, [n, D] and any dimensions of 1. None: the paper's
            sinusoids, which are computed. A table that is none of them is taken for learned.
    """

    transformer: str = "transformer"
    source_embedding: str = "source_embedding"
    target_embedding: str = "target_embedding"
    output: str = "output"
    positions: str | None = None

    @property
    def table(self) -> NameTable:
        """All names."""
        prefix = f"{self.transformer}." if self.transformer else ""
        around: dict[str, Any] = {
            "model.encoder.embed_tokens": self.source_embedding,
            "model.decoder.embed_tokens": self.target_embedding,
            "model.encoder.layer_norm": f"{prefix}encoder.norm",
            "model.decoder.layer_norm": f"{prefix}decoder.norm",
            "lm_head": self.output,
        }
        if self.positions is not None:
            around["model.encoder.embed_positions.weight"] = self.positions
            around["model.decoder.embed_positions.weight"] = self.positions
        return NameTable(
            around,
            ENCODER,
            DECODER,
            f"{prefix}encoder.layers.{{n}}.",
            f"{prefix}decoder.layers.{{n}}.",
            {} if self.positions is None else {self.positions: "sinusoids are computed"},
            optional_biases=(r"model\..*\.bias",),  # bias=False
        )


def read_torch_transformer(
    source: str | Path | Mapping[str, Tensor],
    names: TorchNames,
    fields: Mapping[str, Any],
) -> ForeignModel:
    """A model built on torch.nn.Transformer, with its final norms even in post-norm.

    Args:
        source: Its state dict, or a file of it.
        names: What the module around it calls its parts.
        fields: What no tensor tells: encoder_attention_heads and decoder_attention_heads always,
            and norm_first, activation_function, scale_embedding, layer_norm_eps, dropouts and token
            ids where they are not the defaults of torch and of this model; of computed positions
            also position_offset.

    Returns:
        What there is of it.

    Raises:
        OSError: The file is missing or damaged.
        ValueError: A tensor is missing, has another shape, or no place.
    """
    refuse_missing_heads(fields)
    given = () if names.positions else ("position_offset", "position_base")
    refuse_derived({name: value for name, value in fields.items() if name not in given})
    tensors = read_state_dict(source)
    table = names.table
    width = table.need(tensors, "model.encoder.embed_tokens.weight").size(-1)
    positions: Tensor | None = sinusoidal_positions(
        torch.arange(RECOGNISED_BY) + fields.get("position_offset", 0),
        width,
        float(fields.get("position_base", PAPER_BASE)),
    )
    found: dict[str, Any] = {
        **sizes_of(table, tensors),
        "layer_norm_eps": LAYER_NORM_EPS,
        "final_norm": table.find(tensors, "model.encoder.layer_norm.weight") is not None,
    }
    if names.positions is not None:
        found_table = table.need(tensors, "model.encoder.embed_positions.weight")
        positions = table_of(found_table, names.positions)
        if recognise_sinusoids(positions) is None:
            tensors[names.positions] = positions
            found["max_position_embeddings"] = len(positions)
            positions = None
    return read_foreign(
        "torch.nn.Transformer",
        table,
        tensors,
        {**found, **fields},
        positions,
        dtype=dtype_of(tensors),
    )
