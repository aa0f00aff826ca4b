"""Lexical constraints: beam search for translations that contain wanted phrases.

The ids of a wanted phrase get credit, so that hypotheses with a plausible phrase stay in the beam.
An unfinished phrase loses its credit. A translation pays a price for each missing phrase. The price
is too low to force an implausible phrase.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from .candidates import Candidates
from .hypotheses import SentenceSearch, normalized_score

# In nats: credit for a phrase's first id, credit for each further id, price of a missing phrase.
FIRST_CREDIT, CREDIT, PRICE = 2.0, 1.0, 3.0


class Progress(NamedTuple):
    """The phrases that a hypothesis contains completely (met) or has begun."""

    met: frozenset[int] = frozenset()  # indices of phrases
    begun: tuple[int, ...] = ()  # the last ids, if they begin a form of a phrase that is not met
    credit: float = 0.0  # for phrases that are met

    @property
    def hope(self) -> float:
        """The credit for the phrase that is begun."""
        return credit_for(len(self.begun))


def credit_for(size: int) -> float:
    """Return the credit for the first `size` ids of a phrase."""
    return FIRST_CREDIT + CREDIT * (size - 1) if size else 0.0


class PhraseSearch(SentenceSearch):
    """Beam search for one sentence whose translation should contain non-empty phrases.

    The score of a running hypothesis is its log-probability plus the credits for the phrases that
    are met.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.progress = [Progress()]
        self.wanted: dict[Progress, list[tuple[int, float]]] = {}
        # Phrases by the beginning of a form and its next id; after a complete form, this is None.
        self.following: dict[tuple[int, ...], dict[int | None, set[int]]] = defaultdict(
            lambda: defaultdict(set)
        )
        for index, forms in enumerate(self.sentence.phrases):
            for form in forms:
                for size, token in enumerate([*form, None]):
                    self.following[form[:size]][token].add(index)

    def wanted_tokens(self) -> Iterator[tuple[int, int, float]]:
        """Yield hypothesis, next id and credit of each id that begins or continues a phrase."""
        for k, before in enumerate(self.progress):
            for token, credit in self._wanted(before):
                yield k, token, credit

    def _wanted(self, before: Progress) -> list[tuple[int, float]]:
        """Return the ids that begin or continue phrases, and their credits."""
        if before not in self.wanted:
            starts = range(len(before.begun) + 1)
            ends = (self._next(before.begun[start:], before.met) for start in starts)
            afters = {token: self._after(before, token) for token in chain(*ends)}
            self.wanted[before] = [
                (token, after.credit + after.hope - before.credit)
                for token, after in afters.items()
            ]
        return self.wanted[before]

    def _next(self, begun: tuple[int, ...], met: frozenset[int]) -> list[int]:
        following = self.following.get(begun, {})
        return [x for x, phrases in following.items() if x is not None and not phrases <= met]

    def _after(self, before: Progress, token: int) -> Progress:
        """Return the progress of a hypothesis after another id."""
        if not before.begun and token not in self.following[()]:
            return before
        ids = (*before.begun, token)
        ends = [ids[start:] for start in range(len(ids))]
        met = before.met.union(*(self.following.get(end, {}).get(None, ()) for end in ends))
        begun: tuple[int, ...] = next((end for end in ends if self._next(end, met)), ())
        credit = sum(credit_for(len(self.sentence.phrases[index][0])) for index in met)
        return Progress(met, begun, credit)

    def _continue(self, living: Candidates) -> None:
        rows = zip(living.parents, living.tokens, strict=True)
        self.progress = [self._after(self.progress[parent], token) for parent, token in rows]
        pairs = zip(living.log_probabilities, self.progress, strict=True)
        super()._continue(living._replace(log_probabilities=[x - y.hope for x, y in pairs]))

    def _missing(self, progress: Progress) -> int:
        return len(self.sentence.phrases) - len(progress.met)

    def _finish(
        self, candidates: Candidates, index: int, coverage: Sequence[float], price: float = 0.0
    ) -> None:
        before = self.progress[candidates.parents[index]]
        log_probabilities = [score - before.credit for score in candidates.log_probabilities]
        price += PRICE * self._missing(before)
        super()._finish(
            candidates._replace(log_probabilities=log_probabilities), index, coverage, price
        )

    def _stop_if_best(self) -> None:
        """Stop when no running hypothesis can be in the nbest; a missing phrase costs CREDIT."""
        if len(self.finished) >= self.options.nbest and not self.is_done:
            scores = zip(self.running.log_probabilities, self.progress, strict=True)
            best = max(x - y.credit - CREDIT * self._missing(y) for x, y in scores)
            worst = self.finished[self.options.nbest - 1].score
            if normalized_score(best, self.length, self.options) <= worst:
                self.running = Candidates([], [], [])
