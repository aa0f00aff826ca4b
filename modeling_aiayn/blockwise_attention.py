"""Section 3.2 in blocks: equation 1 for long texts, without its matrix of weights in memory.

Dao 2023, FlashAttention-2 (arXiv:2307.08691). The softmax of a row needs its largest score and the
sum of its exponentials. Both are kept while the keys come block by block; a larger score rescales
what was added up before it (algorithm 1). The backward pass computes the weights of each block
anew, from the logarithm of the row's sum (algorithm 2). Shapes are those of attention.py.
"""

import math
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import bidirectional_mask_function, sdpa_mask

from .attention import additive_mask, scaled_dot_product_attention
from .dropout import draw_factors

# Queries, and keys, of a block. It has all heads of a sentence, and fits into a CPU's cache.
BLOCK = 256
# With fewer scores than these in a head, the plain form is faster.
FEWEST_SCORES = 256 * 256


def blockwise_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Equation 1 under the signature of `eager_attention_forward`; it returns no weights.

    A boolean attention_mask is True at keys that a query attends to; any other mask is added to the
    scores. Without a mask, module.is_causal decides. A query without keys, as of padding, gets
    zeros, or in the plain form of short inputs the mean of all values.

    Raises:
        ValueError: A library model has groups of queries, or caps its scores.
    """
    if key.size(1) not in (1, query.size(1)) or kwargs.get("softcap") is not None:
        raise ValueError(
            "aiayn_blockwise has no groups of queries and no softcap, and this model needs one of "
            "them. Load it with attn_implementation='sdpa' or 'eager'."
        )
    if scaling is not None and scaling != query.size(-1) ** -0.5:  # of a library model
        query = query * (scaling * query.size(-1) ** 0.5)
    queries, keys = query.size(2), key.size(2)
    if key.shape[:2] != query.shape[:2]:  # equation 1 would repeat them
        key, value = (each.expand(*query.shape[:2], -1, -1) for each in (key, value))
    is_causal = attention_mask is None and queries > 1 and getattr(module, "is_causal", False)
    # Sizes of an exported program may be symbols.
    is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)()
    # Algorithm 2 has no gradient of the mask, which a learned bias needs.
    is_learned = attention_mask is not None and attention_mask.requires_grad
    if (is_exporting or queries * keys >= FEWEST_SCORES) and not is_learned:
        # Draw the seed from torch's default generator: gradient checkpointing restores its state.
        seed = torch.randint(2**62, ()) if dropout else torch.tensor(0)
        inputs = (query, key, value, attention_mask, seed, dropout, is_causal)
        attend: Callable[..., tuple[Tensor, Tensor]] = _Attention.apply
        if torch.compiler.is_compiling() or type(query) is not Tensor or query.is_meta:
            attend = blockwise_attention
        return attend(*inputs)[0].transpose(1, 2), None
    if is_causal:
        attention_mask = torch.ones(queries, keys, dtype=torch.bool, device=key.device).tril()
    if attention_mask is not None:
        attention_mask = additive_mask(attention_mask, query.dtype)
    attended, _ = scaled_dot_product_attention(query, key, value, attention_mask, dropout)
    return attended.transpose(1, 2), None


class _Blocks:
    """The blocks of a sentence: which there are, their masked scores, and what dropout keeps."""

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
        """Blocks of keys that some of the rows attend to."""
        for columns in _spans(self.key.size(2)):
            if self.is_causal and columns.start >= rows.stop:
                return
            mask = None if self.mask is None else self.mask[:, rows, columns]
            if mask is None or mask.dtype != torch.bool or bool(mask.any()):
                yield columns

    def scores(self, rows: slice, columns: slice) -> Tensor:
        """Scores of a block, [H, rows, columns], minus infinity at keys that are masked."""
        scores = self.query[:, rows] @ self.key[:, :, columns]
        scores = scores.to(_wide(scores))
        if self.is_causal and columns.stop > rows.start + 1:
            later = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device)
            scores.masked_fill_(later.triu(1 + rows.start - columns.start), -torch.inf)
        if self.mask is None:
            return scores
        mask = self.mask[:, rows, columns]
        is_bool = mask.dtype == torch.bool
        return scores.masked_fill_(~mask, -torch.inf) if is_bool else scores.add_(mask)

    def kept(self, weights: Tensor, rows: slice, columns: slice) -> Tensor | float:
        """Factors of a block's weights after dropout, the same at each call; as in section 5.4."""
        if not self.threshold:
            return 1.0
        place = rows.start * self.key.size(2) + columns.start
        generator = torch.Generator(weights.device).manual_seed(self.seed + place)
        return draw_factors(weights, self.threshold, generator)


def _spans(length: int) -> Iterator[slice]:
    return (slice(start, min(start + BLOCK, length)) for start in range(0, length, BLOCK))


def _wide(states: Tensor) -> torch.dtype:
    """The type of sums and exponentials."""
    return torch.promote_types(states.dtype, torch.float32)


