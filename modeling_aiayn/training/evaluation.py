"""Evaluation during training: the loss per label, and scores of translations."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import EvalPrediction, PreTrainedTokenizerBase

from ..data.metrics import mean_scores, only_numbers, score_texts
from ..losses import IGNORED_LABEL, shift_left
from ..tokenization import decode_lines


class LossMeter:
    """The mean loss over all labels of an evaluation, which does not depend on the batches.

    With shifts_labels, as for a language model, each label is the target of the previous position.
    """

    def __init__(self, *, shifts_labels: bool) -> None:
        self.shifts_labels = shifts_labels
        self.sums = torch.zeros(2, dtype=torch.float64)

    def add(self, loss: Tensor, labels: Tensor) -> None:
        """Add a batch's mean loss, [], over its labels, [B] or [B, T], that are not -100."""
        labels = shift_left(labels) if self.shifts_labels else labels
        # On the CPU, because some accelerators have no float64.
        number = (labels != IGNORED_LABEL).sum().cpu().double()
        self.sums += torch.stack((loss.cpu().double() * number, number))

    def mean(self, accelerator: Accelerator) -> float | None:
        """The mean over the labels of all processes; None if there were none."""
        sums = self.sums
        if accelerator.num_processes > 1:
            sums = accelerator.reduce(sums.to(accelerator.device))
        return (sums[0] / sums[1]).item() if sums[1] > 0 else None


def mask_repeats(labels: Tensor, accelerator: Accelerator) -> Tensor:
    """Set labels of rows that accelerate repeats to -100, in this process's labels, [B] or [B, T].

    Floating-point labels, as of a regression, are returned unchanged.
    """
    state = accelerator.gradient_state
    has_repeats = state.end_of_dataloader and state.remainder > 0
    if accelerator.num_processes == 1 or not has_repeats or labels.is_floating_point():
        return labels
    own_rows = max(0, state.remainder - accelerator.process_index * len(labels))
    return torch.cat((labels[:own_rows], torch.full_like(labels[own_rows:], IGNORED_LABEL)))


@contextmanager
def kept_generation_config(model: Any) -> Iterator[None]:
    """Undo the defaults, such as max_length=20, that transformers writes during evaluation."""
    kept = getattr(model, "generation_config", None)
    if kept is None:
        yield
        return
    model.generation_config = copy.deepcopy(kept)
    try:
        yield
    finally:
        model.generation_config = kept


def translation_metrics(
    tokenizer: PreTrainedTokenizerBase, references: list[str], directions: Sequence[str] = ()
) -> Callable[[EvalPrediction], dict[str, float]]:
    """Build compute_metrics for AiaynTrainer, BLEU and chrF, with the target's tokenizer.

    If directions has one for each reference, bleu is the mean of bleu_en-de and the other scores.
    """

    def compute(prediction: EvalPrediction) -> dict[str, float]:
        ids = prediction.predictions
        ids = np.where(ids == IGNORED_LABEL, tokenizer.pad_token_id, ids)
        texts = decode_lines(tokenizer, ids.tolist())
        if not directions:
            return only_numbers(score_texts(texts, references))
        found: dict[str, float] = {}
        by_name = {}
        for name in dict.fromkeys(directions):
            own = [index for index, other in enumerate(directions) if other == name]
            found_texts, expected = ([side[index] for index in own] for side in (texts, references))
            by_name[name] = only_numbers(score_texts(found_texts, expected))
            found |= {f"{score}_{name}": value for score, value in by_name[name].items()}
        return found | mean_scores([*by_name.values()])

    return compute
