"""Change foreign weights to fit our model, so that the model needs no options for them.

The residual stream's D dimensions have no order of their own: a permutation of them in all weight
matrices gives the same model. Only position encodings fix the order. Marian, for example, stores
sines and cosines in two halves, and the paper interleaves them. The importer permutes the weight
matrices so that both agree.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from ..layers import sinusoidal_positions

# The dimension of size D in each kind of parameter.
RESIDUAL_DIMENSIONS = {
    r".*\.(embed_tokens|embed_positions|[qkv]_proj|fc1)\.weight|lm_head\.weight": 1,
    r".*\.(out_proj|fc2|\w*layer_norm)\.(weight|bias)": 0,
}
PAPER_BASE = 10000.0
FIRST_POSITIONS = range(5)
# Number of positions that are compared to recognize a table.
RECOGNISED_BY = 64
# Largest difference from the formula; some tables are stored in float16.
TOLERANCE = 2e-3


@dataclass(frozen=True)
class Sinusoids:
    """How a table of sinusoids, [n, D], differs from section 3.5's."""

    base: float  # of the wavelengths
    offset: int  # position of the first token
    order: Tensor  # the foreign index of each of our dimensions, [D]
    length: int  # the table's number of positions, n

    def table(self) -> Tensor:
        """Compute the foreign table exactly; the checkpoint's own may be rounded."""
        positions = torch.arange(self.length) + self.offset
        ours = sinusoidal_positions(positions, len(self.order), self.base)
        return ours[:, self.order.argsort()]


def interleaved_from_halves(d_model: int) -> Tensor:
    """Return the index, in halves, of each interleaved dimension: 0, D/2, 1, D/2 + 1, ..., [D]."""
    return torch.arange(d_model).view(2, -1).T.flatten()


def recognise_sinusoids(table: Tensor) -> Sinusoids | None:
    """Recognize a table of sinusoids, [n, D], that begins with the first token's position.

    The wavelengths may form D / 2 steps, as in the paper, or D / 2 - 1, as in Tensor2Tensor; the
    latter equals base 10000^(D / (D - 2)). The result is None if the table holds something else.
    """
    if table.dim() != 2 or table.size(1) % 2:
        return None
    d_model = table.size(1)
    start = table[:RECOGNISED_BY].detach().float().cpu()
    orders = (torch.arange(d_model), interleaved_from_halves(d_model))
    bases = (PAPER_BASE, PAPER_BASE ** (d_model / (d_model - 2)))
    for order, base, offset in product(orders, bases, FIRST_POSITIONS):
        ours = sinusoidal_positions(torch.arange(len(start)) + offset, d_model, base)
        if (ours - start[:, order]).abs().max() < TOLERANCE:
            return Sinusoids(base, offset, order, len(table))
    return None


def shared_position_table(tensors: Mapping[str, Tensor], source: str, target: str) -> Tensor:
    """Return the table of positions, [n, D], that a checkpoint holds equally for both halves."""
    if not (source in tensors and target in tensors and tensors[source].equal(tensors[target])):
        raise ValueError(
            f"The tensors {source} and {target} must be there and be equal, because both hold the "
            "sinusoids of the same positions."
        )
    return tensors[source].squeeze()


def reorder_residual(weights: Mapping[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    """Permute the residual stream in every parameter: `order` holds the current indices, [D]."""
    reordered = dict(weights)
    for name, weight in weights.items():
        for pattern, dimension in RESIDUAL_DIMENSIONS.items():
            if re.fullmatch(pattern, name):
                reordered[name] = weight.index_select(dimension, order.to(weight.device))
    return reordered


def fold_sample_deviation(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert layer norms that divide by the sample deviation to norms that use the variance.

    The sample deviation divides by n - 1 and the variance by n, so each gain is multiplied by
    sqrt((n - 1) / n). The foreign epsilon is added to the deviation: give our model its square.
    """
    return {
        name: weight.float() * ((len(weight) - 1) / len(weight)) ** 0.5
        if name.endswith("layer_norm.weight")
        else weight
        for name, weight in weights.items()
    }
