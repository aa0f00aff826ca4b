"""Weights of a module built on torch.nn.Transformer."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..layers import sinusoidal_positions
from .foreign_model import (
    ASSUMED_FIELDS,
    INFERRED_FIELDS,
    LAYER_NORM_EPS,
    ForeignModel,
    check_given_fields,
    read_foreign,
)
from .layout import PAPER_BASE, RECOGNISED_BY, position_table, recognise_sinusoids
from .pickled import PREFIXES, dtype_of, read_state_dict
from .weight_names import Names, NameTable, sizes_of


@dataclass(frozen=True)
class TorchNames:
    """The names of the parts of a module around torch.nn.Transformer.

    Args:
        transformer: The transformer.
        source_embedding: The source's embedding.
        target_embedding: The target's embedding; may be the source's.
        output: The linear layer to the vocabulary; may be the target's embedding.
        positions: The tensor of positions, [n, D] and any dimensions of size 1. A table that is
            not sinusoidal is read as learned positions. None: the paper's sinusoids.
        target_positions: The target's own table of learned positions. None: the same as positions.
    """

    transformer: str = "transformer"
    source_embedding: str = "source_embedding"
    target_embedding: str = "target_embedding"
    output: str = "output"
    positions: str | None = None
    target_positions: str | None = None

    @property
    def table(self) -> NameTable:
        """The names of all tensors."""
        prefix = f"{self.transformer}." if self.transformer else ""
        outside: dict[str, Names] = {
            "model.encoder.embed_tokens": self.source_embedding,
            "model.decoder.embed_tokens": self.target_embedding,
            "model.encoder.layer_norm": f"{prefix}encoder.norm",
            "model.decoder.layer_norm": f"{prefix}decoder.norm",
            "lm_head": self.output,
        }
        if self.positions is not None:
            outside["model.encoder.embed_positions.weight"] = self.positions
            outside["model.decoder.embed_positions.weight"] = (
                self.target_positions or self.positions
            )
        return NameTable(
            outside,
            encoder_layer=f"{prefix}encoder.layers.{{n}}.",
            decoder_layer=f"{prefix}decoder.layers.{{n}}.",
            cross_attention="multihead_attn",
            projections=[*(f"in_proj_{{leaf}}[{index}]" for index in range(3)), "out_proj"],
            feed_forward=("linear1", "linear2"),
            encoder_norms=("norm1", "norm2"),
            decoder_norms=("norm1", "norm2", "norm3"),
            left_out={} if self.positions is None else {self.positions: "sinusoids are computed"},
            optional_biases=(r"model\..*\.bias",),  # torch.nn.Transformer(bias=False)
        )


def without_wrapper(names: TorchNames, tensors: Mapping[str, Tensor]) -> TorchNames:
    """Remove the prefixes that `read_state_dict` removed from the tensors' names."""
    changed = {}
    for part, name in vars(names).items():
        while name and not _begin_with(name, tensors):
            prefix = next((each for each in PREFIXES if f"{name}.".startswith(each)), None)
            if prefix is None:
                break
            name = name[len(prefix) :]
            changed[part] = name
    return replace(names, **changed)


def _begin_with(name: str, tensors: Mapping[str, Tensor]) -> bool:
    return any(each == name or each.startswith(f"{name}.") for each in tensors)


def check_names(names: TorchNames, tensors: Mapping[str, Tensor]) -> None:
    """Check that a checkpoint has tensors of each part."""
    if names.target_positions is not None and names.positions is None:
        raise ValueError("target_positions needs positions, the source's table. Give both.")
    for part, name in vars(names).items():
        if name and not _begin_with(name, tensors):
            parts = sorted({tensor_name.partition(".")[0] for tensor_name in tensors})
            raise ValueError(
                f"names says that {part} is {name!r}, but no tensor begins so. The tensors begin "
                f"with {', '.join(parts)}. Pass --names '{{{part}: NAME}}'."
            )


def read_torch_transformer(
    source: str | Path | Mapping[str, Tensor],
    names: TorchNames,
    fields: Mapping[str, Any],
) -> ForeignModel:
    """Read a model built on torch.nn.Transformer, which has final norms even in post-norm.

    Args:
        source: Its state dict, or a file of it.
        names: The names of the module's parts.
        fields: Fields of `AiaynConfig`. encoder_attention_heads and decoder_attention_heads are
            required. norm_first, activation_function, scale_embedding, layer_norm_eps, dropouts and
            token ids are needed where they are not the defaults of torch and of our model. With
            computed positions, position_offset and position_base may be passed too.

    Raises:
        OSError: The file is missing or damaged.
        ValueError: A tensor is missing, has the wrong shape, or belongs to no parameter.
    """
    computed = () if names.positions else ("position_offset", "position_base")
    inferred = tuple(name for name in INFERRED_FIELDS if name not in computed)
    check_given_fields(fields, inferred)
    tensors = read_state_dict(source)
    names = without_wrapper(names, tensors)
    check_names(names, tensors)
    table = names.table
    fields_of_weights: dict[str, Any] = {
        **sizes_of(table, tensors),
        "layer_norm_eps": LAYER_NORM_EPS,
        "final_norm": table.find(tensors, "model.encoder.layer_norm.weight") is not None,
    }
    positions: Tensor | None
    if names.positions is None:
        positions = sinusoidal_positions(
            torch.arange(RECOGNISED_BY) + fields.get("position_offset", 0),
            table.get(tensors, "model.encoder.embed_tokens.weight").size(-1),
            float(fields.get("position_base", PAPER_BASE)),
        )
    else:
        stored = table.get(tensors, "model.encoder.embed_positions.weight")
        positions = position_table(stored, names.positions)
        if recognise_sinusoids(positions) is None or names.target_positions is not None:
            tensors[names.positions] = positions
            fields_of_weights["max_position_embeddings"] = len(positions)
            positions = None
        if names.target_positions is not None:
            stored = table.get(tensors, "model.decoder.embed_positions.weight")
            tensors[names.target_positions] = position_table(stored, names.target_positions)
    return read_foreign(
        "torch.nn.Transformer",
        table,
        tensors,
        {**fields_of_weights, **fields},
        positions,
        dtype=dtype_of(tensors),
        assumed_fields=(*ASSUMED_FIELDS, *computed),
    )
