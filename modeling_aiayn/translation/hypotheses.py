"""Section 6.1: one sentence's search. It owns the sentence's hypotheses and their scores."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from .candidates import Candidate
from .options import SearchOptions


class Hypothesis(NamedTuple):
    """A translation, finished or not.

    Args:
        token_ids: Its ids; the last id of a finished one is `</s>`.
        log_probability: Sum over its tokens, in nats.
        score: The `normalized_score` of a finished one.
        parent: Index of the hypothesis of the step before that an unfinished one continues.
    """

    token_ids: tuple[int, ...]
    log_probability: float
    score: float = float("-inf")
    parent: int = 0


def length_divisor(length: int, alpha: float, normalization: str) -> float:
    """The length penalty of n tokens, `</s>` included: Wu et al. 2016, equation 14, or n^alpha."""
    return ((5 + length) / 6) ** alpha if normalization == "gnmt" else float(length) ** alpha


def normalized_score(
    log_probability: float, length: int, options: SearchOptions, coverage: float = 0.0
) -> float:
    """The score that ranks hypotheses: log P / length penalty + beta * `coverage_score`."""
    divisor = length_divisor(length, options.length_penalty, options.length_normalization)
    return log_probability / divisor + options.coverage_penalty * coverage


@dataclass
class SentenceSearch:
    """Beam search for one sentence, section 6.1; a decoder scores its hypotheses.

    It searches as generate() does. Each step has twice as many candidates as beams. A candidate
    that ends becomes a finished hypothesis if it is among the best num_beams candidates. The best
    candidates that do not end become the next beams. The search stops when there are num_beams
    finished hypotheses, and the best beam, if it ended now, would score no better than the worst
    of them.

    Args:
        options: How to search.
        eos_token_ids: Ids that end a translation.
        max_length: Maximum number of tokens; the last must be one of eos_token_ids.
        prefix: The first ids of the translation.
        running: Unfinished hypotheses, best first; none once the search is done.
        finished: Finished hypotheses, best first.
    """

    # Whether each hypothesis gets a candidate, besides the best candidates of the sentence.
    needs_one_for_each: ClassVar[bool] = False

    options: SearchOptions
    eos_token_ids: frozenset[int]
    max_length: int
    prefix: Sequence[int] = ()
    running: list[Hypothesis] = field(default_factory=lambda: [Hypothesis((), 0.0)])
    finished: list[Hypothesis] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        """Whether no hypothesis is left to continue."""
        return not self.running

    @property
    def length(self) -> int:
        """Tokens of each running hypothesis."""
        return len(self.running[0].token_ids)

    def forced_tokens(self) -> list[int] | None:
        """The only ids that may come next: the prefix's, or an end. None: any id may come."""
        if self.length + 1 >= self.max_length:
            return sorted(self.eos_token_ids)
        if self.length < len(self.prefix):
            return [self.prefix[self.length]]
        return None

    def required_tokens(self) -> list[tuple[int, int]]:
        """Hypothesis index and id of each continuation that must be a candidate."""
        return []

    def banned_tokens(self) -> list[tuple[int, int]]:
        """Hypothesis index and id of each banned continuation; forced ids are never banned."""
        if self.forced_tokens() is not None:
            return []
        size = self.options.no_repeat_ngram_size
        ends = []
        if self.length < self.options.min_length:
            ends = [(k, token) for k in range(len(self.running)) for token in self.eos_token_ids]
        if size == 0:
            return ends
        return ends + [
            (k, token)
            for k, hypothesis in enumerate(self.running)
            for token in repeating_tokens(hypothesis.token_ids, size)
        ]

    def draws(self) -> list[float]:
        """A random number in [0, 1) for each hypothesis that samples; beam search needs none."""
        return []

    def advance(self, candidates: list[Candidate], coverage: Sequence[float]) -> None:
        """Continue the hypotheses by candidates, best first; coverage is of the hypotheses."""
        width = self.options.width
        living = []
        for rank, candidate in enumerate(candidates):
            if candidate.token not in self.eos_token_ids:
                living.append(candidate)
            elif rank < width:
                self._finish(candidate, coverage[candidate.parent])
        self._set_running(living[:width])

    def _set_running(self, living: Sequence[Candidate]) -> None:
        """Make candidates the running hypotheses, unless none could still improve the result."""
        self.running = [self._continued(candidate) for candidate in living]
        if self.running and self._cannot_improve():
            self.running = []

    def _finish(self, candidate: Candidate, coverage: float) -> None:
        """Add a finished hypothesis, and keep the best ones."""
        ended = self._continued(candidate)
        score = normalized_score(
            ended.log_probability, len(ended.token_ids), self.options, coverage
        )
        self.finished.append(Hypothesis(ended.token_ids, ended.log_probability, score))
        self.finished.sort(key=lambda hypothesis: -hypothesis.score)
        del self.finished[self.options.width :]

    def _continued(self, candidate: Candidate) -> Hypothesis:
        token_ids = (*self.running[candidate.parent].token_ids, candidate.token)
        return Hypothesis(token_ids, candidate.log_probability, parent=candidate.parent)

    def _cannot_improve(self) -> bool:
        if len(self.finished) < self.options.width:
            return False
        best = self.running[0]
        possible = normalized_score(best.log_probability, self.length, self.options)
        return possible <= self.finished[-1].score


@dataclass
class SentenceSampling(SentenceSearch):
    """Random, independent translations of one sentence; seed is that of its random numbers."""

    seed: str = ""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.running = self.running * self.options.width

    def draws(self) -> list[float]:
        """A random number in [0, 1) for each hypothesis."""
        return [self.random.random() for _ in range(self.options.width)]

    def advance(self, candidates: list[Candidate], coverage: Sequence[float]) -> None:
        """Continue each hypothesis by its candidate; candidates behind them are ignored.

        A hypothesis of which all next tokens are forbidden is dropped.
        """
        living = []
        for candidate in candidates[: len(self.running)]:
            if candidate.log_probability == -math.inf:
                continue
            if candidate.token in self.eos_token_ids:
                self._finish(candidate, coverage[candidate.parent])
            else:
                living.append(candidate)
        self.running = [self._continued(candidate) for candidate in living]


def repeating_tokens(token_ids: Sequence[int], size: int) -> set[int]:
    """Ids that would repeat an n-gram of a size, at least 1, if they came next."""
    if len(token_ids) < size:
        return set()
    start = tuple(token_ids[len(token_ids) - size + 1 :])
    return {
        token_ids[index + size - 1]
        for index in range(len(token_ids) - size + 1)
        if tuple(token_ids[index : index + size - 1]) == start
    }
