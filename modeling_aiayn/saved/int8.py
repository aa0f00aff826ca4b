"""Weights in 8 bits, and the file that holds them: a quarter of the size of float32."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import GenerationConfig

from ..modeling_aiayn import AiaynForConditionalGeneration
from .folders import (
    INT8_WEIGHTS_NAME,
    check_one_model,
    check_weights,
    find_file,
    load_config,
    location_options,
    named_weight_errors,
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
    """Read weights that `save_int8_weights` wrote, in float32 by name."""
    tensors = load_file(path)
    return {
        name: tensor.float() * tensors[name + SCALES][:, None]
        if tensor.dtype == torch.int8
        else tensor
        for name, tensor in tensors.items()
        if not name.endswith(SCALES)
    }


def find_int8_weights(path: str | Path, **options: Any) -> Path | None:
    """The file of weights in 8 bits of a folder or a repository, if it has one."""
    weights = find_file(path, INT8_WEIGHTS_NAME, options)
    if weights is not None:
        check_one_model(weights.parent, INT8_WEIGHTS_NAME)
    return weights


def load_int8(
    path: str | Path, weights: Path, hub: bool, **options: Any
) -> AiaynForConditionalGeneration:
    """Load a model whose weights have 8 bits, as floating-point numbers."""
    if options.get("dtype") in (
        None,
        "auto",
    ):  # the configuration's is that of the original weights
        options["dtype"] = torch.float32
    config, others = load_config(path, hub, return_unused_kwargs=True, **options)
    with named_weight_errors(path):
        state = read_int8_weights(weights)
    model, loading_info = AiaynForConditionalGeneration.from_pretrained(
        None,
        config=config,
        state_dict=state,
        **others | {"dtype": options["dtype"]},
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # check_weights names the weight
    )
    model.generation_config = GenerationConfig.from_pretrained(path, **location_options(options))
    check_weights(path, model, loading_info)
    return model
