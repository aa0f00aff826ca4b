"""Weights in 8 bits, and the file that holds them: a quarter of the size of float32."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import GenerationConfig

from ..modeling_aiayn import AiaynForConditionalGeneration
from .folders import (
    ENFORCED,
    FLOATS,
    INT8_WEIGHTS_NAME,
    LOCATION_OPTIONS,
    check_one_model,
    check_weight_file,
    check_weights,
    find_file,
    load_config,
    named_load_errors,
    without_load_report,
)

# Ending of the name of a matrix's scales.
SCALES = ".scales"
# Whole numbers from -127 to 127 stand for weights.
INT8_MAX = 127


def rounded_to_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Write a weight, [out, in], as whole numbers from -127 to 127 times a scale for each row.

    The numbers, [out, in] in int8, stay the same if they, times their scales, are rounded again.

    Returns:
        The numbers, and the scales, [out] in float32.
    """
    weight = weight.detach().float()
    largest = weight.abs().amax(dim=1)
    scales = torch.where(largest > 0, largest / INT8_MAX, 1.0)
    return (weight / scales[:, None]).round().to(torch.int8), scales


def save_int8_weights(model: nn.Module, path: Path) -> None:
    """Write a model's weights to a file: matrices in 8 bits, the others in float32."""
    tensors = {}
    for name, weight in model.named_parameters():  # tied weights once
        if weight.dim() == 2:
            tensors[name], tensors[name + SCALES] = rounded_to_int8(weight.cpu())
        else:
            tensors[name] = weight.detach().float().cpu()
    save_file(tensors, path, metadata={"format": "pt"})


def read_int8_weights(path: Path) -> dict[str, Tensor]:
    """Read weights that `save_int8_weights` wrote, in float32 by name.

    Raises:
        ValueError: A matrix in 8 bits has no scales, or scales of another shape.
    """
    tensors = load_file(path)
    weights = {}
    for name, tensor in tensors.items():
        if tensor.dtype == torch.int8:
            scales = tensors.get(name + SCALES, torch.empty(0))
            if tensor.dim() != 2 or scales.shape != tensor.shape[:1]:
                raise ValueError(f"{path}: {name} must have a scale for each row.")
            weights[name] = tensor.float() * scales[:, None]
        elif not name.endswith(SCALES):
            weights[name] = tensor
    return weights


def find_int8_weights(path: str | Path, hub: bool, **options: Any) -> Path | None:
    """The file of weights in 8 bits of a folder, or with hub of a repository, if it has one."""
    if not hub:
        check_one_model(path)
        weights = Path(path, INT8_WEIGHTS_NAME)
        return weights if weights.is_file() else None
    return find_file(path, INT8_WEIGHTS_NAME, options)


def load_int8(
    path: str | Path, weights: Path, hub: bool, **options: Any
) -> AiaynForConditionalGeneration:
    """Load a model whose weights have 8 bits, as floating-point numbers."""
    check_weight_file(weights, (*FLOATS, "I8"))
    where = {name: options[name] for name in LOCATION_OPTIONS if name in options}
    others = {name: value for name, value in options.items() if name not in LOCATION_OPTIONS}
    if others.get("dtype") in (None, "auto"):  # the configuration's is that of the original weights
        others["dtype"] = torch.float32
    # from_pretrained sets fields of a configuration that it reads, not of one that it is given.
    names = others.keys() & load_config(path, hub, **where).to_dict().keys() - {"dtype"}
    config = load_config(path, hub, **where, **{name: others.pop(name) for name in names})
    with named_load_errors(path), without_load_report():
        state = read_int8_weights(weights)
        model, loading_info = AiaynForConditionalGeneration.from_pretrained(
            None, config=config, state_dict=state, **others | ENFORCED
        )
        model.generation_config = GenerationConfig.from_pretrained(path, **where)
    check_weights(path, model, loading_info)
    return model
