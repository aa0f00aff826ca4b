"""Decision 8: foreign weights come in by changing the weights, not the model."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..layers import sinusoidal_positions

# The dimension of each kind of parameter that is the residual stream's.
RESIDUAL_DIMENSIONS = {
    r".*\.(embed_tokens|embed_positions|[qkv]_proj|fc1)\.weight|lm_head\.weight": 1,
    r".*\.(out_proj|fc2|\w*layer_norm)\.(weight|bias)": 0,
}
# Bases and first positions that are looked for.
PAPER_BASE = 10000.0
FIRST_POSITIONS = range(5)
# Positions that a table is recognised by, and how far it may be off: some are kept in float16.
RECOGNISED_BY = 64
TOLERANCE = 2e-3


@dataclass(frozen=True)
class Sinusoids:
    """How a table of sinusoids differs from section 3.5's.

    Args:
        base: Base of the wavelengths.
        offset: Position of the first token.
        order: Where each of our dimensions is in theirs, [D].
    """

    base: float
    offset: int
    order: Tensor


def interleaved_from_halves(d_model: int) -> Tensor:
    """Where each of our dimensions is if all sines come first, [D]: 0, D/2, 1, D/2 + 1, ...

    Args:
        d_model: Width, D, even.

    Returns:
        Indices.
    """
    return torch.arange(d_model).view(2, -1).T.flatten()


def recognise_sinusoids(table: Tensor) -> Sinusoids | None:
    """Which sinusoids a table of positions holds.

    Their columns may come interleaved or in halves, and their wavelengths may go in D / 2 steps, as
    in the paper, or in D / 2 - 1, as in Tensor2Tensor, which another base says as well:
    10000^(D / (D - 2)).

    Args:
        table: Encodings from the first token's on, [n, D].

    Returns:
        The sinusoids, or None: it is some other table.
    """
    d_model = table.size(1)
    if d_model % 2:
        return None
    table = table[:RECOGNISED_BY].detach().float().cpu()
    bases = [PAPER_BASE, *([PAPER_BASE ** (d_model / (d_model - 2))] if d_model > 2 else [])]
    found: list[tuple[float, Sinusoids]] = []
    for order in (torch.arange(d_model), interleaved_from_halves(d_model)):
        for base in bases:
            for offset in FIRST_POSITIONS:
                positions = torch.arange(offset, offset + len(table))
                ours = sinusoidal_positions(positions, d_model, base)
                difference = float((ours - table[:, order]).abs().max())
                found.append((difference, Sinusoids(base, offset, order)))
    difference, best = min(found, key=lambda each: each[0])
    return best if difference < TOLERANCE else None


def one_table(tensors: Mapping[str, Tensor], source: str, target: str) -> Tensor:
    """The positions that both halves of a checkpoint hold.

    Args:
        tensors: The checkpoint's.
        source: Name of the source's table, [n, D] and any dimensions of 1.
        target: Name of the target's.

    Returns:
        Encodings, [n, D].

    Raises:
        ValueError: One is missing, or they are not the same.
    """
    for name in (source, target):
        if name not in tensors:
            raise ValueError(f"The tensor {name} is missing.")
    if not torch.equal(tensors[source], tensors[target]):
        raise ValueError(f"The tensors {source} and {target} must be the same: both are positions.")
    return table_of(tensors[source], source)


def table_of(tensor: Tensor, name: str) -> Tensor:
    """A table of positions without dimensions of 1.

    Args:
        tensor: The table, [n, D] and any dimensions of 1.
        name: What to call it in the error.

    Returns:
        Encodings, [n, D].

    Raises:
        ValueError: It is no table.
    """
    sizes = [size for size in tensor.shape if size != 1]
    if len(sizes) != 2:
        raise ValueError(
            f"The tensor {name} must be a table of positions, got {tuple(tensor.shape)}."
        )
    return tensor.reshape(sizes)


def reorder_residual(weights: Mapping[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    """Bring every parameter's side on the residual stream into another order.

    Nothing but positions tells the stream's dimensions from each other, so the model is the same.

    Args:
        weights: Parameters under our names.
        order: Where each dimension is now, [D].

    Returns:
        The parameters with dimensions in this order.
    """
    reordered = dict(weights)
    for name, weight in weights.items():
        for pattern, dimension in RESIDUAL_DIMENSIONS.items():
            if re.fullmatch(pattern, name):
                reordered[name] = weight.index_select(dimension, order.to(weight.device))
    return reordered


def fold_sample_deviation(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Normalisation by the sample's standard deviation as normalisation by the variance.

    The one divides by n - 1 and the other by n, so the gain takes sqrt((n - 1) / n); the epsilon
    belongs to the deviation there and is negligible here: give the model its square.

    Args:
        weights: Parameters under our names, of a model that normalises by the deviation.

    Returns:
        The parameters of the same model by the variance.
    """
    return {
        name: weight * ((len(weight) - 1) / len(weight)) ** 0.5
        if name.endswith("layer_norm.weight")
        else weight
        for name, weight in weights.items()
    }
