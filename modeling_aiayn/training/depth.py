"""A copy of a trained model with fewer or more layers, to be trained further.

A student starts from some of its teacher's layers (Shleifer & Rush 2020, arXiv:2010.13002). A model
that grows gets layers that at first do nothing (Wu et al. 2024, arXiv:2401.02415).
"""

import re
from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import nn

from ..configuration_aiayn import AiaynConfig
from ..modeling_aiayn import AiaynForConditionalGeneration

LAYER = re.compile(r"(encoder|decoder)\.layers\.(\d+)\.")
# The last module of each sub-layer. If its weights are zero, a pre-norm layer returns its input.
LAST_MODULES = ("out_proj", "fc2")


def with_depth(
    model: AiaynForConditionalGeneration, depths: Mapping[str, int]
) -> AiaynForConditionalGeneration:
    """Copy a translation model, with other numbers of layers.

    A shorter stack keeps the first layer, the last one, and layers at even distances between them.
    A taller stack has all layers, and copies of some, whose outputs are zero: it computes the same
    as before. A depth that is not given does not change. The original model is not modified.
    """
    config = AiaynConfig.from_dict(model.config.to_dict() | dict(depths))
    for name, depth in depths.items():
        saved_depth = getattr(model.config, name)
        if depth > saved_depth and not config.norm_first:
            raise ValueError(
                f"{name} can only grow with norm_first: true, because the new layers return their "
                f"input at first. Got {depth} for a post-norm model of {saved_depth}."
            )
    kept = {
        "encoder": kept_layers(model.config.encoder_layers, config.encoder_layers),
        "decoder": kept_layers(model.config.decoder_layers, config.decoder_layers),
    }

    def saved_name(name: str) -> str:
        return LAYER.sub(lambda at: f"{at[1]}.layers.{kept[at[1]][int(at[2])]}.", name)

    copied = AiaynForConditionalGeneration(config)
    copied.generation_config = model.generation_config
    saved = model.state_dict()
    copied.load_state_dict({name: saved[saved_name(name)] for name in copied.state_dict()})
    for half, indices in kept.items():
        layers = copied.model.get_submodule(half).layers
        for layer, (before, index) in zip(layers[1:], pairwise(indices), strict=True):
            if index == before:
                _silence(layer)
    return copied


def kept_layers(saved: int, wanted: int) -> list[int]:
    """For each of `wanted` layers, the index of the saved layer that it copies.

    A repeated index is a new layer, which is added after the layer that it copies.
    """
    if wanted > saved:
        return [number * saved // wanted for number in range(wanted)]
    return [round(number * (saved - 1) / max(wanted - 1, 1)) for number in range(wanted)]


@torch.no_grad()
def _silence(layer: nn.Module) -> None:
    for name, module in layer.named_modules():
        if name.split(".")[-1] in LAST_MODULES:
            for parameter in module.parameters():
                parameter.zero_()
