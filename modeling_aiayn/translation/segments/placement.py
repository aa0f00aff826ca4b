"""Find the places of a sentence's marks in its translation, by attention.

A mark surrounds the run of target words that attend most to its source words. Nested marks stay
nested, and neighboring marks do not overlap, so markup stays well-formed.
"""

import re
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import inf

from torch import Tensor

from .marks import Mark

# Scripts without spaces between words: Thai to Khmer, and East Asian scripts.
JOINED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
# A word, a punctuation mark, or one character of these scripts.
UNIT = re.compile(rf"[^\W{JOINED}]+|[^\w\s]|[{JOINED}]")
# A target word belongs to a mark if it pays more than this share of its attention to the mark.
THRESHOLD = 0.5

Span = tuple[int, int]
# Returns the attention of a sentence and its translation, [target words, source words].
Attention = Callable[[str, str], Tensor]


def units_of(text: str) -> list[Span]:
    """Return the start and end of each word and punctuation mark of a text."""
    return [match.span() for match in UNIT.finditer(text)]


@dataclass(frozen=True)
class Place:
    """Where a mark stands in a translation, and text to add before and after it."""

    start: int
    end: int
    before: str = ""
    after: str = ""


@dataclass
class PlacedSentence:
    """Places the marks of a sentence in its translation, target."""

    text: str
    target: str
    attention: Attention

    def __post_init__(self) -> None:
        # The start and end of each word.
        self.source_units, self.target_units = units_of(self.text), units_of(self.target)

    @cached_property
    def weights(self) -> list[list[float]]:
        """The attention of each target word to each source word."""
        weights: list[list[float]] = self.attention(self.text, self.target).tolist()
        return weights

    def places(self, marks: list[Mark]) -> dict[Mark, Place]:
        """Return the places of the sentence's marks."""
        places: dict[Mark, Place] = {}
        breaks = [mark for mark in marks if mark.is_break]
        bounds = [0, *(mark.start for mark in breaks), len(self.text) + 1]
        parts = [
            [n for n, (first, _) in enumerate(self.source_units) if start <= first < end]
            for start, end in pairwise(bounds)
        ]
        starts = self._divided(parts) if breaks else [0]
        for mark, start in zip(breaks, starts[1:], strict=True):
            here, again = len(self.target), ""
            if start < len(self.target_units):
                here = self.target_units[start][0]
            else:  # a part without words repeats the last word
                again = self.target[slice(*self._last_word)]
            places[mark] = Place(here, here, after=again)
        ends = [*starts[1:], len(self.target_units)]
        windows = zip(starts, ends, strict=True)
        for part, (first, last), window in zip(parts, pairwise(bounds), windows, strict=True):
            inner = [x for x in marks if first <= x.start < last and not x.is_break]
            self._place(inner, window, part, places)
        return places

    @property
    def _last_word(self) -> Span:
        words = [span for span in self.target_units if self.target[span[0]].isalnum()]
        return (words or self.target_units or [(0, 0)])[-1]

    def _divided(self, parts: list[list[int]]) -> list[int]:
        """Choose the target words where parts begin, so that each attends most to its source words.

        A part begins at a word, after a space if the target has spaces. If there are fewer words
        than parts, the last parts begin at the end of the target.
        """
        # By index of the last part: the best total for the words so far, and where its parts start.
        best: dict[int, tuple[float, list[int]]] = {}
        for unit, (start, _) in enumerate(self.target_units):
            gains = [sum(self.weights[unit][word] for word in part) for part in parts]
            options = {n: [(total + gains[n], starts)] for n, (total, starts) in best.items()}
            if unit == 0:
                options = {0: [(gains[0], [0])]}
            elif self.target[start - 1] == " " or " " not in self.target:
                for n, (total, starts) in best.items():
                    if n + 1 < len(parts):
                        new = (total + gains[n + 1], [*starts, unit])
                        options.setdefault(n + 1, []).append(new)
            best = {n: max(some) for n, some in options.items()}
        starts = best[max(best)][1] if best else []
        return starts + [len(self.target_units)] * (len(parts) - len(starts))

    def _words(self, mark: Mark) -> list[int]:
        """Return the source words that overlap a mark."""
        units = enumerate(self.source_units)
        return [n for n, (first, last) in units if first < mark.end and last > mark.start]

    def _place(
        self, marks: list[Mark], window: Span, covered: list[int], places: dict[Mark, Place]
    ) -> None:
        """Place neighboring marks, inside source words covered, in the target words of window."""
        windows = self._windows([mark for mark in marks if not mark.is_atom], window, covered)
        for mark in marks:
            if mark.is_atom:
                places[mark] = self._atom(mark, window, covered, list(windows.values()))
                continue
            first, last = windows[mark]
            part = self._part_of_word(mark, first) if last - first == 1 else None
            places[mark] = Place(*(part or self._characters(first, last)))
            self._place(mark.inner, (first, last), self._words(mark), places)

    def _windows(self, marks: list[Mark], window: Span, covered: list[int]) -> dict[Mark, Span]:
        """Choose target words for neighboring marks; the clearest attention chooses first."""
        if len(marks) == 1 and self._words(marks[0]) == covered:
            return {marks[0]: window}
        windows = self._same_words(marks, window)
        taken = sorted(set(windows.values()))
        for mark in sorted(marks, key=lambda mark: self._best_run(mark, window, []), reverse=True):
            if mark in windows:
                continue
            gain, run = self._best_run(mark, window, taken)
            if mark.written and gain <= 0.0:  # no word is clearly its translation
                run = (run[1], run[1])
            windows[mark] = run
            taken = sorted([*taken, run])
        return windows

    def _same_words(self, marks: list[Mark], window: Span) -> dict[Mark, Span]:
        """Find the equal target word for marks inside a word, such as H<sub>2</sub>O."""
        found = {}
        owners: dict[int, int] = {}  # the source word of each target word that is taken
        for mark in marks:
            same = [unit for unit in range(*window) if self._part_of_word(mark, unit)]
            if same:
                (word,) = self._words(mark)
                shared = [unit for unit in same if owners.get(unit) == word]
                unowned = [unit for unit in same if unit not in owners]
                if shared or unowned:
                    unit = self._most_attending(word, shared or unowned)
                    owners[unit] = word
                    found[mark] = (unit, unit + 1)
        return found

    def _part_of_word(self, mark: Mark, unit: int) -> Span | None:
        """Return the marked characters of a target word if it equals the word around the mark."""
        words = self._words(mark)
        if mark.inner or len(words) != 1:
            return None
        first, last = self.source_units[words[0]]
        start, end = self.target_units[unit]
        is_part = first <= mark.start and mark.end <= last and mark.end - mark.start < last - first
        if not is_part or self.text[first:last] != self.target[start:end]:
            return None
        return start + mark.start - first, start + mark.end - first

    def _best_run(self, mark: Mark, window: Span, taken: list[Span]) -> tuple[float, Span]:
        """Find the run of target words that attend most to a mark's words, outside taken runs.

        Returns how much their attention exceeds the threshold, and the run. If no word is left, the
        run is empty and at the end of the window.
        """
        words = self._words(mark)
        gains = {
            unit: sum(self.weights[unit][word] for word in words) - THRESHOLD
            for unit in range(*window)
        }
        starts, ends = self._edges(words, window)
        options: list[tuple[float, Span]] = []
        edges = [window[0], *(edge for span in taken for edge in span), window[1]]
        for left, right in zip(edges[::2], edges[1::2], strict=True):
            # best: the negative total before the best start so far, and this start.
            total, best = 0.0, (-inf, left)
            for unit in range(left, right):
                if unit in starts:
                    best = max(best, (-total, unit))
                total += gains[unit]
                if unit in ends and best[0] > -inf:
                    options.append((best[0] + total, (best[1], unit + 1)))
        return max(options, default=(0.0, (window[1], window[1])))

    def _edges(self, words: list[int], window: Span) -> list[Container[int]]:
        """Return the target words where a mark may begin, and where it may end: not punctuation."""
        units = range(*window)
        word_units = {unit for unit in units if self.target[self.target_units[unit][0]].isalnum()}
        return [
            word_units if word_units and words and self._is_word(words[side]) else units
            for side in (0, -1)
        ]

    def _atom(self, mark: Mark, window: Span, covered: list[int], taken: list[Span]) -> Place:
        """Place an atom after the previous word, or before the word that it touches.

        The place is in the window, outside the taken runs.
        """
        before = [word for word in covered if self.source_units[word][1] <= mark.start]
        after = [word for word in covered if self.source_units[word][0] >= mark.start]
        first, last = self._characters(*window)
        blank = " " if mark.has_space_before else ""
        if not before:
            touches_word = self.text[mark.start : mark.start + 1].isalnum()
            is_glued = self.target[first : first + 1].isalnum() and not touches_word
            return Place(first, first, after=" " if mark.has_space_after or is_glued else "")
        if not after or window[0] == window[1]:
            return Place(last, last, before=blank)

        def gap(unit: int, side: int) -> int:
            """Move a gap out of the runs, to one side."""
            return next((span[side] for span in taken if span[0] < unit < span[1]), unit)

        touches_next_word = mark.has_space_before and not mark.has_space_after
        if touches_next_word and self._is_word(after[0]):
            unit = gap(self._most_attending(after[0], range(*window)), 0)
            here = self.target_units[unit][0]
            return Place(here, here)
        unit = gap(self._most_attending(before[-1], range(*window)) + 1, 1)
        here = self.target_units[unit - 1][1]
        return Place(here, here, before=blank)

    def _is_word(self, unit: int) -> bool:
        return self.text[self.source_units[unit][0]].isalnum()

    def _most_attending(self, word: int, units: Sequence[int]) -> int:
        return max(units, key=lambda unit: self.weights[unit][word])

    def _characters(self, first: int, last: int) -> Span:
        units = self.target_units
        if first < last:
            return units[first][0], units[last - 1][1]
        end = units[first - 1][1] if first else 0
        return end, end
