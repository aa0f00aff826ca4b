"""Where the marks of a sentence stand in its translation: found by the attention.

A mark is set around the run of target words that attend most to its source words. Marks within a
mark stay within it, and marks side by side stay apart, so markup stays well-formed.
"""

import re
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

from torch import Tensor

from .marks import Mark

# Scripts without blanks between words: Thai to Khmer, and those of East Asia.
JOINED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
# A word, one sign of punctuation, or one of these scripts.
UNIT = re.compile(rf"[^\W{JOINED}]+|[^\w\s]|[{JOINED}]")
# A target word belongs to a mark if it pays more than this share of its attention to the mark.
THRESHOLD = 0.5

Span = tuple[int, int]
# The attention of the words of a translation, [target words, source words].
Attention = Callable[[str, str], Tensor]


def units_of(text: str) -> list[Span]:
    """The words and signs of a text: their characters."""
    return [match.span() for match in UNIT.finditer(text)]


@dataclass(frozen=True)
class Place:
    """Where a mark stands in a translation, and blanks beside it that the translation lacks."""

    start: int
    end: int
    before: str = ""
    after: str = ""


@dataclass(frozen=True)
class PlacedSentence:
    """A sentence of a block, text[start:end], and its translation, target.

    Atoms that start in atom_range belong to it: up to the next sentence, or the block's end, and
    from 0 for the first one.
    """

    text: str
    start: int
    end: int
    atom_range: range
    target: str
    attention: Attention

    @cached_property
    def source_units(self) -> list[Span]:
        """The words of the sentence: their characters in the block."""
        words = units_of(self.text[self.start : self.end])
        return [(self.start + first, self.start + last) for first, last in words]

    @cached_property
    def target_units(self) -> list[Span]:
        """The words of the translation: their characters."""
        return units_of(self.target)

    @cached_property
    def weights(self) -> list[list[float]]:
        """The attention of each target word to each source word."""
        source = self.text[self.start : self.end]
        weights: list[list[float]] = self.attention(source, self.target).tolist()
        return weights

    def places(self, marks: Sequence[Mark]) -> dict[Mark, Place]:
        """The places of a block's marks, as far as they are in this sentence."""
        places: dict[Mark, Place] = {}
        here = [mark for mark in marks if self._contains(mark)]
        self._place(here, (0, len(self.target_units)), self._words(self), places)
        return places

    def _contains(self, mark: Mark) -> bool:
        if mark.is_atom:
            return mark.start in self.atom_range
        return mark.start < self.end and mark.end > self.start

    def _words(self, part: "Mark | PlacedSentence") -> list[int]:
        """The source words that overlap a mark or the sentence."""
        units = enumerate(self.source_units)
        return [n for n, (first, last) in units if first < part.end and last > part.start]

    def _place(
        self, marks: list[Mark], window: Span, covered: list[int], places: dict[Mark, Place]
    ) -> None:
        """Place marks side by side, around source words covered, in the target words of window."""
        windows = self._windows([mark for mark in marks if not mark.is_atom], window, covered)
        # Atoms stand after marks from an earlier sentence, and before marks that continue.
        ends = (span[1] for mark, span in windows.items() if self._began_earlier(mark))
        starts = (span[0] for mark, span in windows.items() if self._continues(mark))
        free = (max(ends, default=window[0]), min(starts, default=window[1]))
        for mark in marks:
            if mark.is_atom:
                places[mark] = self._atom(mark, window, covered, list(windows.values()), free)
                continue
            first, last = windows[mark]
            part = self._part_of_word(mark, first) if last - first == 1 else None
            places[mark] = Place(*(part or self._characters(first, last)))
            # An atom at the end of a mark is in the sentence in which the mark ends.
            inner = [
                child
                for child in mark.inner
                if self._contains(child) or child.start == child.end == mark.end <= self.end
            ]
            self._place(inner, (first, last), self._words(mark), places)

    def _windows(self, marks: list[Mark], window: Span, covered: list[int]) -> dict[Mark, Span]:
        """The target words of marks side by side: those with the clearest attention first."""
        if len(marks) == 1 and self._words(marks[0]) == covered:
            return {marks[0]: window}
        # Marks that come from or continue in another sentence must start or end at the sentence's
        # first or last word, so these marks choose first.
        bound = {mark for mark in marks if self._began_earlier(mark) or self._continues(mark)}
        windows = {} if bound else self._same_words(marks, window)
        taken = sorted(set(windows.values()))
        end = window[1]  # place of marks without words

        def preference(mark: Mark) -> tuple[bool, tuple[float, Span]]:
            return mark in bound, self._best_run(mark, window, [], window[1])

        for mark in sorted(marks, key=preference, reverse=True):
            if mark in windows:
                continue
            gain, run = self._best_run(mark, window, taken, end)
            if mark.written and gain <= 0.0:  # no word is clearly its translation
                run = (run[1], run[1])
            windows[mark] = run
            taken = sorted([*taken, run])
            if self._continues(mark):
                end = run[0]
        return windows

    def _same_words(self, marks: list[Mark], window: Span) -> dict[Mark, Span]:
        """For each mark of a part of a word, such as H<sub>2</sub>O, the same target word."""
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
        """The characters of a target word that are a mark's, if both are within the same word."""
        words = self._words(mark)
        if mark.inner or len(words) != 1:
            return None
        first, last = self.source_units[words[0]]
        start, end = self.target_units[unit]
        is_part = first <= mark.start and mark.end <= last and mark.end - mark.start < last - first
        if not is_part or self.text[first:last] != self.target[start:end]:
            return None
        return start + mark.start - first, start + mark.end - first

    def _best_run(
        self, mark: Mark, window: Span, taken: list[Span], end: int
    ) -> tuple[float, Span]:
        """The run of target words that attend most to a mark's words, outside other marks' runs.

        Returns by how much their attention exceeds the threshold, and the run; it is empty, at end,
        if no word is left.
        """
        words = self._words(mark)
        gains = {
            unit: sum(self.weights[unit][word] for word in words) - THRESHOLD
            for unit in range(*window)
        }
        starts, ends = self._edges(mark, words, window)
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
        return max(options, default=(0.0, (end, end)))

    def _edges(
        self, mark: Mark, words: list[int], window: Span
    ) -> tuple[Container[int], Container[int]]:
        """The target words at which a mark may begin or end: around words, not at a sign."""
        units = range(*window)
        word_units = {unit for unit in units if self.target[self.target_units[unit][0]].isalnum()}
        starts, ends = (
            word_units if word_units and words and self._is_word(words[side]) else units
            for side in (0, -1)
        )
        return (
            {window[0]} if self._began_earlier(mark) else starts,
            {window[1] - 1} if self._continues(mark) else ends,
        )

    def _began_earlier(self, mark: Mark) -> bool:
        return mark.start < self.start

    def _continues(self, mark: Mark) -> bool:
        return mark.end > self.end

    def _atom(
        self, mark: Mark, window: Span, covered: list[int], taken: list[Span], free: Span
    ) -> Place:
        """Place an atom after the word before it, or before the word that it touches.

        It stands in a gap of free, outside the runs taken.
        """
        before = [word for word in covered if self.source_units[word][1] <= mark.start]
        after = [word for word in covered if self.source_units[word][0] >= mark.start]
        first, last = self._characters(*window)
        blank = " " if mark.has_space_before else ""
        if not before and free[0] == window[0]:
            touches_word = self.text[mark.start : mark.start + 1].isalnum()
            is_glued = self.target[first : first + 1].isalnum() and not touches_word
            return Place(first, first, after=" " if mark.has_space_after or is_glued else "")
        if (not after and free[1] == window[1]) or window[0] == window[1]:
            return Place(last, last, before=blank)

        def gap(unit: int, side: int) -> int:
            """Move a gap out of the runs, to one side, and to where the atom may stand."""
            unit = next((span[side] for span in taken if span[0] < unit < span[1]), unit)
            return max(free[0], min(unit, free[1]))

        touches_next_word = mark.has_space_before and not mark.has_space_after
        if after and touches_next_word and self._is_word(after[0]):
            unit = gap(self._most_attending(after[0], range(*window)), 0)
            here = self.target_units[unit][0] if unit < window[1] else last
            return Place(here, here)
        unit = self._most_attending(before[-1], range(*window)) + 1 if before else free[0]
        unit = gap(unit, 1)
        here = self.target_units[unit - 1][1] if unit > window[0] else first
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
