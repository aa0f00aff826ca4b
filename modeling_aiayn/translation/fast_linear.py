"""Linear layers for decoding: weights are packed once, in the type that the processor reads best.

torch has no public names for packing; its compiler does it to frozen weights.
"""

import logging
import math
import threading
import warnings
from collections.abc import Callable
from functools import cache, lru_cache, partial
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from ..saved.int8 import INT8_MAX, rounded_to_int8

logger = logging.getLogger(__name__)

# Rows that the packed layout is made for. It is no slower for 4 or for 4,096 rows.
PACKED_ROWS = 128
# The packed kernel is slower for fewer rows than these, so fewer are padded.
FEWEST_ROWS = 4
# Rows of a tile of AMX, Intel's instructions for matrices. With fewer rows, FBGEMM is faster.
TILE_ROWS = 16
# Held while the quantization engine, a setting of the whole process, is another one.
ENGINE_LOCK = threading.Lock()
# torch searches each argument for an override of the product. For a packed weight the search fails
# by two C++ exceptions, 18 microseconds on Zen 3.
without_overrides = torch._C.DisableTorchFunctionSubclass

Linear = Callable[[Tensor], Tensor]
MakeLinear = Callable[[Tensor, Tensor | None], Linear]


def linear_function(weight: Tensor, bias: Tensor | None) -> Linear:
    """A linear layer for decoding: x W^T + b of states x, [rows, in], with a weight of [out, in].

    On a CPU the weight is packed once: with few rows, packing takes as long as the product, which
    waits for weights to come from memory. So weights that float16 holds exactly are stored in
    float16; products and sums are in float32 all the same.
    """
    weight = weight.detach()
    bias = None if bias is None else bias.detach()
    if weight.device.type == "cpu":
        if is_exact_in_float16(weight):
            return _float16_linear(weight, bias)
        if has_packed_kernel(weight.dtype):
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


def is_exact_in_float16(weight: Tensor) -> bool:
    """Whether float16 holds a float32 weight exactly, and this processor has kernels for it."""
    return (
        weight.dtype == torch.float32
        and torch.backends.quantized.engine in ("fbgemm", "x86")
        and torch.equal(weight.half().float(), weight)
    )


def _float16_linear(weight: Tensor, bias: Tensor | None) -> Linear:
    packed = torch.ops.quantized.linear_prepack_fp16(weight, bias)
    product = torch.ops.quantized.linear_dynamic_fp16

    def linear(states: Tensor) -> Tensor:
        with without_overrides():
            return cast(Tensor, product(states, packed))

    return linear


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
    """As `linear_function`, with weights and states in 8 bits; sums are exact, results in float32.

    A weight has a scale for each output. All rows of states share a scale, so a row's result
    depends a little on the others. Without a kernel for int8, only the weights are rounded.
    """
    numbers, scales = rounded_to_int8(weight)
    bias = None if bias is None else bias.detach()
    if weight.device.type == "cpu" and has_int8_kernel():
        return _int8_linear(numbers, scales, bias)
    return linear_function(numbers.to(weight.dtype) * scales[:, None].to(weight.dtype), bias)


@lru_cache
def has_int8_kernel() -> bool:
    """Whether torch multiplies whole numbers of 8 bits faster than floats on this processor."""
    if torch.backends.quantized.engine not in ("fbgemm", "x86"):  # qnnpack, on ARM, is slower
        return False
    try:
        _int8_linear(torch.ones(1, 2, dtype=torch.int8), torch.ones(1), None)(torch.ones(1, 2))
    except (RuntimeError, AttributeError):
        return False
    return True


def warn_of_slow_int8() -> None:
    """Warn if CPU decoding in int8 has no kernel of its own."""
    if not has_int8_kernel():
        logger.warning(
            "This CPU, or this release of torch, has no fast products in int8. Weights are rounded "
            "to int8, and products are in float32."
        )


def _int8_linear(numbers: Tensor, scales: Tensor, bias: Tensor | None) -> Linear:
    product = torch.ops.quantized.linear_dynamic
    reduce_range = _int8_products_overflow()
    engine = torch.backends.quantized.engine
    rows_for_tiles = TILE_ROWS if has_int8_tiles() else math.inf

    # A weight is packed for the engines that its first products need: packing is slow.
    @cache
    def packed(engine: str) -> object:
        return _int8_packed(numbers, scales, bias, engine)

    def linear(states: Tensor) -> Tensor:
        with without_overrides():
            weight = packed("onednn" if len(states) >= rows_for_tiles else engine)
            return cast(Tensor, product(states, weight, reduce_range))

    return linear


def has_int8_tiles() -> bool:
    """Whether oneDNN multiplies numbers of 8 bits by AMX, which FBGEMM does not use."""
    # Limited to older instructions, it does not multiply in bfloat16 either.
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("amx_int8")) and has_packed_kernel(torch.bfloat16)


def _int8_packed(numbers: Tensor, scales: Tensor, bias: Tensor | None, engine: str) -> object:
    with warnings.catch_warnings(), ENGINE_LOCK:
        # Newer releases of torch announce the end of these tensors; see has_int8_kernel.
        warnings.simplefilter("ignore")
        offsets = torch.zeros(len(numbers), dtype=torch.long)
        weight = torch._make_per_channel_quantized_tensor(numbers, scales.double(), offsets, 0)
        default = torch.backends.quantized.engine
        torch.backends.quantized.engine = engine
        try:
            return torch.ops.quantized.linear_prepack(weight, bias)
        finally:
            torch.backends.quantized.engine = default


@lru_cache
def _int8_products_overflow() -> bool:
    """Whether a sum of two int8 products overflows, as without VNNI; states then get 7 bits."""
    numbers = torch.full((1, 2), INT8_MAX, dtype=torch.int8)
    packed = _int8_packed(numbers, torch.ones(1), None, torch.backends.quantized.engine)
    result: Tensor = torch.ops.quantized.linear_dynamic(torch.ones(1, 2), packed, False)
    return not torch.isclose(result, torch.tensor(2.0 * INT8_MAX)).all()
