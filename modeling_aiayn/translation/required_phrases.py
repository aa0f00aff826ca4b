"""Lexical constraints: beam search for translations that contain given phrases.

Dynamic beam allocation (Post and Vilar 2018): a hypothesis competes only with hypotheses that
contain as many phrase tokens. A hypothesis without phrases therefore cannot displace one that
contains an unlikely phrase.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import ClassVar, NamedTuple, Self

from .candidates import Candidates
from .hypotheses import SentenceSearch


class Progress(NamedTuple):
    """The phrases that a hypothesis contains so far, by their indices."""

    met: frozenset[int]
    begun: dict[int, int]  # for each other phrase, how many of its first ids are the last ones

    @classmethod
    def of(
        cls, token_ids: Sequence[int], phrases: Sequence[Sequence[int]], met: frozenset[int]
    ) -> Self:
        """The progress of a hypothesis that contained the phrases `met` before its last id."""
        begun = {
            index: _overlap(token_ids, phrase)
            for index, phrase in enumerate(phrases)
            if index not in met
        }
        complete = {index for index, size in begun.items() if size == len(phrases[index])}
        others = {index: size for index, size in begun.items() if index not in complete}
        return cls(met | complete, others)


def _overlap(token_ids: Sequence[int], phrase: Sequence[int]) -> int:
    sizes = range(min(len(token_ids), len(phrase)), 0, -1)
    return next((n for n in sizes if list(token_ids[-n:]) == list(phrase[:n])), 0)


@dataclass
class ConstrainedSearch(SentenceSearch):
    """Beam search for one sentence whose translation must contain phrases, none empty."""

    needs_one_for_each: ClassVar[bool] = True

    phrases: Sequence[Sequence[int]] = ()
    progress: list[Progress] = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.progress = [Progress.of((), self.phrases, frozenset())]

    def required_tokens(self) -> list[tuple[int, int]]:
        """Hypothesis and next id of each phrase that it does not contain yet."""
        if self.forced_tokens() is not None:
            return []
        return [
            (k, token)
            for k, progress in enumerate(self.progress)
            for token in {self.phrases[index][size] for index, size in progress.begun.items()}
        ]

    def advance(self, candidates: Candidates, coverage: Sequence[float]) -> None:
        """Continue the hypotheses by a step; candidates may have any order, and occur twice."""
        banks: dict[int, list[tuple[int, Progress]]] = {}
        ranked = candidates.ranked()
        token_ids = [self.token_ids(k) for k in range(len(self.running.tokens))]
        for rank, (parent, token) in enumerate(zip(ranked.parents, ranked.tokens, strict=True)):
            before = self.progress[parent]
            if token not in self.eos_token_ids:
                after = Progress.of((*token_ids[parent], token), self.phrases, before.met)
                banks.setdefault(self._count_tokens(after), []).append((rank, after))
            elif len(before.met) == len(self.phrases):
                self._finish(ranked, rank, coverage)
        living = self._allocate_beams(banks)
        living.sort(key=lambda entry: -ranked.log_probabilities[entry[0]])
        self.progress = [progress for _, progress in living]
        self._continue(ranked.pick([rank for rank, _ in living]))
        self._stop_if_best()

    def _allocate_beams(
        self, banks: dict[int, list[tuple[int, Progress]]]
    ) -> list[tuple[int, Progress]]:
        """Give the beams to the banks in turn, first to the bank with the most phrase tokens."""
        rounds = zip_longest(*(banks[count] for count in sorted(banks, reverse=True)))
        living = [entry for entries in rounds for entry in entries if entry is not None]
        return living[: self.options.width]

    def _count_tokens(self, progress: Progress) -> int:
        complete = sum(len(self.phrases[index]) for index in progress.met)
        return complete + max(progress.begun.values(), default=0)
