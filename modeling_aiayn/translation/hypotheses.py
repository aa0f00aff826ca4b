"""Section 6.1: the search for one sentence, with its hypotheses and their scores."""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .candidates import Candidates
from .options import SearchOptions

# The possible forms of a phrase, such as its inflections, each as token ids.
Forms = Sequence[tuple[int, ...]]


@dataclass(frozen=True)
class SourceSentence:
    """A sentence to translate, in ids, `</s>` last."""

    input_ids: Sequence[int]
    prefix: Sequence[int] = ()  # the first ids of the translation
    phrases: Sequence[Forms] = ()  # phrases that the translation should contain
    certain: int = 0  # number of prefix ids with probability 1, such as a language tag
    number: int = 0  # seeds sampling, so that equal sentences get different samples


class Hypothesis(NamedTuple):
    """A finished translation."""

    token_ids: tuple[int, ...]  # `</s>` last
    log_probability: float  # sum over its tokens, in nats
    score: float  # its `normalized_score`


def length_divisor(length: int, alpha: float, normalization: str) -> float:
    """The length penalty of n tokens, `</s>` included: Wu et al. 2016, equation 14, or n^alpha."""
    return ((5 + length) / 6) ** alpha if normalization == "gnmt" else float(length) ** alpha


def normalized_score(
    log_probability: float, length: int, options: SearchOptions, coverage: float = 0.0
) -> float:
    """The score that ranks hypotheses: log P / length penalty + beta * `coverage_scores`."""
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

    Running and finished hypotheses are sorted, best first. A completed search has no running ones.
    """

    sentence: SourceSentence
    options: SearchOptions
    eos_token_ids: frozenset[int]
    max_length: int
    start_token_id: int

    def __post_init__(self) -> None:
        self.running = Candidates([0.0], [0], [self.start_token_id])
        self.finished: list[Hypothesis] = []
        # Parents and tokens of the running hypotheses, concatenated over the steps, and the index
        # where each step begins. Lists of lists would slow down Python's garbage collector.
        self.ancestors: tuple[list[int], list[int]] = ([], [])
        self.starts: list[int] = []

    @property
    def is_done(self) -> bool:
        """Whether no hypothesis is left to continue."""
        return not self.running.tokens

    @property
    def length(self) -> int:
        """Tokens of each running hypothesis."""
        return len(self.starts)

    def token_ids(self, hypothesis: int) -> tuple[int, ...]:
        """Return the ids of the running hypothesis at an index."""
        parents, tokens = self.ancestors
        ids = []
        for start in reversed(self.starts):
            ids.append(tokens[start + hypothesis])
            hypothesis = parents[start + hypothesis]
        return tuple(reversed(ids))

    def forced_tokens(self) -> list[int] | None:
        """The only ids that may come next: the prefix's, or an end. None: any id may come."""
        if self.length + 1 >= self.max_length:
            return sorted(self.eos_token_ids)
        if self.length < len(self.sentence.prefix):
            return [self.sentence.prefix[self.length]]
        return None

    def wanted_tokens(self) -> Iterable[tuple[int, int, float]]:
        """Return hypothesis index, id and credit of each continuation that gets credit."""
        return []

    def banned_tokens(self) -> list[tuple[int, int]]:
        """Return the hypothesis index and id of each banned continuation, never of forced ids."""
        hypotheses, banned = range(len(self.running.tokens)), []
        if self.length < self.options.min_length:
            banned += [(k, token) for k in hypotheses for token in self.eos_token_ids]
        if size := self.options.no_repeat_ngram_size:
            banned += [
                (k, token)
                for k in hypotheses
                for token in repeating_tokens(self.token_ids(k), size)
            ]
        return banned if self.forced_tokens() is None else []

    def draws(self) -> list[float]:
        """Return a random number in [0, 1) for each sampled hypothesis; beam search needs none."""
        return []

    def advance(self, candidates: Candidates, coverage: Sequence[float]) -> None:
        """Continue the hypotheses with candidates, best first; coverage has a score for each."""
        width, tokens = self.options.width, candidates.tokens
        # In most steps no candidate ends, so this case must be fast.
        if self.eos_token_ids.isdisjoint(tokens):
            self._continue(candidates.first(width))
        else:
            for rank, token in enumerate(tokens[:width]):
                if token in self.eos_token_ids:
                    self._finish(candidates, rank, coverage)
            living = [n for n, token in enumerate(tokens) if token not in self.eos_token_ids]
            self._continue(candidates.pick(living[:width]))
        self._stop_if_best()

    def _continue(self, living: Candidates) -> None:
        self.running = living
        parents, tokens = self.ancestors
        self.starts.append(len(tokens))
        parents += living.parents
        tokens += living.tokens
        if len(self.starts) <= self.sentence.certain:
            scores = living.log_probabilities
            certain = [0.0 if score > -math.inf else score for score in scores]
            self.running = living._replace(log_probabilities=certain)

    def _stop_if_best(self) -> None:
        if self.is_done or len(self.finished) < self.options.width:
            return
        best = self.running.log_probabilities[0]
        possible = normalized_score(best, self.length, self.options)
        if possible <= self.finished[-1].score:
            self.running = Candidates([], [], [])

    def _finish(
        self, candidates: Candidates, index: int, coverage: Sequence[float], price: float = 0.0
    ) -> None:
        """Finish a hypothesis; price lowers its score, not its probability."""
        log_probability, parent = candidates.log_probabilities[index], candidates.parents[index]
        token_ids = (*self.token_ids(parent), candidates.tokens[index])
        ranked = log_probability - price
        score = normalized_score(ranked, len(token_ids), self.options, coverage[parent])
        self.finished.append(Hypothesis(token_ids, log_probability, score))
        self.finished.sort(key=lambda hypothesis: -hypothesis.score)
        del self.finished[self.options.width :]


class SentenceSampling(SentenceSearch):
    """Random, independent translations of one sentence; its number seeds the random numbers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.random = random.Random(f"{self.options.search_seed} {self.sentence.number}")
        self.running = self.running.pick([0] * self.options.width)

    def draws(self) -> list[float]:
        """Return a random number in [0, 1) for each hypothesis."""
        return [self.random.random() for _ in range(self.options.width)]

    def advance(self, candidates: Candidates, coverage: Sequence[float]) -> None:
        """Continue each hypothesis with the candidate at its index; ignore further candidates.

        A hypothesis is dropped if all of its next tokens are forbidden.
        """
        living = []
        for index in range(len(self.running.tokens)):
            if candidates.log_probabilities[index] == -math.inf:
                continue
            if candidates.tokens[index] in self.eos_token_ids:
                self._finish(candidates, index, coverage)
            else:
                living.append(index)
        self._continue(candidates.pick(living))


def repeating_tokens(token_ids: Sequence[int], size: int) -> set[int]:
    """Return the ids that would repeat an n-gram of the given size, which is at least 1."""
    start = tuple(token_ids[len(token_ids) - size + 1 :])
    return {
        token_ids[index + size - 1]
        for index in range(len(token_ids) - size + 1)
        if tuple(token_ids[index : index + size - 1]) == start
    }
