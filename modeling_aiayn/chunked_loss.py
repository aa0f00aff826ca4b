"""Section 5.4: the loss of a language model head, with or without the whole batch's logits.

With a vocabulary of 37,000, a batch of 8,192 tokens has 300 million logits, and a plain computation
keeps several copies of them. `chunked_cross_entropy` computes the output projection, the loss and
their gradients for a few positions at a time, and skips positions without a target.
"""

from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from .losses import (
    IGNORED_LABEL,
    check_label_smoothing_factor,
    check_labels,
    label_smoothed_cross_entropy,
    mean_over_step,
)

# Logits of a chunk: 16 MiB in float32, which fit into the last-level cache of a CPU. On a GPU,
# starting such small operations takes longer than computing them, so chunks there have 256 MiB.
LOGITS_IN_CHUNK, LOGITS_IN_GPU_CHUNK = 2**22, 2**26
# The number of positions in a chunk is padded to a multiple of this. On a CPU, 16-bit products are
# compiled for each new size, which takes longer than the products; the last chunk's size varies.
POSITIONS_MULTIPLE = 64


def score_tokens(
    head: nn.Module,
    hidden_states: Tensor,
    labels: Tensor | None = None,
    num_items_in_batch: Tensor | int | None = None,
    label_smoothing_factor: float = 0.0,
    logits_to_keep: int | Tensor = 0,
    skip_logits: bool = False,
) -> tuple[Tensor | None, Tensor | None]:
    """Compute the logits, [B, T, V], of a language model head, and with labels the loss, [].

    Args:
        head: The output projection, from [B, T, D] to [B, T, V].
        hidden_states: The decoder's output, [B, T, D].
        labels: Target ids, [B, T]; -100 at positions without a target. None: no loss.
        num_items_in_batch: Real target tokens in the whole optimizer step.
        label_smoothing_factor: Share of each target that is spread evenly over all V entries.
        logits_to_keep: Positions that get logits, as in `select_positions`.
        skip_logits: Return None for the logits. The loss is then computed in chunks, except under
            torch.compile, or if the head is not a plain linear layer (see `is_plain_linear`).

    Raises:
        ValueError: The shape of labels is not the shape of the scored positions.
    """
    if not skip_logits:
        hidden_states = select_positions(hidden_states, logits_to_keep)
    if labels is None:
        return None if skip_logits else head(hidden_states), None
    if labels.shape != hidden_states.shape[:-1]:
        raise ValueError(
            "Each scored position needs a label, got labels of shape "
            f"{tuple(labels.shape)} for positions of shape {tuple(hidden_states.shape[:-1])}. "
            "Leave out logits_to_keep, or pass the labels of these positions alone."
        )
    counted = (labels, num_items_in_batch, label_smoothing_factor)
    if skip_logits and is_plain_linear(head) and not torch.compiler.is_compiling():
        check_labels(labels, head.weight.size(0))
        return None, chunked_cross_entropy(hidden_states, head.weight, head.bias, *counted)
    logits = head(hidden_states)  # [B, T, V]
    check_labels(labels, logits.size(-1))
    return None if skip_logits else logits, label_smoothed_cross_entropy(logits, *counted)


def select_positions(hidden_states: Tensor, logits_to_keep: int | Tensor) -> Tensor:
    """Select the states that get logits, [B, P, D] of [B, T, D], as transformers 5.22 and later do.

    logits_to_keep is the number of last positions (0: all); or it holds positions, [P] or [B, P];
    or it is a boolean mask, [B, T], and the result is [P, D].
    """
    if isinstance(logits_to_keep, int):
        return hidden_states[:, -logits_to_keep:] if logits_to_keep else hidden_states
    if logits_to_keep.ndim == 1:
        return hidden_states[:, logits_to_keep]
    if logits_to_keep.dtype == torch.bool:
        return hidden_states[logits_to_keep]
    return hidden_states.take_along_dim(logits_to_keep[..., None], dim=1)


