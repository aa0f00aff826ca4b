"""From a step's logits to the few continuations that a search looks at."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from .options import SearchOptions

# Ids that are ranked by their best one first.
CHUNK = 64


@dataclass(frozen=True)
class Restrictions:
    """What the hypotheses of one step may, may not and should be continued with.

    Args:
        only: For some sentences, by index, the ids that alone are left to their hypotheses.
        banned: Sentence, hypothesis and id of each continuation that is out.
        wanted: The same of each that is to be a candidate, however unlikely it is.
        diverse: Sentences, by index, of which each hypothesis is to have a candidate.
        never: Ids that no hypothesis is continued with.
    """

    only: dict[int, list[int]]
    banned: list[tuple[int, int, int]]
    wanted: list[tuple[int, int, int]]
    diverse: list[int]
    never: list[int] = field(default_factory=list)

    def apply(self, scores: Tensor) -> Tensor:
        """Set what is out to minus infinity.

        Args:
            scores: Of the next token, [N, k, V]; overwritten.

        Returns:
            The same tensor.
        """
        # What is given is given, whatever the model never says by itself.
        given = {sentence: scores[sentence, :, ids].clone() for sentence, ids in self.only.items()}
        if self.never:
            scores[..., self.never] = -torch.inf
        for sentence, kept in given.items():
            scores[sentence] = -torch.inf
            scores[sentence, :, self.only[sentence]] = kept
        if self.banned:
            scores[tuple(torch.tensor(self.banned, device=scores.device).T)] = -torch.inf
        return scores


class Candidate(NamedTuple):
    """A continuation of one of a sentence's hypotheses.

    Args:
        log_probability: Of the hypothesis with it, in nats.
        parent: Which hypothesis it continues.
        token: The id it adds.
    """

    log_probability: float
    parent: int
    token: int


def top_tokens(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The best tokens of each hypothesis, as topk has them.

    The best are in the chunks with the best maxima, and to find those is much faster on a CPU than
    to rank a vocabulary.

    Args:
        scores: Of the next token, [N, k, V].
        count: How many.

    Returns:
        Their scores, best first, and ids, [N, k, count] each; V of them where count is more.
    """
    vocab_size = scores.size(-1)
    whole = vocab_size - vocab_size % CHUNK
    if whole < 2 * count * CHUNK:
        return scores.topk(min(count, vocab_size), dim=-1)
    chunks = scores[..., :whole].view(*scores.shape[:-1], -1, CHUNK)
    best = chunks.amax(-1).topk(count, dim=-1).indices  # [N, k, count]
    found = chunks.gather(-2, best[..., None].expand(*best.shape, CHUNK)).flatten(-2)
    values, index = torch.cat((found, scores[..., whole:]), dim=-1).topk(count, dim=-1)
    # What is behind the last whole chunk stands behind the best ones.
    starts = functional.pad(best * CHUNK, (0, 1), value=whole)
    return values, starts.gather(-1, index // CHUNK) + index % CHUNK


def best_candidates(
    logits: Tensor, log_probabilities: Tensor, restrictions: Restrictions, count: int
) -> list[list[Candidate]]:
    """The likeliest continuations of each sentence's hypotheses.

    All that the host learns comes over in one piece.

    Args:
        logits: Scores of the next token, [N, k, V].
        log_probabilities: Of the hypotheses so far, [N, k]; minus infinity where there is none.
        restrictions: What may not come next.
        count: How many.

    Returns:
        For each sentence its candidates, best first; behind them those that restrictions want.
        Fewer than count where no more are possible.

    Raises:
        ValueError: The model's scores are no numbers.
    """
    # On a CPU twice as fast as logsumexp, which computes less.
    steps = logits.log_softmax(-1)  # [N, k, V]
    wanted = _candidates_at(restrictions.wanted, steps, log_probabilities)
    values, tokens = top_tokens(restrictions.apply(steps), count)
    scores = log_probabilities[..., None] + values  # [N, k, count]
    for sentence in restrictions.diverse:
        firsts = zip(scores[sentence, :, 0].tolist(), tokens[sentence, :, 0].tolist(), strict=True)
        wanted.setdefault(sentence, []).extend(
            Candidate(score, parent, token)
            for parent, (score, token) in enumerate(firsts)
            if score > -torch.inf
        )
    width = scores.size(-1)
    best, index = scores.flatten(1).topk(min(count, scores[0].numel()), dim=-1)  # [N, count]
    places = (index // width, tokens.flatten(1).gather(1, index))
    # Ids are whole numbers in float32 too, and not every accelerator has a wider type.
    packed = torch.stack((best, *places)).cpu()  # [3, N, count]
    found = packed[0].tolist()
    # What is no number ranks first.
    refuse_nan(first for first, *_ in found)
    rows = zip(found, *packed[1:].long().tolist(), strict=True)
    return [
        [each for each in map(Candidate, *row) if each.log_probability > -torch.inf]
        + wanted.get(sentence, [])
        for sentence, row in enumerate(rows)
    ]


def refuse_nan(scores: Iterable[float]) -> None:
    """Refuse what a model with broken weights, or too large numbers, gives for scores.

    Args:
        scores: Log-probabilities.

    Raises:
        ValueError: One is NaN.
    """
    if any(map(math.isnan, scores)):
        raise ValueError(
            "The model computed non-finite scores (NaN). A weight is NaN or infinite, or the "
            "numbers outgrew its dtype: look at the weights, or load with dtype='float32'."
        )


def _candidates_at(
    places: list[tuple[int, int, int]], steps: Tensor, log_probabilities: Tensor
) -> dict[int, list[Candidate]]:
    """Candidates at given sentences, hypotheses and ids, by sentence."""
    found: dict[int, list[Candidate]] = {}
    if places:
        sentences, parents, tokens = torch.tensor(places, device=steps.device).T
        scores = log_probabilities[sentences, parents] + steps[sentences, parents, tokens]
        for (sentence, parent, token), score in zip(places, scores.tolist(), strict=True):
            found.setdefault(sentence, []).append(Candidate(score, parent, token))
    return found


def drawn_candidates(
    logits: Tensor,
    log_probabilities: Tensor,
    restrictions: Restrictions,
    options: SearchOptions,
    chances: Sequence[Sequence[float]],
) -> list[list[Candidate]]:
    """One continuation of each hypothesis, drawn by chance.

    Args:
        logits: Scores of the next token, [N, k, V].
        log_probabilities: Of the hypotheses so far, [N, k].
        restrictions: What may not come next.
        options: Temperature, top-k and top-p.
        chances: A number in [0, 1) for each hypothesis, [N, k].

    Returns:
        For each sentence a candidate of each hypothesis, in their order. Their log-probabilities
        are the model's, whatever temperature and cuts did to the odds.

    Raises:
        ValueError: The model's scores are no numbers.
    """
    steps = restrictions.apply(logits.log_softmax(-1))
    values, tokens = steps.sort(dim=-1, descending=True)  # [N, k, V]
    shares = (values / options.temperature).softmax(-1)  # [N, k, V]
    if options.top_k:
        shares[..., options.top_k :] = 0.0
        shares /= shares.sum(-1, keepdim=True)
    # The token that crosses top_p is still in.
    shares = shares.masked_fill(shares.cumsum(-1) - shares >= options.top_p, 0.0)
    reached = shares.cumsum(-1)
    chance = torch.tensor(chances, device=logits.device, dtype=reached.dtype)[..., None]
    drawn = (reached <= chance * reached[..., -1:]).sum(-1, keepdim=True)  # [N, k, 1]
    # Rounding may carry a chance near 1 past the last token that is in; of NaN none is.
    drawn = drawn.minimum((shares > 0).sum(-1, keepdim=True) - 1).clamp_min(0)
    scores = (log_probabilities[..., None] + values.gather(-1, drawn))[..., 0]
    picked = tokens.gather(-1, drawn)[..., 0]
    packed = torch.stack((scores, picked)).tolist()  # [2, N, k]
    refuse_nan(score for row in packed[0] for score in row)
    return [
        [
            Candidate(score, parent, int(token))
            for parent, (score, token) in enumerate(zip(*row, strict=True))
        ]
        for row in zip(*packed, strict=True)
    ]
