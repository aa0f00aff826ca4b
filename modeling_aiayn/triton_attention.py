"""Blockwise attention for GPUs: the algorithms of blockwise_attention.py as Triton kernels.

    import modeling_aiayn.triton_attention

registers the kernels: CUDA tensors then take them under `attn_implementation="aiayn_blockwise"`.
A program computes a block of queries of one head; in `_key_gradients`, a block of keys. Matrices
are those of one head, contiguous: queries are [T, K], keys [S, K].
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .blockwise_attention import (
    blockwise_attention,
    blockwise_attention_backward,
    blockwise_backward,
    blockwise_forward,
)

# Bytes of a block of queries or keys: several of them must fit into a GPU's shared memory.
BLOCK_BYTES = 8192
# Sizes of a block; tl.dot multiplies matrices of at least 16 x 16.
SMALLEST, LARGEST = 16, 64
# GPUs before Ampere (compute capability 8.0) have less shared memory.
LARGEST_BEFORE_AMPERE = 32
# Scores are exponents of 2 in the kernels, because exp2 is faster than exp.
LOG2_E = tl.constexpr(math.log2(math.e))
LOWEST = tl.constexpr(torch.finfo(torch.float32).min)


@triton.jit
def _load(matrix, rows, columns, height, width):
    """A block of a matrix, with zeros beyond its edges."""
    is_inside = (rows[:, None] < height) & (columns[None, :] < width)
    return tl.load(matrix + rows[:, None] * width + columns[None, :], mask=is_inside, other=0.0)


@triton.jit
def _store(matrix, block, rows, columns, height, width):
    is_inside = (rows[:, None] < height) & (columns[None, :] < width)
    pointers = matrix + rows[:, None] * width + columns[None, :]
    tl.store(pointers, block.to(matrix.dtype.element_ty), mask=is_inside)


@triton.jit
def _scores(
    query, key, rows, columns, mask, row_stride, column_stride, queries, keys, scale,
    IS_CAUSAL: tl.constexpr, MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Equation 1's scores of a block, in base 2; minus infinity at keys that are masked."""
    scores = tl.dot(query, tl.trans(key), input_precision=PRECISION) * (scale * LOG2_E)
    is_seen = (columns < keys)[None, :]
    if IS_CAUSAL:
        is_seen = is_seen & (columns[None, :] <= rows[:, None])
    if MASK != "none":
        is_inside = (rows[:, None] < queries) & (columns[None, :] < keys)
        pointers = mask + rows.to(tl.int64)[:, None] * row_stride + columns[None, :] * column_stride
        if MASK == "boolean":
            is_seen = is_seen & tl.load(pointers, mask=is_inside, other=0).to(tl.int1)
        else:
            scores += tl.load(pointers, mask=is_inside, other=0.0).to(tl.float32) * LOG2_E
    return tl.where(is_seen, scores, float("-inf"))


@triton.jit
def _kept(seed, rows, columns, keys, dropout):
    """Factors of a block's weights after dropout, the same at each call."""
    draws = tl.rand(seed, rows[:, None] * keys + columns[None, :])
    return tl.where(draws < dropout, 0.0, 1.0 / (1.0 - dropout))


