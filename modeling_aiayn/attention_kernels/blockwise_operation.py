"""Blockwise attention for models: a torch operation with a gradient, and its registration.

Its name in transformers is aiayn_blockwise. The algorithms are in blockwise_attention.py.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import bidirectional_mask_function, sdpa_mask

from ..attention import additive_mask, scaled_dot_product_attention
from .blockwise_attention import blockwise_backward, blockwise_forward, empty_output, wide

# If a head has fewer scores than this, plain equation 1 is faster.
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
    """Equation 1 with the signature of `eager_attention_forward`; it returns no weights.

    A boolean attention_mask is True at keys that a query attends to; any other mask is added to the
    scores. Without a mask, module.is_causal decides. If all keys of a query are masked, its output
    is zero; for short inputs, which use plain equation 1, it is the mean of all values.

    Raises:
        ValueError: A model of transformers uses grouped-query attention or softcap.
    """
    if key.size(1) not in (1, query.size(1)) or kwargs.get("softcap") is not None:
        raise ValueError(
            "aiayn_blockwise has no groups of queries and no softcap, and this model needs one of "
            "them. Load it with attn_implementation='sdpa' or 'eager'."
        )
    if scaling is not None and scaling != query.size(-1) ** -0.5:  # in models of transformers
        query = query * (scaling * query.size(-1) ** 0.5)
    queries, keys = query.size(2), key.size(2)
    if key.shape[:2] != query.shape[:2]:  # equation 1 would broadcast
        key, value = (each.expand(*query.shape[:2], -1, -1) for each in (key, value))
    is_causal = attention_mask is None and queries > 1 and getattr(module, "is_causal", False)
    # In an exported program, sizes may be symbolic.
    is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)()
    # Algorithm 2 computes no gradient of the mask, but a learned bias needs one.
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


# Forward and backward functions of the device types that have their own kernels.
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


# Compilers and exporters see two operations instead of the loops in them.
blockwise_attention = torch.library.custom_op(
    "aiayn::blockwise_attention", _forward, mutates_args=()
)
blockwise_attention_backward = torch.library.custom_op(
    "aiayn::blockwise_attention_backward", _backward, mutates_args=()
)
blockwise_attention.register_fake(
    lambda query, _key, value, *_: (
        empty_output(query, value),
        query.new_empty(*query.shape[:3], 1, dtype=wide(query)),
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
    """The operation for uncompiled programs. Calling the custom operation would take longer."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        output = _forward(*inputs)
        _remember(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """Algorithm 2. There are no second derivatives: the custom operation raises an error."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return _differentiate(ctx, gradient, _)
        inputs = (gradient, *ctx.saved_tensors, ctx.dropout, ctx.is_causal)
        return *_backward(*inputs), None, None, None, None


def blockwise_mask(*, q_length: int, mask_function: Any, **options: Any) -> Tensor | None:
    """The mask of sdpa, [B, 1, T, S]. If all queries see the same keys, they share one row."""
    length = 1 if mask_function is bidirectional_mask_function else q_length
    mask: Tensor | None = sdpa_mask(q_length=length, mask_function=mask_function, **options)
    return mask if mask is None else mask.expand(-1, -1, q_length, -1)


# Without a mask function of this name, transformers would pass no mask at all.
AttentionInterface.register("aiayn_blockwise", blockwise_attention_forward)
AttentionMaskInterface.register("aiayn_blockwise", blockwise_mask)
