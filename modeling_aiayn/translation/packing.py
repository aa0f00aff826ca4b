"""Linear layers whose weights lie as the processor's kernels read them."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

# Rows that the layout is made for; measured to be no worse for 4 or 256 of them.
ROWS = 128


def linear_function(
    weight: Tensor, bias: Tensor | None, is_packed: bool = True
) -> Callable[[Tensor], Tensor]:
    """A linear layer for decoding, whose weight is laid out once on a CPU, not at each call.

    A step of decoding multiplies few rows by large matrices, and laying those out takes as long as
    the product. torch has no public name for this; its compiler does it to frozen weights.

    Args:
        weight: The weight, [out, in]; what is done to it later may not reach the packed one.
        bias: The bias, [out], or None.
        is_packed: Whether to lay the weight out where that can be done. The compiler, for one,
            wants it as it is.

    Returns:
        x W^T + b as a function of states x, [..., in].
    """
    weight = weight.detach()
    bias = None if bias is None else bias.detach()
    # torch leaves it unannotated.
    has_kernels = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    is_packable = weight.dtype in (torch.float32, torch.bfloat16) and weight.device.type == "cpu"
    if not (is_packed and has_kernels and is_packable):
        return partial(functional.linear, weight=weight, bias=bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)

    def product(states: Tensor) -> Tensor:
        result: Tensor = torch.ops.mkldnn._linear_pointwise(states, packed, bias, "none", [], "")
        return result

    return product
