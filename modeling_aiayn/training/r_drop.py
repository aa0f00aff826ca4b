"""R-Drop: two passes with different dropout must agree (Wu et al. 2021, arXiv:2106.14448).

The paper's loss is the sum of both passes' losses, plus a weight times the mean of both Kullback-
Leibler divergences between their distributions. A step takes two to three times as long.

Departs from that paper: the loss is half of this sum. So it equals the loss of one pass if both
passes agree.

In the shapes, N is the number of positions, B * T, and C the number of positions in a chunk.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..losses import (
    IGNORED_LABEL,
    check_label_smoothing_factor,
    check_labels,
    mean_over_step,
    shift_left,
)

# Logits of a chunk in each pass: 4 MiB in float32, so that all its tensors fit into a CPU's cache.
# On a GPU 64 MiB, for the reason that chunked_loss.py gives.
LOGITS_IN_CHUNK, LOGITS_IN_GPU_CHUNK = 2**20, 2**24


def repeated(inputs: dict[str, Any], shifts_labels: bool = False) -> dict[str, Any]:
    """Repeat a batch's inputs, [2B, ...]; with shifts_labels, each position gets the next label."""
    twice = {
        name: value.repeat(2, *[1] * (value.dim() - 1)) if isinstance(value, Tensor) else value
        for name, value in inputs.items()
    }
    return twice | {"labels": shift_left(twice["labels"])} if shifts_labels else twice


def r_drop_loss(
    outputs: Any,
    labels: Tensor,
    num_items_in_batch: Tensor | int | None = None,
    *,
    weight: float,
    label_smoothing_factor: float,
) -> Tensor:
    """The loss of a repeated batch, [], in nats per label; weight is alpha in the paper.

    The outputs' "logits" are [2B, T, V], or a classifier's, [2B, L]. Labels are [2B, T], or [2B];
    -100 where there is no target. num_items_in_batch counts each label of the step only once.
    """
    logits = outputs["logits"]
    has_one_label = labels.numel() == logits[..., 0].numel()
    if labels.is_floating_point() or logits.size(-1) == 1 or not has_one_label:
        raise ValueError(
            "r_drop needs tokens or one class for each text, got labels of shape "
            f"{tuple(labels.shape)} and type {labels.dtype}. Set r_drop to 0."
        )
    check_label_smoothing_factor(label_smoothing_factor)
    once, _ = labels.to(logits.device).chunk(2)
    check_labels(once, logits.size(-1))
    scores = logits.unflatten(0, (2, -1)).flatten(1, -2)  # [2, N, V]
    total: Tensor = _SummedRDrop.apply(  # type: ignore[no-untyped-call] # torch's
        scores, once.flatten(), weight, label_smoothing_factor
    )
    return mean_over_step(total, once, num_items_in_batch)


class _SummedRDrop(torch.autograd.Function):
    """Summed loss of N positions. forward computes the gradient, chunk by chunk, and keeps it."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, weight: float, label_smoothing_factor: float
    ) -> Tensor:
        total = logits.new_zeros((), dtype=torch.promote_types(logits.dtype, torch.float32))
        # In float16, small gradients would become 0 before loss scaling can enlarge them.
        kept = total.dtype if logits.dtype == torch.float16 else logits.dtype
        gradient = torch.empty_like(logits, dtype=kept)  # [2, N, V]
        most = LOGITS_IN_CHUNK if logits.device.type == "cpu" else LOGITS_IN_GPU_CHUNK
        size = max(1, most // logits.size(-1))
        for start in range(0, len(labels), size):
            chunk = slice(start, start + size)
            loss, gradient[:, chunk] = _r_drop_loss_and_gradient(
                logits[:, chunk].to(total.dtype), labels[chunk], weight, label_smoothing_factor
            )
            total += loss
        ctx.save_for_backward(gradient)
        ctx.dtype = logits.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, total_grad: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return (gradient * total_grad).to(ctx.dtype), None, None, None


def _r_drop_loss_and_gradient(
    logits: Tensor, labels: Tensor, weight: float, label_smoothing_factor: float
) -> tuple[Tensor, Tensor]:
    """The summed loss of both passes of a chunk, [], and its gradient in the logits, [2, C, V].

    For p and q, the passes' probabilities, the gradients of KL(p, q) + KL(q, p) in the logits of p
    are p (log p - log q - KL(p, q)) + p - q.
    """
    is_real = labels != IGNORED_LABEL  # [C]
    gold = labels.masked_fill(~is_real, 0).expand(2, -1)[..., None]  # [2, C, 1]
    log_p = logits.log_softmax(-1)  # [2, C, V]
    p = log_p.exp()  # [2, C, V]
    loss = (label_smoothing_factor - 1) * log_p.gather(-1, gold).squeeze(-1)  # [2, C]
    loss -= label_smoothing_factor * log_p.mean(-1)
    ratio = log_p - log_p.flip(0)  # [2, C, V]
    divergence = (p * ratio).sum(-1)  # [2, C]
    total = ((loss + weight / 2 * divergence) / 2).sum(0).masked_fill(~is_real, 0.0).sum()
    gradient = ratio.sub_(divergence[..., None]).add_(1).mul_(p).sub_(p.flip(0))  # [2, C, V]
    gradient.mul_(weight / 2).add_(p).sub_(label_smoothing_factor / logits.size(-1))
    share = torch.full_like(loss, label_smoothing_factor - 1)[..., None]  # [2, C, 1]
    gradient.scatter_add_(-1, gold, share)
    return total, gradient.mul_(is_real[:, None] / 2)
