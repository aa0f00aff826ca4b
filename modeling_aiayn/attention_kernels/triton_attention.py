"""Blockwise attention for GPUs: the algorithms of blockwise_attention.py as Triton kernels.

`attn_implementation="aiayn_blockwise"` runs these kernels for CUDA tensors. The package imports
this file if torch is built for GPUs and triton is 3.4 or newer, as in torch 2.8.

A "program" in Triton is one instance of a kernel. It holds a block of one head's queries, and reads
the keys and values block by block. In `_key_gradients`, it holds a block of keys, and reads the
queries.
"""

import math
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .blockwise_attention import blockwise_backward, blockwise_forward, empty_output
from .blockwise_operation import KERNELS

# Limits of the number of rows in a block; tl.dot multiplies matrices of at least 16 x 16.
SMALLEST, LARGEST = 16, 64
# With rows of at most this many bytes, registers suffice to read three blocks ahead; else two.
NARROW = 128
# Scores are exponents of 2 in the kernels, because exp2 is faster than exp.
LOG2_E = tl.constexpr(math.log2(math.e))
# A key with a lower score counts as masked. Multiples of this number are still finite.
LOWEST = tl.constexpr(-1e30)
# Odd factors of the hash function lowbias32 (https://github.com/skeeto/hash-prospector).
FIRST_FACTOR, SECOND_FACTOR = tl.constexpr(0x7FEB352D), tl.constexpr(0x846CA68B)
# Triton does not compile separate code for different values of these arguments.
SIZES = ("queries", "keys", "threshold")


class Matrices(NamedTuple):
    """The matrices of all heads in a batch, [B, H, rows, width]. The last stride is 1."""

    pointer: Any
    sentence_stride: Any
    head_stride: Any
    row_stride: Any


class Mask(NamedTuple):
    """A mask, [B, H, T, S]. Dimensions over which it is broadcast have the stride 0."""

    pointer: Any
    sentence_stride: Any
    head_stride: Any
    row_stride: Any
    column_stride: Any


