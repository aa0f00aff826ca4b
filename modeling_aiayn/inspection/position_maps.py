"""Draw section 3.5: the sinusoidal position encodings."""

import math
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ..layers import sinusoidal_positions
from .pictures import write_figure


def wavelengths(d_model: int, base: float = 10000.0) -> Tensor:
    """Compute the wavelength of each pair of sine and cosine in positions, [D / 2].

    They grow from 2 pi, for a model of width D = d_model.
    """
    exponents = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
    return (2 * math.pi * base**exponents).float()


def products_by_distance(d_model: int, distances: Tensor, base: float = 10000.0) -> Tensor:
    """Compute the dot products of encodings whose positions have the given distances, [N].

    They depend on the distances only; at distance 0 they are D / 2.
    """
    start = sinusoidal_positions(torch.zeros(1), d_model, base)  # [1, D]
    return (sinusoidal_positions(distances, d_model, base) * start).sum(-1)


def draw_positions(
    d_model: int, path: str | Path, num_positions: int = 100, base: float = 10000.0
) -> None:
    """Draw the encodings, their wavelengths, and their dot products by distance.

    Raises:
        OSError: The file cannot be written.
        ValueError: d_model is odd, or the path has an unsupported ending.
    """
    figure = Figure(figsize=(11, 7), layout="constrained")
    panels = figure.subplot_mosaic([["map", "map"], ["waves", "products"]])
    _draw_encodings(panels["map"], d_model, num_positions, base)
    _draw_wavelengths(panels["waves"], d_model, base)
    _draw_products(panels["products"], d_model, num_positions, base)
    write_figure(figure, path)


def _draw_encodings(axes: Axes, d_model: int, num_positions: int, base: float) -> None:
    encodings = sinusoidal_positions(torch.arange(num_positions), d_model, base)
    image = axes.imshow(
        encodings.numpy(), aspect="auto", cmap="RdBu", vmin=-1, vmax=1, interpolation="nearest"
    )
    axes.set(
        title="Encodings: sines at even dimensions, cosines at odd dimensions",
        xlabel="dimension",
        ylabel="position",
    )
    axes.figure.colorbar(image, ax=axes, label="encoding")


def _draw_wavelengths(axes: Axes, d_model: int, base: float) -> None:
    axes.semilogy(range(0, d_model, 2), wavelengths(d_model, base).numpy(), marker=".")
    axes.axhline(2 * math.pi, color="gray", linestyle="--", linewidth=1, label="2 pi")
    axes.axhline(2 * math.pi * base, color="gray", linestyle=":", linewidth=1, label="2 pi * base")
    axes.set(
        title="Wavelength of each sine and cosine", xlabel="dimension", ylabel="positions per wave"
    )
    axes.grid(alpha=0.3)
    axes.legend()


def _draw_products(axes: Axes, d_model: int, num_positions: int, base: float) -> None:
    distances = torch.arange(-num_positions + 1, num_positions)
    axes.plot(distances.numpy(), products_by_distance(d_model, distances, base).numpy())
    axes.set(
        title="Dot product of two positions", xlabel="distance, positions", ylabel="dot product"
    )
    axes.grid(alpha=0.3)
