"""Lexical constraints: beam search for translations that contain given phrases.

Dynamic beam allocation (Post and Vilar 2018): hypotheses compete only with those that have as much
of the phrases as they, so one that has paid for a phrase is not thrown out by one that has not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from .candidates import Candidate
from .hypotheses import SentenceSearch


class Progress(NamedTuple):
    """How much of the phrases a hypothesis has.

    Args:
        met: Which phrases are there.
        begun: Of the others, as many ids as the hypothesis ends with, by phrase.
    """

    met: frozenset[int]
    begun: dict[int, int]

    @classmethod
    def of(
        cls, token_ids: Sequence[int], phrases: Sequence[Sequence[int]], met: frozenset[int]
    ) -> Self:
        """The progress of a hypothesis; phrases may overlap in it, and one be a part of another.

        Args:
            token_ids: Its ids.
            phrases: All phrases' ids.
            met: Which were there before the last id.

        Returns:
            The progress.
        """
        begun = {
            index: _overlap(token_ids, phrase)
            for index, phrase in enumerate(phrases)
            if index not in met
        }
        said = {index for index, size in begun.items() if size == len(phrases[index])}
        others = {index: size for index, size in begun.items() if index not in said}
        return cls(met | said, others)


def _overlap(token_ids: Sequence[int], phrase: Sequence[int]) -> int:
    """How many of a phrase's first ids are the last of token_ids."""
    sizes = range(min(len(token_ids), len(phrase)), 0, -1)
    return next((n for n in sizes if list(token_ids[-n:]) == list(phrase[:n])), 0)


@dataclass
class ConstrainedSearch(SentenceSearch):
    """Beam search for one sentence whose translation must contain phrases.

    Args:
        options: How to search.
        eos_token_ids: Ids that end a translation.
        max_length: Tokens at most; at the last, only an end is left.
        prefix: Ids that a translation begins with.
        phrases: Ids of each phrase, in any order; none is empty.
    """

    phrases: Sequence[Sequence[int]] = ()
    progress: list[Progress] = field(init=False)

    def __post_init__(self) -> None:
        self.progress = [Progress.of((), self.phrases, frozenset())]

    def wanted(self) -> list[tuple[int, int]]:
        """Which hypothesis is to be offered which id: the next one of each phrase."""
        if self.only() is not None:
            return []
        return [
            (k, token)
            for k, progress in enumerate(self.progress)
            for token in {self.phrases[index][size] for index, size in progress.begun.items()}
        ]

    def advance(self, candidates: list[Candidate], coverage: Sequence[float]) -> list[Candidate]:
        """Take a step.

        Args:
            candidates: Continuations, in any order and perhaps twice.
            coverage: `coverage_score` of each hypothesis so far.

        Returns:
            Those that live on, at most as many as beams.
        """
        banks: dict[int, list[tuple[Candidate, Progress]]] = {}
        for candidate in sorted(set(candidates), key=lambda found: -found.log_probability):
            before = self.progress[candidate.parent]
            if candidate.token not in self.eos_token_ids:
                token_ids = (*self.running[candidate.parent].token_ids, candidate.token)
                after = Progress.of(token_ids, self.phrases, before.met)
                banks.setdefault(self._tokens_met(after), []).append((candidate, after))
            elif len(before.met) == len(self.phrases):
                self.finish(candidate, coverage[candidate.parent])
        living = self._shared_out(banks)
        self.running = [self._continued(candidate) for candidate, _ in living]
        self.progress = [progress for _, progress in living]
        self.is_done = not living or self._cannot_improve()
        return [candidate for candidate, _ in living]

    def _shared_out(
        self, banks: dict[int, list[tuple[Candidate, Progress]]]
    ) -> list[tuple[Candidate, Progress]]:
        """The beams, one after the other to each bank; the fullest bank is served first."""
        living: list[tuple[Candidate, Progress]] = []
        queues = [iter(banks[met]) for met in sorted(banks, reverse=True)]
        while queues and len(living) < self.options.width:
            for queue in list(queues):
                served = next(queue, None)
                if served is None:
                    queues.remove(queue)
                else:
                    living.append(served)
        living = living[: self.options.width]
        return sorted(living, key=lambda served: -served[0].log_probability)

    def _tokens_met(self, progress: Progress) -> int:
        said = sum(len(self.phrases[index]) for index in progress.met)
        return said + max(progress.begun.values(), default=0)