def is_plain_linear(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether module is a plain nn.Linear, without adapter, hooks or distributed weights."""
    return (
        type(module) is nn.Linear
        and not isinstance(module.weight, DTensor)
        and not (module._forward_hooks or module._forward_pre_hooks)
        and not (module._backward_hooks or module._backward_pre_hooks)
        and not hasattr(module, "_hf_hook")  # accelerate loads the weight when called
    )


def chunked_cross_entropy(
    hidden_states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    num_items_in_batch: Tensor | int | None = None,
    label_smoothing_factor: float = 0.0,
) -> Tensor:
    """Compute `label_smoothed_cross_entropy` of hidden_states @ weight.T + bias, chunk by chunk.

    hidden_states are [B, T, D], weight is [V, D], bias [V]. The gradients are computed together
    with the loss and kept. So memory grows with B T D and V D, not with B T V. Under autocast,
    matrix products use its dtype; the loss and the sums over chunks are float32.
    """
    check_label_smoothing_factor(label_smoothing_factor)
    device = hidden_states.device
    is_autocast = torch.is_autocast_enabled(device.type)
    dtype = torch.get_autocast_dtype(device.type) if is_autocast else hidden_states.dtype
    labels = labels.to(device)
    is_real = labels != IGNORED_LABEL  # [B, T]
    total: Tensor = _SummedCrossEntropy.apply(  # type: ignore[no-untyped-call] # torch's
        hidden_states[is_real],
        weight,
        bias,
        labels[is_real],
        label_smoothing_factor,
        dtype,
        torch.is_grad_enabled(),
    )
    return mean_over_step(total, labels, num_items_in_batch)


class _SummedCrossEntropy(torch.autograd.Function):
    """Summed loss of N positions. forward computes the gradients; backward only scales them.

    C is the number of positions in a chunk. P is C rounded up to a multiple of POSITIONS_MULTIPLE.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        label_smoothing_factor: float,
        dtype: torch.dtype,
        is_grad_enabled: bool,
    ) -> Tensor:
        states_grad, weight_grad, bias_grad = gradients = [
            torch.zeros_like(tensor, dtype=torch.float32)
            if tensor is not None and is_needed and is_grad_enabled
            else None
            for tensor, is_needed in zip((states, weight, bias), ctx.needs_input_grad, strict=False)
        ]
        projection = weight.to(dtype)
        total = states.new_zeros((), dtype=torch.float32)
        most = LOGITS_IN_CHUNK if weight.device.type == "cpu" else LOGITS_IN_GPU_CHUNK
        size = max(1, min(most // weight.size(0), len(states)))
        multiple = min(size, POSITIONS_MULTIPLE)
        # All chunks share these buffers, because allocating large tensors for each chunk is slow.
        products = states.new_empty(size + -size % multiple, weight.size(0), dtype=dtype)
        wide_products = products.float()  # the same buffer if products are float32
        needs_buffer = weight_grad is not None and dtype != torch.float32
        wide_weight = weight.new_empty(weight.shape if needs_buffer else 0, dtype=torch.float32)
        for start in range(0, len(states), size):
            chunk = slice(start, start + size)
            count = len(labels[chunk])
            inputs = functional.pad(states[chunk].to(dtype), (0, 0, 0, -count % multiple))  # [P, D]
            narrow = torch.mm(inputs, projection.T, out=products[: len(inputs)])  # [P, V]
            logits = wide_products[:count].copy_(narrow[:count])  # [C, V]
            if bias is not None:
                logits += bias
            total += _loss_in_place(logits, labels[chunk], label_smoothing_factor)
            logits_grad = narrow  # [P, V]; zero at padding, like the states there
            logits_grad[:count] = logits
            if states_grad is not None:
                states_grad[chunk] = (logits_grad @ projection)[:count]
            if weight_grad is not None:
                _add_product(weight_grad, logits_grad.T, inputs, wide_weight)
            if bias_grad is not None:
                bias_grad += logits.sum(0)
        ctx.save_for_backward(*gradients)
        return total

    @staticmethod
    def backward(ctx: Any, total_grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True
            raise ValueError("The loss in chunks has no second derivatives. Compute the logits.")
        # Autograd casts each gradient to the dtype of its tensor.
        gradients = (None if each is None else each * total_grad for each in ctx.saved_tensors)
        return (*gradients, None, None, None, None)


def _add_product(total: Tensor, left: Tensor, right: Tensor, buffer: Tensor) -> None:
    """Add left @ right to total in float32. Products in narrower dtypes are widened in buffer."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total += buffer.copy_(left @ right)


def _loss_in_place(logits: Tensor, labels: Tensor, label_smoothing_factor: float) -> Tensor:
    """Return the summed loss of logits, [C, V], and overwrite the logits with its gradient."""
    picked = logits.gather(-1, labels[:, None])  # [C, 1]
    target = (1 - label_smoothing_factor) * picked  # [C, 1]
    if label_smoothing_factor:
        target += label_smoothing_factor * logits.mean(-1, keepdim=True)
    # The gradient is softmax minus the smoothed target. Loss and gradient share the exponentials.
    highest = logits.amax(-1, keepdim=True)  # [C, 1]
    normaliser = logits.sub_(highest).exp_().sum(-1, keepdim=True)
    loss = normaliser.log() + highest - target
    logits.mul_(normaliser.reciprocal()).sub_(label_smoothing_factor / logits.size(-1))
    gold = torch.full_like(picked, label_smoothing_factor - 1)
    logits.scatter_add_(-1, labels[:, None], gold)
    return loss.sum()
