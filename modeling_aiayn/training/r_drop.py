"""R-Drop: two passes with other dropout must agree (Wu et al. 2021, arXiv:2106.14448).

The paper's loss is the sum of both passes' losses, plus a weight times the mean of both Kullback-
Leibler divergences between their distributions. Ours is half of it: where both passes agree, it is
the loss of one. A step takes twice the time.
"""

from typing import Any

from torch import Tensor

from ..losses import IGNORED_LABEL, label_smoothed_cross_entropy, mean_over_step


def repeated(inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs of a batch twice, one after the other: [2B, ...]."""
    return {
        name: each.repeat(2, *[1] * (each.dim() - 1)) if isinstance(each, Tensor) else each
        for name, each in inputs.items()
    }


def r_drop_loss(
    outputs: Any,
    labels: Tensor,
    num_items_in_batch: Tensor | int | None = None,
    *,
    weight: float,
    label_smoothing_factor: float,
) -> Tensor:
    """The loss of a repeated batch, [], in nats per label.

    Args:
        outputs: Outputs of the model with "logits": [2B, T, V], or a classifier's, [2B, L].
        labels: Target ids, [2B, T], or classes, [2B]; -100 where there is no target.
        num_items_in_batch: Real labels in the whole optimiser step, each counted once.
        weight: Weight of the divergence, alpha in the paper.
        label_smoothing_factor: As for `label_smoothed_cross_entropy`.

    Raises:
        ValueError: The labels are numbers, as for regression, or several for each text.
    """
    logits = outputs["logits"]
    if labels.is_floating_point() or logits.size(-1) == 1:
        raise ValueError(
            "r_drop needs tokens or one class for each text, got labels of another kind. Leave it "
            "out."
        )
    once, _ = labels.chunk(2)
    if num_items_in_batch is None:
        num_items_in_batch = (once != IGNORED_LABEL).sum()
    logits, labels = logits.flatten(0, -2)[None], labels.flatten()[None]  # [1, R, V], [1, R]
    loss = label_smoothed_cross_entropy(logits, labels, num_items_in_batch, label_smoothing_factor)
    is_real = (labels != IGNORED_LABEL).to(logits.device)
    first, second = logits[is_real].float().log_softmax(-1).chunk(2)  # [N, V]
    divergence = ((first.exp() - second.exp()) * (first - second)).sum() / 2  # []
    return (loss + weight * mean_over_step(divergence, once, num_items_in_batch)) / 2
