"""Select the best continuations of a search step from its logits."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .options import SearchOptions


@dataclass(frozen=True)
class Restrictions:
    """Rules for the continuations of one step; sentences and hypotheses are given by index.

    A banned continuation is (sentence, hypothesis, id); a wanted one also has a credit.
    """

    forced: dict[int, list[int]]  # by sentence, the only ids that may come
    banned: list[tuple[int, int, int]]
    wanted: list[tuple[int, int, int, float]]
    suppressed: Sequence[int] = ()  # ids that never come; forced ids override them

    def within(self, columns: Mapping[int, int] | None) -> "Restrictions":
        """Replace ids with their columns in the logits; None: each id is its own column."""
        if columns is None:
            return self
        banned = [(n, k, columns[token]) for n, k, token in self.banned if token in columns]
        wanted = [(n, k, columns[x], credit) for n, k, x, credit in self.wanted if x in columns]
        forced = {index: [columns[token] for token in ids] for index, ids in self.forced.items()}
        suppressed = [columns[token] for token in self.suppressed if token in columns]
        return Restrictions(forced, banned, wanted, suppressed)

    def apply(self, scores: Tensor) -> Tensor:
        """Add credits to scores, [N, k, V], and set forbidden ones to minus infinity."""
        if self.wanted:
            sentences, hypotheses, tokens, credit = zip(*self.wanted, strict=True)
            scores[sentences, hypotheses, tokens] += torch.tensor(credit, device=scores.device)
        forced = {
            sentence: scores[sentence, :, ids].clone() for sentence, ids in self.forced.items()
        }
        if self.suppressed:
            scores[..., list(self.suppressed)] = -torch.inf
        for sentence, kept in forced.items():
            scores[sentence] = -torch.inf
            scores[sentence, :, self.forced[sentence]] = kept
        if self.banned:
            _, width, vocab_size = scores.shape
            index = [(n * width + k) * vocab_size + token for n, k, token in self.banned]
            scores.view(-1).index_fill_(0, torch.tensor(index, device=scores.device), -torch.inf)
        return scores


class Candidates(NamedTuple):
    """Continuations of a sentence's hypotheses, stored as columns because lists are fast."""

    log_probabilities: list[float]  # of each hypothesis with its continuation, in nats
    parents: list[int]  # index of the hypothesis that each one continues
    tokens: list[int]  # the id that each one adds

    def pick(self, indices: Sequence[int]) -> "Candidates":
        """Return the candidates at the given indices."""
        log_probabilities, parents, tokens = self
        return Candidates(
            [log_probabilities[n] for n in indices],
            [parents[n] for n in indices],
            [tokens[n] for n in indices],
        )

    def first(self, count: int) -> "Candidates":
        """Return the first candidates."""
        return Candidates(self[0][:count], self[1][:count], self[2][:count])

    def possible(self) -> "Candidates":
        """Remove candidates of probability 0, which come last."""
        if self.log_probabilities[-1] > -math.inf:
            return self
        return self.first(self.log_probabilities.index(-math.inf))


def best_candidates(
    logits: Tensor, log_probabilities: Tensor, restrictions: Restrictions, count: int
) -> list[Candidates]:
    """Return the count likeliest continuations of each sentence, best first.

    logits of the next token, [N, k, V], are overwritten by log-probabilities. log_probabilities of
    the hypotheses, [N, k], are minus infinity for missing ones. A NaN raises a ValueError.
    """
    # log_softmax computes more than logsumexp, but is faster on a CPU. It runs in place, because
    # allocating memory for many hypotheses takes as long as the function itself.
    steps = torch.log_softmax(logits, -1, out=logits)  # [N, k, V]
    allowed = restrictions.apply(steps)
    values, tokens = allowed.topk(min(count, allowed.size(-1)), dim=-1)  # [N, k, count]
    scores = log_probabilities[..., None] + values  # [N, k, count]
    width = scores.size(-1)
    best, index = scores.flatten(1).topk(min(count, scores[0].numel()), dim=-1)  # [N, count]
    parents, picked = index // width, tokens.flatten(1).gather(1, index)
    # One transfer to the host: float32 holds ids exactly; some accelerators have no wider type.
    packed = torch.stack((best, parents, picked)).cpu()  # [3, N, count]
    ranked = packed[0].tolist()
    # topk ranks NaN first.
    check_no_nan(row[0] for row in ranked)
    columns = zip(ranked, *packed[1:].long().tolist(), strict=True)
    return [Candidates(*sentence_columns).possible() for sentence_columns in columns]


def check_no_nan(scores: Iterable[float]) -> None:
    """Raise a ValueError if a score is NaN."""
    if any(map(math.isnan, scores)):
        raise ValueError(
            "The model computed non-finite scores (NaN). Either a weight is NaN or infinite, or "
            "values overflow the model's dtype: check the weights, or load with dtype='float32'."
        )


def drawn_candidates(
    logits: Tensor,
    log_probabilities: Tensor,
    restrictions: Restrictions,
    options: SearchOptions,
    draws: Sequence[Sequence[float]],
) -> list[Candidates]:
    """Return one random continuation of each hypothesis, chosen by draws, [N, k], in [0, 1).

    logits of the next token are [N, k, V], and log_probabilities of the hypotheses so far [N, k].
    The candidates' log-probabilities are the model's, before temperature, top-k and top-p. A NaN
    raises a ValueError.
    """
    steps = restrictions.apply(logits.log_softmax(-1))
    values, tokens = steps.sort(dim=-1, descending=True)  # [N, k, V]
    shares = (values / options.temperature).softmax(-1)  # [N, k, V]
    if options.top_k:
        shares[..., options.top_k :] = 0.0
        shares /= shares.sum(-1, keepdim=True)
    # The token that crosses top_p is still included.
    shares = shares.masked_fill(shares.cumsum(-1) - shares >= options.top_p, 0.0)
    reached = shares.cumsum(-1)
    draw = torch.tensor(draws, device=logits.device, dtype=reached.dtype)[..., None]
    drawn = (reached <= draw * reached[..., -1:]).sum(-1, keepdim=True)  # [N, k, 1]
    # Rounding may move a draw near 1 past the last included token; NaN includes no token.
    drawn = drawn.minimum((shares > 0).sum(-1, keepdim=True) - 1).clamp_min(0)
    scores = (log_probabilities[..., None] + values.gather(-1, drawn))[..., 0]
    picked = tokens.gather(-1, drawn)[..., 0]
    rows = scores.tolist()
    check_no_nan(score for row in rows for score in row)
    parents = range(scores.size(1))
    return [
        Candidates(row, list(parents), tokens)
        for row, tokens in zip(rows, picked.tolist(), strict=True)
    ]