@triton.jit
def _place(length, BLOCK: tl.constexpr):
    """The index of a program's head in the whole batch, and the first row of its block."""
    blocks = tl.cdiv(length, BLOCK)
    program = tl.program_id(0)
    return (program // blocks).to(tl.int64), program % blocks * BLOCK


@triton.jit
def _of_head(tensors, head, heads):
    """Pointer to the matrix of a head."""
    offset = head // heads * tensors.sentence_stride + head % heads * tensors.head_stride
    return tensors.pointer + offset


@triton.jit
def _pointers(matrices, head, heads, rows, length, BLOCK_WIDTH: tl.constexpr):
    """Pointers to rows of a head's matrix. For rows beyond its end, they point to its last row."""
    rows = tl.minimum(rows, length - 1)[:, None]
    columns = tl.arange(0, BLOCK_WIDTH)[None, :]
    return _of_head(matrices, head, heads) + rows * matrices.row_stride + columns


@triton.jit
def _load(
    matrices, head, heads, rows, length, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr
):  # fmt: skip
    """Load rows of a head's matrix. Columns beyond WIDTH are zero."""
    pointers = _pointers(matrices, head, heads, rows, length, BLOCK_WIDTH)
    return tl.load(pointers, mask=tl.arange(0, BLOCK_WIDTH)[None, :] < WIDTH, other=0.0)


@triton.jit
def _store(
    matrices, block, head, heads, rows, length, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr
):  # fmt: skip
    pointers = _pointers(matrices, head, heads, rows, length, BLOCK_WIDTH)
    is_inside = (rows[:, None] < length) & (tl.arange(0, BLOCK_WIDTH)[None, :] < WIDTH)
    tl.store(pointers, block.to(matrices.pointer.dtype.element_ty), mask=is_inside)


@triton.jit
def _scores(
    left, right, rows, columns, mask, head, heads, queries, keys, scale, IS_EDGE: tl.constexpr,
    IS_CAUSAL: tl.constexpr, MASK: tl.constexpr, HAS_MASK_ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Products of queries and keys before scaling; minus infinity at keys that are masked.

    rows and columns are the indices of queries and keys, [T, 1] and [1, S], or [1, T] and [S, 1] if
    left holds the keys. A block at an edge has keys that some of its queries do not see.
    """
    scores = tl.dot(left, tl.trans(right), input_precision=PRECISION)
    if MASK != "none":
        pointers = _of_head(mask, head, heads) + tl.minimum(columns, keys - 1) * mask.column_stride
        if HAS_MASK_ROWS:
            pointers += tl.minimum(rows, queries - 1).to(tl.int64) * mask.row_stride
        if MASK == "boolean":
            scores = tl.where(tl.load(pointers) != 0, scores, float("-inf"))
        else:
            scores += tl.load(pointers).to(tl.float32) / scale
    if IS_EDGE:
        is_seen = columns < keys
        if IS_CAUSAL:
            is_seen = is_seen & (columns <= rows)
        scores = tl.where(is_seen, scores, float("-inf"))
    return scores


@triton.jit
def _is_kept(row_draws, column_draws, threshold):
    """Which weights dropout keeps, from 32-bit random numbers of their rows and columns.

    The exclusive or of both numbers is uniform, and any three results are independent (tabulation
    hashing). Four results at the corners of a rectangle are dependent; the products hide this.
    """
    draws = (row_draws ^ column_draws).to(tl.uint32, bitcast=True) * FIRST_FACTOR
    draws = (draws ^ (draws >> 15)) * SECOND_FACTOR
    return draws >= threshold.to(tl.uint32)


@triton.jit(do_not_specialize=SIZES)
def _attend(
    query, key, value, mask, output, log_sums, queries, keys, heads, scale, draws, draws_stride,
    threshold, factor_of_kept, IS_CAUSAL: tl.constexpr, MASK: tl.constexpr,
    HAS_MASK_ROWS: tl.constexpr, HAS_DROPOUT: tl.constexpr, BLOCK: tl.constexpr,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
    VALUE_BLOCK_WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Algorithm 1 for a block of queries."""
    head, row = _place(queries, BLOCK)
    rows = row + tl.arange(0, BLOCK)
    q = _load(query, head, heads, rows, queries, WIDTH, BLOCK_WIDTH)
    if HAS_DROPOUT:
        row_draws = tl.load(draws + head) ^ tl.load(draws + draws_stride + rows)
    factor = scale * LOG2_E
    largest = tl.full((BLOCK,), LOWEST, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    attended = tl.zeros((BLOCK, VALUE_BLOCK_WIDTH), tl.float32)
    end = tl.minimum(keys, row + BLOCK) if IS_CAUSAL else keys
    whole_end = (tl.minimum(keys, row) if IS_CAUSAL else keys) // BLOCK * BLOCK
    for IS_EDGE in tl.static_range(2):
        for column in range(whole_end if IS_EDGE else 0, end if IS_EDGE else whole_end, BLOCK):
            columns = column + tl.arange(0, BLOCK)
            k = _load(key, head, heads, columns, keys, WIDTH, BLOCK_WIDTH)
            v = _load(value, head, heads, columns, keys, VALUE_WIDTH, VALUE_BLOCK_WIDTH)
            scores = _scores(
                q, k, rows[:, None], columns[None, :], mask, head, heads, queries, keys, scale,
                IS_EDGE, IS_CAUSAL, MASK, HAS_MASK_ROWS, PRECISION,
            )  # fmt: skip
            before = largest
            largest = tl.maximum(before, tl.max(scores, 1))
            weights = tl.exp2(scores * factor - (largest * factor)[:, None])
            rescaling = tl.exp2((before - largest) * factor)
            total = total * rescaling + tl.sum(weights, 1)
            if HAS_DROPOUT:
                column_draws = tl.load(draws + 2 * draws_stride + columns)
                is_kept = _is_kept(row_draws[:, None], column_draws[None, :], threshold)
                weights = tl.where(is_kept, weights, 0.0)
            product = tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
            attended = attended * rescaling[:, None] + product
    total = tl.where(total == 0, 1.0, total)  # of rows without keys
    log_sum = largest * scale + tl.log(total)
    tl.store(log_sums + head * queries + rows, log_sum, mask=rows < queries)
    normalizer = 1.0 / total
    if HAS_DROPOUT:
        normalizer *= factor_of_kept
    attended *= normalizer[:, None]
    _store(output, attended, head, heads, rows, queries, VALUE_WIDTH, VALUE_BLOCK_WIDTH)


@triton.jit(do_not_specialize=SIZES)
def _query_gradients(
    query, key, value, mask, output, gradient, log_sums, sums, sums_stride, query_grad, queries,
    keys, heads, scale, draws, draws_stride, threshold, factor_of_kept, IS_CAUSAL: tl.constexpr,
    MASK: tl.constexpr, HAS_MASK_ROWS: tl.constexpr, HAS_DROPOUT: tl.constexpr,
    BLOCK: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
    VALUE_BLOCK_WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Algorithm 2: the gradients of a block of queries.

    It stores two numbers of each row for `_key_gradients`: the log-sum in base 2, and D of the
    algorithm. Rows beyond the last query get an infinite log-sum, which makes their weights 0.
    """
    head, row = _place(queries, BLOCK)
    rows = row + tl.arange(0, BLOCK)
    q = _load(query, head, heads, rows, queries, WIDTH, BLOCK_WIDTH)
    o = _load(output, head, heads, rows, queries, VALUE_WIDTH, VALUE_BLOCK_WIDTH)
    g = _load(gradient, head, heads, rows, queries, VALUE_WIDTH, VALUE_BLOCK_WIDTH)
    log_sum = tl.load(log_sums + head * queries + rows, mask=rows < queries, other=float("inf"))
    log_sum *= LOG2_E
    row_sum = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    place = sums + head * (tl.cdiv(queries, BLOCK) * BLOCK) + rows
    tl.store(place, log_sum)
    tl.store(place + sums_stride, row_sum)
    if HAS_DROPOUT:
        row_draws = tl.load(draws + head) ^ tl.load(draws + draws_stride + rows)
    grad_sum = tl.zeros((BLOCK, BLOCK_WIDTH), tl.float32)
    end = tl.minimum(keys, row + BLOCK) if IS_CAUSAL else keys
    whole_end = (tl.minimum(keys, row) if IS_CAUSAL else keys) // BLOCK * BLOCK
    for IS_EDGE in tl.static_range(2):
        for column in range(whole_end if IS_EDGE else 0, end if IS_EDGE else whole_end, BLOCK):
            columns = column + tl.arange(0, BLOCK)
            k = _load(key, head, heads, columns, keys, WIDTH, BLOCK_WIDTH)
            v = _load(value, head, heads, columns, keys, VALUE_WIDTH, VALUE_BLOCK_WIDTH)
            scores = _scores(
                q, k, rows[:, None], columns[None, :], mask, head, heads, queries, keys, scale,
                IS_EDGE, IS_CAUSAL, MASK, HAS_MASK_ROWS, PRECISION,
            )  # fmt: skip
            weights = tl.exp2(scores * (scale * LOG2_E) - log_sum[:, None])
            weights_grad = tl.dot(g, tl.trans(v), input_precision=PRECISION)
            if HAS_DROPOUT:
                column_draws = tl.load(draws + 2 * draws_stride + columns)
                is_kept = _is_kept(row_draws[:, None], column_draws[None, :], threshold)
                weights_grad = tl.where(is_kept, weights_grad * factor_of_kept, 0.0)
            scores_grad = weights * (weights_grad - row_sum[:, None])
            grad_sum += tl.dot(scores_grad.to(k.dtype), k, input_precision=PRECISION)
    _store(query_grad, grad_sum * scale, head, heads, rows, queries, WIDTH, BLOCK_WIDTH)


@triton.jit(do_not_specialize=SIZES)
def _key_gradients(
    query, key, value, mask, gradient, sums, sums_stride, key_grad, value_grad, queries, keys,
    heads, scale, draws, draws_stride, threshold, factor_of_kept, IS_CAUSAL: tl.constexpr,
    MASK: tl.constexpr, HAS_MASK_ROWS: tl.constexpr, HAS_DROPOUT: tl.constexpr,
    BLOCK: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr, VALUE_BLOCK_WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Algorithm 2: the gradients of a block of keys and of its values, from transposed weights."""
    head, column = _place(keys, BLOCK)
    columns = column + tl.arange(0, BLOCK)
    k = _load(key, head, heads, columns, keys, WIDTH, BLOCK_WIDTH)
    v = _load(value, head, heads, columns, keys, VALUE_WIDTH, VALUE_BLOCK_WIDTH)
    if HAS_DROPOUT:
        column_draws = tl.load(draws + head) ^ tl.load(draws + 2 * draws_stride + columns)
    grad_sum = tl.zeros((BLOCK, BLOCK_WIDTH), tl.float32)
    value_sum = tl.zeros((BLOCK, VALUE_BLOCK_WIDTH), tl.float32)
    sums_of_head = sums + head * (tl.cdiv(queries, BLOCK) * BLOCK)
    whole_start = column + BLOCK if IS_CAUSAL else 0
    for IS_EDGE in tl.static_range(1 if IS_CAUSAL else 0, -1, -1):
        end = tl.minimum(whole_start, queries) if IS_EDGE else queries
        for row in range(column if IS_EDGE else whole_start, end, BLOCK):
            rows = row + tl.arange(0, BLOCK)
            q = _load(query, head, heads, rows, queries, WIDTH, BLOCK_WIDTH)
            g = _load(gradient, head, heads, rows, queries, VALUE_WIDTH, VALUE_BLOCK_WIDTH)
            log_sum = tl.load(sums_of_head + rows)
            row_sum = tl.load(sums_of_head + sums_stride + rows)
            scores = _scores(
                k, q, rows[None, :], columns[:, None], mask, head, heads, queries, keys, scale,
                IS_EDGE, IS_CAUSAL, MASK, HAS_MASK_ROWS, PRECISION,
            )  # fmt: skip
            weights = tl.exp2(scores * (scale * LOG2_E) - log_sum[None, :])
            weights_grad = tl.dot(v, tl.trans(g), input_precision=PRECISION)
            dropped = weights
            if HAS_DROPOUT:
                row_draws = tl.load(draws + draws_stride + rows)
                is_kept = _is_kept(row_draws[None, :], column_draws[:, None], threshold)
                dropped = tl.where(is_kept, weights, 0.0)
                weights_grad = tl.where(is_kept, weights_grad * factor_of_kept, 0.0)
            value_sum += tl.dot(dropped.to(g.dtype), g, input_precision=PRECISION)
            scores_grad = weights * (weights_grad - row_sum[None, :])
            grad_sum += tl.dot(scores_grad.to(q.dtype), q, input_precision=PRECISION)
    _store(key_grad, grad_sum * scale, head, heads, columns, keys, WIDTH, BLOCK_WIDTH)
    if HAS_DROPOUT:
        value_sum *= factor_of_kept
    _store(value_grad, value_sum, head, heads, columns, keys, VALUE_WIDTH, VALUE_BLOCK_WIDTH)


def _matrices(states: Tensor) -> Matrices:
    # The kernels compute positions within a matrix in 32 bits.
    is_readable = states.stride(-1) == 1 and states.stride(-2) * states.size(-2) < 2**31
    rows = states if is_readable else states.contiguous()
    return Matrices(rows, *rows.stride()[:3])


def _block_width(states: Tensor) -> int:
    """The width of a head, padded to a power of 2. Triton's own function is slower."""
    return max(SMALLEST, 1 << (states.size(3) - 1).bit_length())


def _precision(dtype: torch.dtype) -> str:
    """How float32 is multiplied: in TF32 if torch allows it, else by three TF32 products."""
    if dtype != torch.float32 or torch.version.hip is not None:
        return "ieee"
    matmul = torch.backends.cuda.matmul
    # Since torch 2.9, reading allow_tf32 is an error if other code has set fp32_precision.
    new = getattr(matmul, "fp32_precision", None)
    is_allowed = matmul.allow_tf32 if new is None else new == "tf32"
    return "tf32" if is_allowed else "tf32x3"


def block_size_and_stages(element_size: int, width: int, shared_memory: int) -> tuple[int, int]:
    """Number of rows in a block (0 if no block fits), and number of blocks to read ahead.

    Args:
        element_size: Bytes of a number.
        width: Width of a head, padded to a power of 2.
        shared_memory: Bytes of shared memory that a program may use.
    """
    row_bytes = width * element_size
    stages = 3 if row_bytes <= NARROW else 2
    rows = LARGEST
    while rows >= SMALLEST:
        # A program's own blocks, without the pairs that it reads. Hopper's instructions for blocks
        # of 64 rows read operands from shared memory, which then holds two more blocks.
        own = 5 if rows == 64 else 3
        if (own + 2 * stages) * rows * row_bytes <= shared_memory:
            return rows, stages
        rows //= 2
    return 0, stages


@cache  # asking the driver is slow
def _shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a program may use."""
    if device.type != "cuda":
        return 2**30  # the interpreter has no limit
    properties = triton.runtime.driver.active.utils.get_device_properties(device.index)
    return int(properties["max_shared_mem"])


def _shape_of_blocks(query: Tensor, value: Tensor) -> tuple[int, int]:
    widest = max(_block_width(query), _block_width(value))
    return block_size_and_stages(query.element_size(), widest, _shared_memory(query.device))


def _is_supported(query: Tensor, value: Tensor) -> bool:
    is_known = query.dtype in (torch.float32, torch.bfloat16, torch.float16)
    return is_known and _shape_of_blocks(query, value)[0] > 0


class _Launch:
    """The mask, the grids, and the arguments and options that the kernels of a call share."""

    def __init__(
        self,
        query: Tensor,
        value: Tensor,
        mask: Tensor | None,
        seed: Tensor,
        dropout: float,
        is_causal: bool,
    ) -> None:
        sentences, heads, queries, width = query.shape
        keys, value_width = value.shape[2:]
        kind = "none"
        self.mask = Mask(query, 0, 0, 0, 0)
        if mask is not None:
            mask = mask.expand(sentences, heads, queries, keys)
            kind = "boolean" if mask.dtype == torch.bool else "added"
            self.mask = Mask(mask, *mask.stride())
        block, stages = _shape_of_blocks(query, value)
        self.query_grid = (-(-queries // block) * sentences * heads,)
        self.key_grid = (-(-keys // block) * sentences * heads,)
        threshold, draws = min(round(dropout * 2**32), 2**32 - 1), query
        if threshold:
            # Round up to whole blocks: the kernels also read the draws of rows beyond the end.
            count = -(-max(sentences * heads, queries, keys) // block) * block
            generator = torch.Generator(query.device).manual_seed(int(seed))
            draws = torch.empty(3, count, dtype=torch.int32, device=query.device)
            draws.random_(-(2**31), 2**31, generator=generator)
        scale, factor_of_kept = 1 / math.sqrt(width), 1 / (1 - threshold / 2**32)
        of_dropout = (draws, draws.stride(0), threshold, factor_of_kept)
        self.arguments = (queries, keys, heads, scale, *of_dropout)
        self.options = {
            "IS_CAUSAL": is_causal,
            "MASK": kind,
            "HAS_MASK_ROWS": self.mask.row_stride != 0,
            "HAS_DROPOUT": threshold > 0,
            "BLOCK": block,
            "WIDTH": width,
            "VALUE_WIDTH": value_width,
            "BLOCK_WIDTH": _block_width(query),
            "VALUE_BLOCK_WIDTH": _block_width(value),
            "PRECISION": _precision(query.dtype),
            # Compute a product and a sum in one instruction; Triton 3.10 and newer need this.
            "enable_fp_fusion": True,
            "num_stages": stages,
        }


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    seed: Tensor,
    dropout: float,
    is_causal: bool,
) -> tuple[Tensor, Tensor]:
    """Algorithm 1, like `blockwise_forward`. Dropout uses other random numbers."""
    if not _is_supported(query, value):
        return blockwise_forward(query, key, value, mask, seed, dropout, is_causal)
    launch = _Launch(query, value, mask, seed, dropout, is_causal)
    output = empty_output(query, value)
    log_sums = query.new_empty(*query.shape[:3], 1, dtype=torch.float32)
    inputs = (_matrices(query), _matrices(key), _matrices(value), launch.mask)
    with torch.cuda.device_of(query):  # Triton uses the current device
        _attend[launch.query_grid](
            *inputs, _matrices(output), log_sums, *launch.arguments, **launch.options
        )
    return output, log_sums


def backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    seed: Tensor,
    output: Tensor,
    log_sums: Tensor,
    dropout: float,
    is_causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Algorithm 2, like `blockwise_backward`."""
    if not _is_supported(query, value):
        return blockwise_backward(
            gradient, query, key, value, mask, seed, output, log_sums, dropout, is_causal
        )
    launch = _Launch(query, value, mask, seed, dropout, is_causal)
    inputs = (_matrices(query), _matrices(key), _matrices(value), launch.mask)
    of_output = _matrices(gradient)
    padded = launch.query_grid[0] * launch.options["BLOCK"]
    sums = torch.empty(2, padded, dtype=torch.float32, device=query.device)
    # Compilers expect gradients to have the memory layout of their tensors.
    gradients = (torch.empty_like(query), torch.empty_like(key), torch.empty_like(value))
    of_query, of_key, of_value = written = [_matrices(each) for each in gradients]
    with torch.cuda.device_of(query):
        _query_gradients[launch.query_grid](
            *inputs, _matrices(output), of_output, log_sums, sums, padded, of_query,
            *launch.arguments, **launch.options,
        )  # fmt: skip
        _key_gradients[launch.key_grid](
            *inputs, of_output, sums, padded, of_key, of_value,
            *launch.arguments, **launch.options,
        )  # fmt: skip
    for each, matrices in zip(gradients, written, strict=True):
        if matrices.pointer is not each:
            each.copy_(matrices.pointer)
    return gradients


KERNELS["cuda"] = (forward, backward)
