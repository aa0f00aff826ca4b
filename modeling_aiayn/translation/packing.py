"""Linear layers whose weights lie as the processor's kernels read them."""

from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

# Rows that the layout is made for; measured to be no worse for 4 or 4,096 of them.
ROWS = 128
# Fewer take longer: in float32 a step's products of one row 5.4 ms, of four 3.8.
FEWEST_ROWS = 4


Linear = Callable[[Tensor], Tensor]


def linear_function(weight: Tensor, bias: Tensor | None, is_packed: bool = True) -> Linear:
    """A linear layer for decoding, whose weight is laid out once on a CPU, not at each call.

    A step of decoding multiplies few rows by large matrices, and laying those out takes as long as
    the product; for the tokens of many sources it is a tenth of it. torch has no public name for
    this; its compiler does it to frozen weights. Few rows wait for the weights to come from memory,
    so weights that float16 holds exactly are kept in it: products and sums are in float32 all the
    same.

    Args:
        weight: The weight, [out, in]; what is done to it later may not reach the packed one.
        bias: The bias, [out], or None.
        is_packed: Whether to lay the weight out where that can be done. The compiler, for one,
            wants it as it is.

    Returns:
        x W^T + b as a function of states x, [rows, in].
    """
    weight = weight.detach()
    bias = None if bias is None else bias.detach()
    if is_packed and weight.device.type == "cpu":
        if is_kept_in_halves(weight):
            return _of_halves(weight, bias)
        if has_packed_kernel(weight.dtype):
            return _laid_out(weight, bias)
    return partial(functional.linear, weight=weight, bias=bias)


def has_packed_kernel(dtype: torch.dtype) -> bool:
    """Whether this processor multiplies by packed weights of dtype; bf16 needs AVX-512."""
    # torch leaves both questions unannotated.
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


def is_kept_in_halves(weight: Tensor) -> bool:
    """Whether float16 holds a float32 weight exactly, and the processor's kernels take it so."""
    return (
        weight.dtype == torch.float32
        and torch.backends.quantized.engine in ("fbgemm", "x86")
        and torch.equal(weight.half().float(), weight)
    )


def _of_halves(weight: Tensor, bias: Tensor | None) -> Linear:
    packed = torch.ops.quantized.linear_prepack_fp16(weight, bias)
    return lambda states: cast(Tensor, torch.ops.quantized.linear_dynamic_fp16(states, packed))


def _laid_out(weight: Tensor, bias: Tensor | None) -> Linear:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)

    def product(states: Tensor) -> Tensor:
        rows = len(states)
        if rows < FEWEST_ROWS:
            states = functional.pad(states, (0, 0, 0, FEWEST_ROWS - rows))
        result: Tensor = torch.ops.mkldnn._linear_pointwise(states, packed, bias, "none", [], "")
        return result[:rows]

    return product
