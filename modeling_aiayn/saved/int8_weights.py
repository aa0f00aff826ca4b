"""Weights in 8 bits, and the file that holds them: a quarter of the size of float32."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

# Not a name that transformers reads: it would take the numbers for the weights themselves.
INT8_WEIGHTS_NAME = "model.int8.safetensors"
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
