"""Linear layers for decoding: weights are packed once, in the type that the processor reads best.

torch has no public names for packing; its compiler does it to frozen weights.
"""

import logging
from collections.abc import Callable
from functools import lru_cache, partial

import torch
from torch import Tensor
from torch.nn import functional

from ..saved.int8 import rounded_to_int8

logger = logging.getLogger(__name__)

# Rows that the packed layout is made for. It is no slower for 4 or for 4,096 rows.
PACKED_ROWS = 128
# The packed kernel is slower for fewer rows than these, so fewer are padded.
FEWEST_ROWS = 4

Linear = Callable[[Tensor], Tensor]
MakeLinear = Callable[[Tensor, Tensor | None], Linear]


def linear_function(weight: Tensor, bias: Tensor | None) -> Linear:
    """A linear layer for decoding: x W^T + b of states x, [rows, in], with a weight of [out, in].

    On a CPU the weight is packed once: with few rows, packing takes as long as the product, which
    waits for weights to come from memory.
    """
    weight = weight.detach()
    bias = None if bias is None else bias.detach()
    if weight.device.type == "cpu" and has_packed_kernel(weight.dtype):
        return _packed_linear(weight, bias)
    return partial(functional.linear, weight=weight, bias=bias)


def has_packed_kernel(dtype: torch.dtype) -> bool:
    """Whether torch multiplies by packed weights of dtype on this processor."""
    # torch leaves the function unannotated. Its flag lets users switch oneDNN off.
    is_available = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return is_available and bool(torch.backends.mkldnn.enabled) and _packing_works(dtype)


@lru_cache
def _packing_works(dtype: torch.dtype) -> bool:
    """Try a product: it fails if the processor or this release of torch lacks the functions."""
    try:
        _packed_linear(torch.ones(1, 2, dtype=dtype), None)(torch.ones(1, 2, dtype=dtype))
    except (RuntimeError, AttributeError):
        return False
    return True


def warn_of_slow_bfloat16() -> None:
    """Warn if CPU decoding in bfloat16 has no kernel of its own."""
    if not has_packed_kernel(torch.bfloat16):
        logger.warning(
            "This CPU has no fast products in bfloat16, so translating is slow. Load the model "
            "with dtype='float32' (--dtype float32)."
        )


def _packed_linear(weight: Tensor, bias: Tensor | None) -> Linear:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_ROWS)

    def product(states: Tensor) -> Tensor:
        rows = len(states)
        if rows < FEWEST_ROWS:
            states = functional.pad(states, (0, 0, 0, FEWEST_ROWS - rows))
        result: Tensor = torch.ops.mkldnn._linear_pointwise(states, packed, bias, "none", [], "")
        return result[:rows]

    return product


def int8_linear_function(weight: Tensor, bias: Tensor | None) -> Linear:
    """As `linear_function`, with a weight that is rounded to 8 bits; products are in float32."""
    numbers, scales = rounded_to_int8(weight)
    return linear_function(numbers.to(weight.dtype) * scales[:, None].to(weight.dtype), bias)
