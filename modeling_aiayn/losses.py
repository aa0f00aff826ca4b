"""Section 5.4: losses as sums over real labels, divided by their number in a whole optimiser step.

So neither padding nor accumulation nor the number of processes changes the objective.
"""

from torch import Tensor
from torch.nn import functional

# What losses leave out, by the convention of torch and of transformers' collators.
IGNORED_LABEL = -100


def label_smoothed_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    num_items_in_batch: Tensor | int | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Section 5.4: cross-entropy against targets of which a share is spread over the vocabulary.

    The sum over real target tokens is divided by their number in the whole optimiser step, so
    neither padding nor accumulation nor the number of processes changes the objective.

    Args:
        logits: Scores, [B, T, V].
        labels: Target ids, [B, T]; -100 where there is none.
        num_items_in_batch: Real target tokens in the whole step. None: those in labels.
        label_smoothing: Share spread evenly over all V entries.

    Returns:
        The loss in nats per token, []; 0 where there is no target token at all.

    Raises:
        ValueError: There is no such share.
    """
    check_share(label_smoothing)
    total = functional.cross_entropy(
        logits.flatten(0, 1).float(),
        labels.flatten().to(logits.device),
        ignore_index=IGNORED_LABEL,
        label_smoothing=label_smoothing,
        reduction="sum",
    )
    return mean_over_step(total, labels, num_items_in_batch)


def check_share(label_smoothing: float) -> None:
    """Refuse a share that is none.

    Raises:
        ValueError: It is not between 0 and 1.
    """
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be in [0, 1], got {label_smoothing}.")


# The library's names for what a classifier learns.
PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")


def classification_loss(
    logits: Tensor,
    labels: Tensor,
    problem_type: str,
    num_items_in_batch: Tensor | int | None = None,
) -> Tensor:
    """Mean squared error, cross-entropy or binary cross-entropy over a whole optimiser step.

    The library's own ignores num_items_in_batch for the first and the last, so that accumulation
    would scale their gradients.

    Args:
        logits: Scores, [B, L].
        labels: Class ids, [B]; for "regression" numbers, [B] or [B, L]; for
            "multi_label_classification" 0 or 1, [B, L].
        problem_type: One of the library's three: those, or "single_label_classification".
        num_items_in_batch: Labels in the whole step. None: those given.

    Returns:
        The loss, [].

    Raises:
        ValueError: There is not one label for each text, or for each score; or no such problem.
    """
    if problem_type not in PROBLEM_TYPES:
        raise ValueError(
            f"problem_type must be one of {', '.join(PROBLEM_TYPES)}, got {problem_type!r}."
        )
    labels = labels.to(logits.device)
    is_single = problem_type == "single_label_classification"
    if labels.numel() != (logits.size(0) if is_single else logits.numel()):
        raise ValueError(
            f"{problem_type} needs one label for each {'text' if is_single else 'score'}, got "
            f"labels of shape {tuple(labels.shape)} for scores of shape {tuple(logits.shape)}."
        )
    if is_single:
        total = functional.cross_entropy(
            logits.float(), labels.flatten(), ignore_index=IGNORED_LABEL, reduction="sum"
        )
    else:
        targets = labels.float().view_as(logits)
        is_regression = problem_type == "regression"
        loss = functional.mse_loss if is_regression else functional.binary_cross_entropy_with_logits
        total = loss(logits.float(), targets, reduction="sum")
        if num_items_in_batch is None:
            num_items_in_batch = labels.numel()  # -100 is a number like others here
    return mean_over_step(total, labels, num_items_in_batch)


def mean_over_step(
    total: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None = None
) -> Tensor:
    """A sum of losses over the number of labels in the whole optimiser step; 0 if there is none.

    Args:
        total: Sum over the real labels here, [].
        labels: Labels, [...]; -100 where there is none.
        num_items_in_batch: Real labels in the whole step. None: those in labels.

    Returns:
        The mean, [].
    """
    if num_items_in_batch is None:
        num_items_in_batch = (labels != IGNORED_LABEL).sum()
    if isinstance(num_items_in_batch, Tensor):
        return total / num_items_in_batch.to(total.device).clamp(min=1)
    return total / max(num_items_in_batch, 1)


def infer_problem_type(labels: Tensor, num_labels: int) -> str:
    """The library's rule: one label is regression, whole numbers are classes, else several at once.

    Args:
        labels: Labels, [B] or [B, L].
        num_labels: Classes, L.

    Returns:
        A value of config.problem_type.
    """
    if num_labels == 1:
        return "regression"
    is_integer = not labels.is_floating_point()
    return "single_label_classification" if is_integer else "multi_label_classification"
