"""Weights of a module built on torch.nn.Transformer."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.hf_argparser import HfArg

from ..layers import sinusoidal_positions
from .foreign_model import (
    LAYER_NORM_EPS,
    ConfigOptions,
    ForeignModel,
    mapping_in,
    read_foreign,
)
from .layout import PAPER_BASE, RECOGNISED_BY, recognise_sinusoids
from .pickled import PREFIXES, read_state_dict
from .weight_names import Names, NameTable

# Fields that cannot be inferred from a plain state dict.
UNSEEN_FIELDS = (
    *("norm_first", "activation_function", "scale_embedding", "layer_norm_eps"),
    *("decoder_start_token_id", "bos_token_id", "pad_token_id", "eos_token_id"),
)
HINT = "Name tables of positions with --names: positions, or target_positions for the target's own."


@dataclass(frozen=True)
class TorchNames:
    """The names of the parts of a module around torch.nn.Transformer; embeddings may be shared.

    positions names a tensor, [n, D] and any dimensions of size 1. A table without sinusoids is read
    as learned positions; the target may have its own. None: the paper's sinusoids.
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
            hint=HINT,
        )


@dataclass(frozen=True)
class TorchOptions(ConfigOptions):
    """Names and fields that the state dict of a user's module does not contain."""

    names: dict[str, str] | str | None = HfArg(
        default=None,
        help="The module's names for transformer, source_embedding, target_embedding, output and, "
        "if positions are tensors, positions and target_positions, as YAML.",
    )


def without_wrapper(names: TorchNames, tensors: Mapping[str, Tensor]) -> TorchNames:
    """Remove the prefixes that `read_state_dict` removed from the tensors' names."""
    changed = {}
    for part, name in vars(names).items():
        while name and not any(f"{tensor}.".startswith(f"{name}.") for tensor in tensors):
            prefix = next((prefix for prefix in PREFIXES if f"{name}.".startswith(prefix)), None)
            if prefix is None:
                break
            changed[part] = name = name[len(prefix) :]
    return replace(names, **changed)


def read_torch_transformer(
    source: str | Path | Mapping[str, Tensor], options: TorchOptions
) -> ForeignModel:
    """Read a model built on torch.nn.Transformer, which has final norms even in post-norm.

    Args:
        source: The state dict, or a file that contains it.
        options: The module's names, and fields of `AiaynConfig`: all UNSEEN_FIELDS and, for
            computed positions, position_offset and position_base. They may be missing if outputs of
            the original confirm the defaults of torch and of our model.

    Raises:
        OSError: The file is missing or damaged.
        ValueError: A tensor is missing, has the wrong shape, or belongs to no parameter.
    """
    fields = options.fields()
    tensors = read_state_dict(source)
    names = without_wrapper(TorchNames(**mapping_in("names", options.names)), tensors)
    table = names.table
    fields_of_weights: dict[str, Any] = {
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
        positions = table.get(tensors, "model.encoder.embed_positions.weight").squeeze()
        if recognise_sinusoids(positions) is None or names.target_positions is not None:
            for name in {names.positions, names.target_positions or names.positions} & {*tensors}:
                tensors[name] = tensors[name].squeeze()
            fields_of_weights["max_position_embeddings"] = len(positions)
            positions = None
    unseen = (
        UNSEEN_FIELDS if names.positions else (*UNSEEN_FIELDS, "position_offset", "position_base")
    )
    return read_foreign(
        "torch.nn.Transformer",
        table,
        tensors,
        {**fields_of_weights, **fields},
        positions,
        assumed_fields=tuple(name for name in unseen if name not in fields),
    )
