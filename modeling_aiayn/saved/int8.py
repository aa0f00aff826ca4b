"""Weights in 8 bits, and files of them, which have a quarter of the size of float32."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

SCALES = ".scales"  # ending of the name of a matrix's scales
INT8_MAX = 127  # weights are integers from -127 to 127


def rounded_to_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round a weight, [out, in], to integers from -127 to 127, times a scale for each row.

    Returns the integers, [out, in] in int8, and the scales, [out] in float32. Rounding the products
    of integers and scales again gives the same integers.
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
    names = [name for name in tensors if not name.endswith(SCALES)]
    for name in names:
        if tensors[name].dtype == torch.int8:
            tensors[name] = tensors[name].float() * tensors[name + SCALES][:, None]
    return {name: tensors[name] for name in names}
