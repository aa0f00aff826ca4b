"""One sentence's search: its hypotheses, and when it is done."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .candidates import Candidate
from .options import SearchOptions
from .penalties import normalized_score


class Hypothesis(NamedTuple):
    """A translation, finished or not.

    Args:
        token_ids: Its ids; once finished the last is `</s>`.
        log_probability: Sum over its tokens, in nats.
        score: What finished ones are ranked by; see `normalized_score`.
    """

    token_ids: tuple[int, ...]
    log_probability: float
    score: float = float("-inf")


@dataclass
class SentenceSearch:
    """Beam search for one sentence, section 6.1; the decoder's work is done elsewhere.

    As in generate(): of twice as many continuations as there are beams, those that end within the
    first are finished, and the best others live on. The search ends with as many finished as
    beams, none of them worse than what the best living one would score if it ended here.

    Args:
        options: How to search.
        eos_token_ids: Ids that end a translation.
        max_length: Tokens at most; at the last, only an end is left.
        prefix: Ids that a translation begins with.
    """

    options: SearchOptions
    eos_token_ids: frozenset[int]
    max_length: int
    prefix: Sequence[int] = ()
    running: list[Hypothesis] = field(default_factory=lambda: [Hypothesis((), 0.0)])
    finished: list[Hypothesis] = field(default_factory=list)
    is_done: bool = False

    @property
    def length(self) -> int:
        """Tokens so far."""
        return len(self.running[0].token_ids)

    def only(self) -> list[int] | None:
        """The ids that alone may come next: the prefix's, or an end. None: any."""
        if self.length + 1 >= self.max_length:
            return sorted(self.eos_token_ids)
        if self.length < len(self.prefix):
            return [self.prefix[self.length]]
        return None

    def wanted(self) -> list[tuple[int, int]]:
        """Which hypothesis is to be offered which id, however unlikely."""
        return []

    def banned(self) -> list[tuple[int, int]]:
        """Which hypothesis may not be continued with which id; nothing that is given is out."""
        if self.only() is not None:
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

    def advance(self, candidates: list[Candidate], coverage: Sequence[float]) -> list[Candidate]:
        """Take a step.

        Args:
            candidates: Continuations, best first.
            coverage: `coverage_score` of each hypothesis so far.

        Returns:
            Those that live on, at most as many as beams.
        """
        width = self.options.width
        living = []
        for rank, candidate in enumerate(candidates):
            if candidate.token not in self.eos_token_ids:
                living.append(candidate)
            elif rank < width:
                self.finish(candidate, coverage[candidate.parent])
        living = living[:width]
        self.running = [self._continued(candidate) for candidate in living]
        self.is_done = not living or self._cannot_improve()
        return living

    def finish(self, candidate: Candidate, coverage: float) -> None:
        """Keep a hypothesis that has come to its end, if it is one of the best."""
        ended = self._continued(candidate)
        score = normalized_score(
            ended.log_probability, len(ended.token_ids), self.options, coverage
        )
        self.finished.append(Hypothesis(ended.token_ids, ended.log_probability, score))
        self.finished.sort(key=lambda found: -found.score)
        del self.finished[self.options.width :]

    def _continued(self, candidate: Candidate) -> Hypothesis:
        parent = self.running[candidate.parent]
        return Hypothesis((*parent.token_ids, candidate.token), candidate.log_probability)

    def _cannot_improve(self) -> bool:
        if len(self.finished) < self.options.width:
            return False
        best = self.running[0]
        possible = normalized_score(best.log_probability, self.length, self.options)
        return possible <= self.finished[-1].score


@dataclass
class SentenceSampling(SentenceSearch):
    """Translations of one sentence drawn by chance, each on its own.

    Args:
        options: How to draw, and how many.
        eos_token_ids: Ids that end a translation.
        max_length: Tokens at most; at the last, only an end is left.
        prefix: Ids that a translation begins with.
        seed: Where chance starts from for this sentence.
    """

    seed: str = ""

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.running = self.running * self.options.width

    def chances(self) -> list[float]:
        """A number in [0, 1) for each hypothesis."""
        return [self.chance.random() for _ in range(self.options.width)]

    def advance(self, candidates: list[Candidate], coverage: Sequence[float]) -> list[Candidate]:
        """Take a step.

        Args:
            candidates: A continuation of each hypothesis, then of rows that hold none.
            coverage: `coverage_score` of each hypothesis so far.

        Returns:
            Those that have not ended.
        """
        living = []
        for candidate in candidates[: len(self.running)]:
            if candidate.token in self.eos_token_ids:
                self.finish(candidate, coverage[candidate.parent])
            else:
                living.append(candidate)
        self.running = [self._continued(candidate) for candidate in living]
        self.is_done = not living
        return living


def repeating_tokens(token_ids: Sequence[int], size: int) -> set[int]:
    """Ids that would make the last size tokens a repetition.

    Args:
        token_ids: Tokens so far.
        size: Tokens of an n-gram, at least 1.

    Returns:
        The ids.
    """
    if len(token_ids) < size:
        return set()
    start = tuple(token_ids[len(token_ids) - size + 1 :])
    return {
        token_ids[index + size - 1]
        for index in range(len(token_ids) - size + 1)
        if tuple(token_ids[index : index + size - 1]) == start
    }
