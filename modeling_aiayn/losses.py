"""Section 5.4: each loss is a sum over real labels, divided by their number in an optimizer step.

So the objective does not depend on padding, gradient accumulation or the number of processes.
num_items_in_batch is the number of real labels in the whole step. None: count them in labels.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.utils import logging

from .dropout import is_transformed

logger = logging.get_logger(__name__)

# Label of positions without a target: the convention of torch and of transformers' collators.
IGNORED_LABEL = -100


def pop_label_smoothing_factor(kwargs: dict[str, Any]) -> float:
    """Remove label_smoothing_factor from the keyword arguments of forward, and return it.

    It is not in the signature of forward: the Trainer of transformers treats each named argument
    with "label" in its name as labels, and computes no evaluation loss if one of them is missing.
    """
    return kwargs.pop("label_smoothing_factor", 0.0)


def shift_right(labels: Tensor, start_token_id: int, pad_token_id: int) -> Tensor:
    """Figure 1, "outputs (shifted right)": build the decoder's input, [B, T], for labels, [B, T].

    The start token is put before each target, and padding replaces -100.
    """
    shifted = functional.pad(labels[:, :-1], (1, 0), value=start_token_id)  # [B, T]
    return shifted.masked_fill(shifted == IGNORED_LABEL, pad_token_id)  # [B, T]


def shift_left(labels: Tensor) -> Tensor:
    """The targets of a language model, [B, T], for labels, [B, T]: each token predicts the next."""
    return functional.pad(labels[:, 1:], (0, 1), value=IGNORED_LABEL)  # [B, T]


def label_smoothed_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    num_items_in_batch: Tensor | int | None = None,
    label_smoothing_factor: float = 0.0,
) -> Tensor:
    """Section 5.4: cross-entropy with label smoothing, in nats per label; 0 if there is no label.

    Args:
        logits: Scores, [B, T, V], or [B, L] of a classifier.
        labels: Target ids, [B, T], or [B]; -100 at positions without a target.
        num_items_in_batch: Real labels in the whole optimizer step.
        label_smoothing_factor: Share of each target that is spread evenly over all entries.

    Raises:
        ValueError: label_smoothing_factor is not between 0 and 1.
    """
    check_label_smoothing_factor(label_smoothing_factor)
    total = functional.cross_entropy(
        logits.flatten(0, -2).float(),
        labels.flatten().to(logits.device),
        ignore_index=IGNORED_LABEL,
        label_smoothing=label_smoothing_factor,
        reduction="sum",
    )  # []
    return mean_over_step(total, labels, num_items_in_batch)  # []


def check_label_smoothing_factor(label_smoothing_factor: float) -> None:
    """Check that label_smoothing_factor is between 0 and 1."""
    if not 0 <= label_smoothing_factor <= 1:
        raise ValueError(f"label_smoothing_factor must be in [0, 1], got {label_smoothing_factor}.")


def check_labels(labels: Tensor, num_scores: int) -> None:
    """Check that every label has a score, and warn if all labels are -100.

    Labels on an accelerator are not checked, because reading them would make it wait.

    Raises:
        ValueError: A label is neither -100 nor in [0, num_scores).
    """
    if labels.device.type != "cpu" or is_transformed():
        return
    is_ignored = labels == IGNORED_LABEL  # [...]
    is_invalid = ((labels < 0) | (labels >= num_scores)) & ~is_ignored  # [...]
    if is_invalid.any():
        index = is_invalid.nonzero()[0].tolist()
        raise ValueError(
            f"Each label must be in [0, {num_scores}) or {IGNORED_LABEL}, got "
            f"{labels[tuple(index)].item()} at index {index}. Check that the data "
            "belongs to this model."
        )
    # In evaluation a process may get only repeated rows, whose labels are masked.
    if is_ignored.all() and labels.numel() and torch.is_grad_enabled():
        logger.warning_once(
            f"All labels of a batch are {IGNORED_LABEL} (no target), so its loss is 0."
        )


def classification_loss(
    logits: Tensor,
    labels: Tensor,
    problem_type: str,
    num_items_in_batch: Tensor | int | None = None,
    label_smoothing_factor: float = 0.0,
) -> Tensor:
    """Mean squared error, cross-entropy or binary cross-entropy over a whole optimizer step.

    transformers' own loss ignores num_items_in_batch for mean squared error and binary
    cross-entropy, so gradient accumulation would scale the gradients.

    Args:
        logits: Scores, [B, L].
        labels: Class ids, [B]; for "regression" numbers, [B, L], or [B] if L is 1; for
            "multi_label_classification" 0 or 1, [B, L].
        problem_type: One of the values that transformers allows for config.problem_type.
        num_items_in_batch: Labels in the whole step.
        label_smoothing_factor: As in `label_smoothed_cross_entropy`; for class ids only.

    Raises:
        ValueError: Labels have the wrong shape or cannot be smoothed.
    """
    labels = labels.to(logits.device)
    is_single_label = problem_type == "single_label_classification"
    is_one_each = is_single_label or logits.size(-1) == 1
    has_shape = labels.numel() == len(logits) if is_one_each else labels.shape == logits.shape
    if not has_shape:
        raise ValueError(
            f"{problem_type} needs one label for each {'text' if is_single_label else 'score'}, "
            f"got labels of shape {tuple(labels.shape)} for scores of shape {tuple(logits.shape)}."
        )
    if is_single_label:
        return label_smoothed_cross_entropy(
            logits, labels, num_items_in_batch, label_smoothing_factor
        )
    if label_smoothing_factor:
        raise ValueError(
            "Label smoothing needs one class for each text, got "
            f"label_smoothing_factor={label_smoothing_factor} and problem_type={problem_type!r}."
        )
    is_regression = problem_type == "regression"
    loss_function = (
        functional.mse_loss if is_regression else functional.binary_cross_entropy_with_logits
    )
    total = loss_function(logits.float(), labels.float().view_as(logits), reduction="sum")
    if num_items_in_batch is None:
        num_items_in_batch = labels.numel()  # -100 is an ordinary number here
    return mean_over_step(total, labels, num_items_in_batch)


def mean_over_step(
    total: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None = None
) -> Tensor:
    """Divide a sum of losses, [], by the number of real labels in the whole step, at least 1."""
    if num_items_in_batch is None:
        num_items_in_batch = (labels != IGNORED_LABEL).sum()
    if isinstance(num_items_in_batch, Tensor):
        return total / num_items_in_batch.to(total.device).clamp(min=1)
    return total / max(num_items_in_batch, 1)


def infer_problem_type(labels: Tensor, num_labels: int) -> str:
    """Infer config.problem_type from labels, [B] or [B, L], by the rule of transformers."""
    if num_labels == 1:
        return "regression"
    is_single = labels.dtype in (torch.long, torch.int)
    return "single_label_classification" if is_single else "multi_label_classification"
