"""Section 3.2 in blocks: equation 1 for long texts, without storing its matrix of weights.

Dao 2023, FlashAttention-2 (arXiv:2307.08691). The softmax of a row needs its largest score and the
sum of its exponentials. Both are updated with each block of keys; when a larger score comes, the
earlier sums are rescaled (algorithm 1). The backward pass computes the weights of each block
again, from the logarithm of the row's sum (algorithm 2). Shapes are as in attention.py.
blockwise_operation.py registers both algorithms with torch and transformers.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ..dropout import draw_factors

# Number of queries, and of keys, in a block. All heads of a block fit into a CPU's cache.
BLOCK = 256


class _Blocks:
    """The blocks of a sentence: their ranges of keys, masked scores and dropout factors."""

    def __init__(
        self,
        sentence: int,
        query: Tensor,
        key: Tensor,
        mask: Tensor | None,
        seed: Tensor,
        dropout: float,
        is_causal: bool,
    ) -> None:
        self.query = query[sentence] / math.sqrt(query.size(-1))  # [H, T, K]
        self.key = key[sentence].transpose(1, 2)  # [H, K, S]
        shape = (len(query), -1, query.size(2), key.size(2))
        self.mask = None if mask is None else mask.expand(shape)[sentence]
        self.seed = int(seed) + sentence * query.size(2) * key.size(2)
        self.threshold, self.is_causal = min(round(dropout * 2**16), 2**16 - 1), is_causal

    def columns(self, rows: slice) -> Iterator[slice]:
        """Yield the blocks of keys that at least one of the rows attends to."""
        for columns in _spans(self.key.size(2)):
            if self.is_causal and columns.start >= rows.stop:
                return
            mask = None if self.mask is None else self.mask[:, rows, columns]
            if mask is None or mask.dtype != torch.bool or bool(mask.any()):
                yield columns

    def scores(self, rows: slice, columns: slice) -> Tensor:
        """Scores of a block, [H, rows, columns], minus infinity at keys that are masked."""
        scores = self.query[:, rows] @ self.key[:, :, columns]
        scores = scores.to(wide(scores))
        if self.is_causal and columns.stop > rows.start + 1:
            later = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device)
            scores.masked_fill_(later.triu(1 + rows.start - columns.start), -torch.inf)
        if self.mask is None:
            return scores
        mask = self.mask[:, rows, columns]
        is_bool = mask.dtype == torch.bool
        return scores.masked_fill_(~mask, -torch.inf) if is_bool else scores.add_(mask)

    def kept(self, weights: Tensor, rows: slice, columns: slice) -> Tensor | float:
        """Section 5.4: dropout factors of a block's weights. Each call returns the same ones."""
        if not self.threshold:
            return 1.0
        place = rows.start * self.key.size(2) + columns.start
        generator = torch.Generator(weights.device).manual_seed(self.seed + place)
        return draw_factors(weights, self.threshold, generator)


def _spans(length: int) -> Iterator[slice]:
    return (slice(start, min(start + BLOCK, length)) for start in range(0, length, BLOCK))


def wide(states: Tensor) -> torch.dtype:
    """The dtype of sums and exponentials: at least float32."""
    return torch.promote_types(states.dtype, torch.float32)


def empty_output(query: Tensor, value: Tensor) -> Tensor:
    """Allocate an output, [B, H, T, K], in which the heads of a token are adjacent in memory."""
    batch_size, heads, queries, _ = query.shape
    return value.new_empty(batch_size, queries, heads, value.size(3)).transpose(1, 2)


def blockwise_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    seed: Tensor,
    dropout: float,
    is_causal: bool,
) -> tuple[Tensor, Tensor]:
    """Algorithm 1: the output, [B, H, T, K], and each row's log-sum-exp, [B, H, T, 1]."""
    output = empty_output(query, value)
    log_sums = query.new_empty(*query.shape[:3], 1, dtype=wide(query))
    for sentence in range(len(query)):
        blocks = _Blocks(sentence, query, key, mask, seed, dropout, is_causal)
        for rows in _spans(query.size(2)):
            # Line 5 of algorithm 1. The lowest number replaces minus infinity, because infinity
            # minus infinity is undefined.
            largest = torch.full_like(log_sums[sentence, :, rows], torch.finfo(log_sums.dtype).min)
            total, attended = torch.zeros_like(largest), torch.zeros_like(largest)
            for columns in blocks.columns(rows):  # line 6
                scores = blocks.scores(rows, columns)  # line 8
                # Line 9.
                before, largest = largest, largest.maximum(scores.amax(-1, keepdim=True))
                weights = scores.sub_(largest).exp_()
                rescaling = before.sub_(largest).exp_()
                total = total * rescaling + weights.sum(-1, keepdim=True)
                # Line 10, with dropout.
                weights *= blocks.kept(weights, rows, columns)
                product = weights.to(value.dtype) @ value[sentence, :, columns]
                attended = attended * rescaling + product
            total.masked_fill_(total == 0, 1.0)  # of rows without keys
            output[sentence, :, rows] = attended / total  # line 12
            log_sums[sentence, :, rows] = largest + total.log()  # line 13
    return output, log_sums


def blockwise_backward(
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
    """Algorithm 2: the gradients of queries, keys and values, from the gradient of the output."""
    inputs = (query, key, value)
    gradient = gradient.contiguous()  # products read it many times
    of_query, of_key, of_value = (torch.zeros_like(each, dtype=wide(each)) for each in inputs)
    # Line 4 of algorithm 2 computes D. Here rows are the outer loop, and columns the inner one.
    sums = (gradient * output).sum(-1, keepdim=True, dtype=log_sums.dtype)
    for sentence in range(len(query)):
        blocks = _Blocks(sentence, query, key, mask, seed, dropout, is_causal)
        for rows in _spans(query.size(2)):
            part = gradient[sentence, :, rows]
            for columns in blocks.columns(rows):
                # Lines 10 and 11.
                weights = blocks.scores(rows, columns).sub_(log_sums[sentence, :, rows]).exp_()
                kept = blocks.kept(weights, rows, columns)
                dropped = (weights * kept).to(part.dtype)
                of_value[sentence, :, columns] += dropped.transpose(1, 2) @ part  # line 12
                of_weights = part @ value[sentence, :, columns].transpose(1, 2)  # line 13
                of_weights = of_weights.to(weights.dtype) * kept
                # Line 14, then 15 and 16.
                of_scores = of_weights.sub_(sums[sentence, :, rows]).mul_(weights).to(query.dtype)
                of_query[sentence, :, rows] += of_scores @ key[sentence, :, columns]
                of_key[sentence, :, columns] += of_scores.transpose(1, 2) @ blocks.query[:, rows]
    of_query /= math.sqrt(query.size(-1))
    return of_query.to(query.dtype), of_key.to(key.dtype), of_value.to(value.dtype)