@triton.jit
def _attend(
    query, key, value, mask, output, log_sums, seed, dropout, scale, heads, queries, keys, width,
    value_width, sentence_stride, head_stride, row_stride, column_stride,
    IS_CAUSAL: tl.constexpr, MASK: tl.constexpr, HAS_DROPOUT: tl.constexpr, BLOCK: tl.constexpr,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Algorithm 1 for a block of queries."""
    head = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    key_dims, value_dims = tl.arange(0, WIDTH), tl.arange(0, VALUE_WIDTH)
    mask += head // heads * sentence_stride + head % heads * head_stride
    q = _load(query + head * queries * width, rows, key_dims, queries, width)
    largest = tl.full((BLOCK,), LOWEST, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    attended = tl.zeros((BLOCK, VALUE_WIDTH), tl.float32)
    end = tl.minimum(keys, (tl.program_id(0) + 1) * BLOCK) if IS_CAUSAL else keys
    for start in range(0, end, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        k = _load(key + head * keys * width, columns, key_dims, keys, width)
        v = _load(value + head * keys * value_width, columns, value_dims, keys, value_width)
        scores = _scores(
            q, k, rows, columns, mask, row_stride, column_stride, queries, keys, scale,
            IS_CAUSAL, MASK, PRECISION,
        )  # fmt: skip
        before = largest
        largest = tl.maximum(before, tl.max(scores, 1))
        weights = tl.exp2(scores - largest[:, None])
        rescaling = tl.exp2(before - largest)
        total = total * rescaling + tl.sum(weights, 1)
        if HAS_DROPOUT:
            weights *= _kept(seed + head, rows, columns, keys, dropout)
        product = tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        attended = attended * rescaling[:, None] + product
    total = tl.where(total == 0, 1.0, total)  # of rows without keys
    attended /= total[:, None]
    _store(output + head * queries * value_width, attended, rows, value_dims, queries, value_width)
    log_sum = (largest + tl.log2(total)) / LOG2_E
    tl.store(log_sums + head * queries + rows, log_sum, mask=rows < queries)


@triton.jit
def _weights_and_gradients(
    scores, gradient, value, log_sum, row_sum, kept, PRECISION: tl.constexpr
):  # fmt: skip
    """A block's weights after dropout, and the gradients of its scores."""
    weights = tl.exp2(scores - log_sum[:, None] * LOG2_E)
    weights_grad = tl.dot(gradient, tl.trans(value), input_precision=PRECISION) * kept
    return weights * kept, weights * (weights_grad - row_sum[:, None])


@triton.jit
def _query_gradients(
    query, key, value, mask, gradient, log_sums, row_sums, query_grad, seed, dropout, scale, heads,
    queries, keys, width, value_width, sentence_stride, head_stride, row_stride, column_stride,
    IS_CAUSAL: tl.constexpr, MASK: tl.constexpr, HAS_DROPOUT: tl.constexpr, BLOCK: tl.constexpr,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Algorithm 2: the gradients of a block of queries."""
    head = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    key_dims, value_dims = tl.arange(0, WIDTH), tl.arange(0, VALUE_WIDTH)
    mask += head // heads * sentence_stride + head % heads * head_stride
    q = _load(query + head * queries * width, rows, key_dims, queries, width)
    g = _load(gradient + head * queries * value_width, rows, value_dims, queries, value_width)
    log_sum = tl.load(log_sums + head * queries + rows, mask=rows < queries, other=0.0)
    row_sum = tl.load(row_sums + head * queries + rows, mask=rows < queries, other=0.0)
    grad_sum = tl.zeros((BLOCK, WIDTH), tl.float32)
    end = tl.minimum(keys, (tl.program_id(0) + 1) * BLOCK) if IS_CAUSAL else keys
    for start in range(0, end, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        k = _load(key + head * keys * width, columns, key_dims, keys, width)
        v = _load(value + head * keys * value_width, columns, value_dims, keys, value_width)
        scores = _scores(
            q, k, rows, columns, mask, row_stride, column_stride, queries, keys, scale,
            IS_CAUSAL, MASK, PRECISION,
        )  # fmt: skip
        kept = _kept(seed + head, rows, columns, keys, dropout) if HAS_DROPOUT else 1.0
        _, scores_grad = _weights_and_gradients(scores, g, v, log_sum, row_sum, kept, PRECISION)
        grad_sum += tl.dot(scores_grad.to(k.dtype), k, input_precision=PRECISION)
    _store(query_grad + head * queries * width, grad_sum * scale, rows, key_dims, queries, width)


@triton.jit
def _key_gradients(
    query, key, value, mask, gradient, log_sums, row_sums, key_grad, value_grad, seed, dropout,
    scale, heads, queries, keys, width, value_width,
    sentence_stride, head_stride, row_stride, column_stride,
    IS_CAUSAL: tl.constexpr, MASK: tl.constexpr, HAS_DROPOUT: tl.constexpr, BLOCK: tl.constexpr,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Algorithm 2: the gradients of a block of keys and of its values."""
    head = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    key_dims, value_dims = tl.arange(0, WIDTH), tl.arange(0, VALUE_WIDTH)
    mask += head // heads * sentence_stride + head % heads * head_stride
    k = _load(key + head * keys * width, columns, key_dims, keys, width)
    v = _load(value + head * keys * value_width, columns, value_dims, keys, value_width)
    grad_sum = tl.zeros((BLOCK, WIDTH), tl.float32)
    value_sum = tl.zeros((BLOCK, VALUE_WIDTH), tl.float32)
    first = tl.program_id(0) * BLOCK if IS_CAUSAL else 0
    for start in range(first, queries, BLOCK):
        rows = start + tl.arange(0, BLOCK)
        q = _load(query + head * queries * width, rows, key_dims, queries, width)
        g = _load(gradient + head * queries * value_width, rows, value_dims, queries, value_width)
        log_sum = tl.load(log_sums + head * queries + rows, mask=rows < queries, other=0.0)
        row_sum = tl.load(row_sums + head * queries + rows, mask=rows < queries, other=0.0)
        scores = _scores(
            q, k, rows, columns, mask, row_stride, column_stride, queries, keys, scale,
            IS_CAUSAL, MASK, PRECISION,
        )  # fmt: skip
        kept = _kept(seed + head, rows, columns, keys, dropout) if HAS_DROPOUT else 1.0
        dropped, scores_grad = _weights_and_gradients(
            scores, g, v, log_sum, row_sum, kept, PRECISION
        )
        value_sum += tl.dot(tl.trans(dropped.to(g.dtype)), g, input_precision=PRECISION)
        grad_sum += tl.dot(tl.trans(scores_grad.to(q.dtype)), q, input_precision=PRECISION)
    _store(key_grad + head * keys * width, grad_sum * scale, columns, key_dims, keys, width)
    _store(
        value_grad + head * keys * value_width, value_sum, columns, value_dims, keys, value_width
    )


def _is_supported(query: Tensor) -> bool:
    return query.dtype in (torch.float32, torch.bfloat16, torch.float16)


def _block_size(query: Tensor, width: int) -> int:
    """Queries and keys of a block, for heads of a width."""
    is_old = query.is_cuda and torch.cuda.get_device_capability(query.device) < (8, 0)
    largest = LARGEST_BEFORE_AMPERE if is_old else LARGEST
    fitting = BLOCK_BYTES // (triton.next_power_of_2(width) * query.element_size())
    return max(SMALLEST, min(largest, fitting))


def _sizes_and_options(
    query: Tensor,
    value: Tensor,
    mask: Tensor | None,
    seed: Tensor,
    dropout: float,
    is_causal: bool,
) -> tuple[Tensor, tuple[Any, ...], dict[str, Any]]:
    """The mask or a stand-in for it, and the last arguments of all kernels."""
    _, heads, queries, width = query.shape
    keys, value_width = value.shape[2:]
    strides: tuple[int, ...] = (0, 0, 0, 0)
    kind = "none"
    if mask is not None:
        mask = mask.expand(query.size(0), heads, queries, keys)
        strides = mask.stride()
        kind = "boolean" if mask.dtype == torch.bool else "added"
    scale = 1 / math.sqrt(width)
    sizes = (heads, queries, keys, width, value_width, *strides)
    is_exact = query.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32
    options = {
        "IS_CAUSAL": is_causal,
        "MASK": kind,
        "HAS_DROPOUT": dropout > 0,
        "BLOCK": _block_size(query, max(width, value_width)),
        "WIDTH": max(SMALLEST, triton.next_power_of_2(width)),
        "VALUE_WIDTH": max(SMALLEST, triton.next_power_of_2(value_width)),
        "PRECISION": "ieee" if is_exact else "tf32",
    }
    return query if mask is None else mask, (int(seed), dropout, scale, *sizes), options


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    seed: Tensor,
    dropout: float,
    is_causal: bool,
) -> tuple[Tensor, Tensor]:
    """Algorithm 1, as `blockwise_forward`; dropout draws other weights than it does."""
    if not _is_supported(query):
        return blockwise_forward(query, key, value, mask, seed, dropout, is_causal)
    query, key, value = (each.contiguous() for each in (query, key, value))
    mask, arguments, options = _sizes_and_options(query, value, mask, seed, dropout, is_causal)
    output = value.new_empty(*query.shape[:3], value.size(3))
    log_sums = query.new_empty(*query.shape[:3], 1, dtype=torch.float32)
    blocks = (triton.cdiv(query.size(2), options["BLOCK"]), query.size(0) * query.size(1))
    _attend[blocks](query, key, value, mask, output, log_sums, *arguments, **options)
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
    """Algorithm 2, as `blockwise_backward`."""
    if not _is_supported(query):
        return blockwise_backward(
            gradient, query, key, value, mask, seed, output, log_sums, dropout, is_causal
        )
    likes = (query, key, value)
    query, key, value, gradient = (each.contiguous() for each in (*likes, gradient))
    mask, arguments, options = _sizes_and_options(query, value, mask, seed, dropout, is_causal)
    row_sums = (gradient * output).sum(-1, dtype=torch.float32)
    query_grad, key_grad, value_grad = (torch.empty_like(each) for each in (query, key, value))
    kernel_inputs = (query, key, value, mask, gradient, log_sums, row_sums)
    heads = query.size(0) * query.size(1)
    query_grid = (triton.cdiv(query.size(2), options["BLOCK"]), heads)
    _query_gradients[query_grid](*kernel_inputs, query_grad, *arguments, **options)
    key_grid = (triton.cdiv(key.size(2), options["BLOCK"]), heads)
    _key_gradients[key_grid](*kernel_inputs, key_grad, value_grad, *arguments, **options)
    # Compilers rely on gradients that are laid out as their tensors.
    pairs = zip(likes, (query_grad, key_grad, value_grad), strict=True)
    in_query, in_key, in_value = (torch.empty_like(like).copy_(each) for like, each in pairs)
    return in_query, in_key, in_value


blockwise_attention.register_kernel("cuda")(forward)
blockwise_attention_backward.register_kernel("cuda")(backward)
