"""Section 5.4's loss from hidden states, without the logits of a whole batch.

A batch of 8,192 tokens has 300 million logits at a vocabulary of 37,000, and a plain computation
keeps them several times over. Here the output projection, the loss and their gradients are computed
for a few positions at a time, and for real targets alone.
"""

from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from .losses import IGNORED_LABEL, check_share, label_smoothed_cross_entropy, mean_over_step

# Logits of a chunk: 16 MiB in float32, which stay in a CPU's last cache from pass to pass.
LOGITS_IN_CHUNK = 2**22


def head_loss(
    head: nn.Module,
    hidden_states: Tensor,
    labels: Tensor,
    num_items_in_batch: Tensor | int | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """The loss under an output projection, in chunks where that is a linear layer and no more.

    An adapter, a quantised or a distributed projection is called as it is, and builds its logits.

    Args:
        head: The output projection, from [B, T, D] to [B, T, V].
        hidden_states: The decoder's output, [B, T, D].
        labels: Target ids, [B, T]; -100 where there is none.
        num_items_in_batch: Real target tokens in the whole step. None: those in labels.
        label_smoothing: Share spread evenly over all V entries.

    Returns:
        The loss in nats per token, [].
    """
    if is_plain_linear(head):
        weight, bias = head.weight, head.bias
        return chunked_cross_entropy(
            hidden_states, weight, bias, labels, num_items_in_batch, label_smoothing
        )
    return label_smoothed_cross_entropy(
        head(hidden_states), labels, num_items_in_batch, label_smoothing
    )


def is_plain_linear(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether calling module is a product with its weight, and nothing hooks into the call."""
    return (
        type(module) is nn.Linear
        and not isinstance(module.weight, DTensor)
        and not (module._forward_hooks or module._forward_pre_hooks)
        and not hasattr(module, "_hf_hook")  # accelerate fetches the weight when it is called
    )


def chunked_cross_entropy(
    hidden_states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    num_items_in_batch: Tensor | int | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """`label_smoothed_cross_entropy` of the projected hidden states.

    The gradients are computed beside the loss and kept: memory grows with B T D and with V D, not
    with B T V. Under autocast products are in its dtype, the loss and sums over chunks in float32.

    Args:
        hidden_states: The decoder's output, [B, T, D].
        weight: The output projection, [V, D].
        bias: Its bias, [V], if it has one.
        labels: Target ids, [B, T]; -100 where there is none.
        num_items_in_batch: Real target tokens in the whole step. None: those in labels.
        label_smoothing: Share spread evenly over all V entries.

    Returns:
        The loss in nats per token, []; 0 where there is no target token at all.

    Raises:
        ValueError: There is no such share.
    """
    check_share(label_smoothing)
    is_real = labels.to(hidden_states.device) != IGNORED_LABEL
    total: Tensor = _SummedCrossEntropy.apply(  # type: ignore[no-untyped-call] # torch's
        hidden_states[is_real],
        weight,
        bias,
        labels.to(hidden_states.device)[is_real],
        label_smoothing,
        _product_dtype(hidden_states),
        torch.is_grad_enabled(),
    )
    return mean_over_step(total, labels, num_items_in_batch)


def _product_dtype(hidden_states: Tensor) -> torch.dtype:
    device_type = hidden_states.device.type
    if torch.is_autocast_enabled(device_type):
        return torch.get_autocast_dtype(device_type)
    return hidden_states.dtype


class _SummedCrossEntropy(torch.autograd.Function):
    """Summed loss of N positions; forward leaves its gradients for backward to scale."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        label_smoothing: float,
        dtype: torch.dtype,
        is_grad_enabled: bool,
    ) -> Tensor:
        of_states, of_weight, of_bias = gradients = [
            torch.zeros_like(tensor, dtype=torch.float32)
            if tensor is not None and is_needed and is_grad_enabled
            else None
            for tensor, is_needed in zip((states, weight, bias), ctx.needs_input_grad, strict=False)
        ]
        projection = weight.to(dtype)
        total = states.new_zeros((), dtype=torch.float32)
        size = max(1, LOGITS_IN_CHUNK // weight.size(0))
        # One room for all chunks: memory that is new each time would cost as much as it is used.
        products = states.new_empty(min(size, len(states)), weight.size(0), dtype=dtype)
        wide_products = products.float()  # the same room where products are in float32
        needs_room = of_weight is not None and dtype != torch.float32
        wide_weight = weight.new_empty(weight.shape if needs_room else 0, dtype=torch.float32)
        for start in range(0, len(states), size):
            chunk = slice(start, start + size)
            inputs = states[chunk].to(dtype)
            of_logits = torch.mm(inputs, projection.T, out=products[: len(inputs)])
            logits = wide_products[: len(inputs)].copy_(of_logits)  # [C, V]
            if bias is not None:
                logits += bias
            total += _loss_and_gradient(logits, labels[chunk], label_smoothing)
            of_logits.copy_(logits)
            if of_states is not None:
                of_states[chunk] = of_logits @ projection
            if of_weight is not None:
                _add_product(of_weight, of_logits.T, inputs, wide_weight)
            if of_bias is not None:
                of_bias += logits.sum(0)
        ctx.save_for_backward(*gradients)
        ctx.dtypes = [None if t is None else t.dtype for t in (states, weight, bias)]
        return total

    @staticmethod
    def backward(ctx: Any, of_total: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True
            raise ValueError(
                "The loss in chunks keeps its gradients, and nothing to differentiate them by. For "
                "second derivatives take logits, and label_smoothed_cross_entropy of them."
            )
        gradients = (
            None if gradient is None else (gradient * of_total).to(dtype)
            for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        )
        return (*gradients, None, None, None, None)


def _add_product(total: Tensor, left: Tensor, right: Tensor, room: Tensor) -> None:
    """Add left @ right to total, in float32; room, of total's shape, widens a narrower product."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total += room.copy_(left @ right)


def _loss_and_gradient(logits: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
    """The summed loss of logits, [C, V], which are overwritten with its gradient."""
    picked = logits.gather(-1, labels[:, None])  # [C, 1]
    target = (1 - label_smoothing) * picked
    if label_smoothing:
        target += label_smoothing * logits.mean(-1, keepdim=True)
    # Softmax, less the smoothed target: in place, with one exponential for loss and gradient.
    highest = logits.amax(-1, keepdim=True)
    normaliser = logits.sub_(highest).exp_().sum(-1, keepdim=True)
    loss = normaliser.log() + highest - target
    logits.mul_(normaliser.reciprocal()).sub_(label_smoothing / logits.size(-1))
    gold = torch.full_like(picked, label_smoothing - 1)
    logits.scatter_add_(-1, labels[:, None], gold)
    return loss.sum()
