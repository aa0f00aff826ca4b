"""Lexical constraints: beam search for translations that contain given phrases.

Dynamic beam allocation (Post and Vilar 2018): hypotheses compete only with those that have as much
of the phrases as they, so one that has paid for a phrase is not thrown out by one that has not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .candidates import Candidate
from .hypotheses import SentenceSearch


class Progress(NamedTuple):
    """How much of the phrases a hypothesis has.

    Args:
        met: Which phrases are there.
        current: Which one is being said; None: none.
        offset: How many of its ids are there.
    """

    met: frozenset[int] = frozenset()
    current: int | None = None
    offset: int = 0


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
    progress: list[Progress] = field(default_factory=lambda: [Progress()])

    def wanted(self) -> list[tuple[int, int]]:
        """Which hypothesis is to be offered which id: the next of a phrase, or a first one."""
        if self.only() is not None:
            return []
        return [
            (k, token)
            for k, progress in enumerate(self.progress)
            for token in self._next_tokens(progress)
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
                after = self._after(before, candidate.token)
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
        return sum(len(self.phrases[index]) for index in progress.met) + progress.offset

    def _next_tokens(self, progress: Progress) -> set[int]:
        if progress.current is not None:
            return {self.phrases[progress.current][progress.offset]}
        return {phrase[0] for index, phrase in enumerate(self.phrases) if index not in progress.met}

    def _after(self, progress: Progress, token: int) -> Progress:
        """The progress of a hypothesis with one more token."""
        met, current, offset = progress
        if current is None or self.phrases[current][offset] != token:
            starts = (
                index
                for index, phrase in enumerate(self.phrases)
                if index not in met and phrase[0] == token
            )
            current, offset = next(starts, None), 0
        if current is None:
            return Progress(met)
        if offset + 1 == len(self.phrases[current]):
            return Progress(met | {current})
        return Progress(met, current, offset + 1)