def empty_output(query: Tensor, value: Tensor) -> Tensor:
    """Room for an output, [B, H, T, K], in which the heads of a token lie side by side."""
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
    log_sums = query.new_empty(*query.shape[:3], 1, dtype=_wide(query))
    for sentence in range(len(query)):
        blocks = _Blocks(sentence, query, key, mask, seed, dropout, is_causal)
        for rows in _spans(query.size(2)):
            largest = torch.full_like(log_sums[sentence, :, rows], torch.finfo(log_sums.dtype).min)
            total, attended = torch.zeros_like(largest), torch.zeros_like(largest)
            for columns in blocks.columns(rows):
                scores = blocks.scores(rows, columns)
                before, largest = largest, largest.maximum(scores.amax(-1, keepdim=True))
                weights = scores.sub_(largest).exp_()
                rescaling = before.sub_(largest).exp_()
                total = total * rescaling + weights.sum(-1, keepdim=True)
                weights *= blocks.kept(weights, rows, columns)
                product = weights.to(value.dtype) @ value[sentence, :, columns]
                attended = attended * rescaling + product
            total.masked_fill_(total == 0, 1.0)  # of rows without keys
            output[sentence, :, rows] = attended / total
            log_sums[sentence, :, rows] = largest + total.log()
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
    of_query, of_key, of_value = (torch.zeros_like(each, dtype=_wide(each)) for each in inputs)
    sums = (gradient * output).sum(-1, keepdim=True, dtype=log_sums.dtype)  # algorithm 2's D
    for sentence in range(len(query)):
        blocks = _Blocks(sentence, query, key, mask, seed, dropout, is_causal)
        for rows in _spans(query.size(2)):
            part = gradient[sentence, :, rows]
            for columns in blocks.columns(rows):
                weights = blocks.scores(rows, columns).sub_(log_sums[sentence, :, rows]).exp_()
                kept = blocks.kept(weights, rows, columns)
                dropped = (weights * kept).to(part.dtype)
                of_value[sentence, :, columns] += dropped.transpose(1, 2) @ part
                of_weights = part @ value[sentence, :, columns].transpose(1, 2)
                of_weights = of_weights.to(weights.dtype) * kept
                of_scores = of_weights.sub_(sums[sentence, :, rows]).mul_(weights).to(query.dtype)
                of_query[sentence, :, rows] += of_scores @ key[sentence, :, columns]
                of_key[sentence, :, columns] += of_scores.transpose(1, 2) @ blocks.query[:, rows]
    of_query /= math.sqrt(query.size(-1))
    return of_query.to(query.dtype), of_key.to(key.dtype), of_value.to(value.dtype)


# Forward and backward pass for types of devices that have kernels of their own.
KERNELS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}


def _passes(query: Tensor) -> tuple[Callable[..., Any], Callable[..., Any]]:
    return KERNELS.get(query.device.type, (blockwise_forward, blockwise_backward))


@wraps(blockwise_forward)
def _forward(query: Tensor, *inputs: Any) -> Any:
    attend, _ = _passes(query)
    return attend(query, *inputs)


@wraps(blockwise_backward)
def _backward(gradient: Tensor, query: Tensor, *inputs: Any) -> Any:
    _, differentiate = _passes(query)
    return differentiate(gradient, query, *inputs)


# Compilers and exporters see two operations, and not their loops.
blockwise_attention = torch.library.custom_op(
    "aiayn::blockwise_attention", _forward, mutates_args=()
)
blockwise_attention_backward = torch.library.custom_op(
    "aiayn::blockwise_attention_backward", _backward, mutates_args=()
)
blockwise_attention.register_fake(
    lambda query, _key, value, *_: (
        empty_output(query, value),
        query.new_empty(*query.shape[:3], 1, dtype=_wide(query)),
    )
)
blockwise_attention_backward.register_fake(
    lambda _gradient, *inputs: tuple(torch.empty_like(each) for each in inputs[:3])
)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.dropout, ctx.is_causal = inputs
    ctx.save_for_backward(*tensors, *output)


def _differentiate(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    inputs = (gradient, *ctx.saved_tensors, ctx.dropout, ctx.is_causal)
    return *blockwise_attention_backward(*inputs), None, None, None, None


blockwise_attention.register_autograd(_differentiate, setup_context=_remember)


class _Attention(torch.autograd.Function):
    """The operation for programs that are not compiled: calls of the custom one take longer."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        output = _forward(*inputs)
        _remember(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """Algorithm 2. Its gradients have none, and the custom operation says so."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return _differentiate(ctx, gradient, _)
        inputs = (gradient, *ctx.saved_tensors, ctx.dropout, ctx.is_causal)
        return *_backward(*inputs), None, None, None, None


def blockwise_mask(*, q_length: int, mask_function: Any, **options: Any) -> Tensor | None:
    """The mask of sdpa, [B, 1, T, S]; where all queries see the same keys, they share one row."""
    length = 1 if mask_function is bidirectional_mask_function else q_length
    mask: Tensor | None = sdpa_mask(q_length=length, mask_function=mask_function, **options)
    return mask if mask is None else mask.expand(-1, -1, q_length, -1)


# Without a mask function of this name the library would hand over no mask at all.
AttentionInterface.register("aiayn_blockwise", blockwise_attention_forward)
AttentionMaskInterface.register("aiayn_blockwise", blockwise_mask)
