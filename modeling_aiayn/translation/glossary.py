"""Glossaries: terms, and their translations in an inflection that fits the sentence."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from ..data.lines import read_lines
from ..saved.languages import Languages, iso_639
from ..tokenization import SPACE
from .hypotheses import Forms
from .segments.marks import Mark
from .segments.placement import units_of

# The languages of snowballstemmer.
STEMMERS = """
ar:arabic ca:catalan da:danish de:german el:greek en:english es:spanish et:estonian eu:basque
fi:finnish fr:french ga:irish hi:hindi hu:hungarian hy:armenian id:indonesian it:italian
lt:lithuanian nb:norwegian ne:nepali nl:dutch no:norwegian pt:portuguese ro:romanian ru:russian
sr:serbian sv:swedish ta:tamil tr:turkish yi:yiddish
"""
EXACT = "="  # marks a translation that must not be inflected
MOST_FORMS = 100  # maximum number of forms of a term


@dataclass(frozen=True)
class Term:
    """A term of a sentence, text[start:end], and its translations in a glossary."""

    start: int
    end: int
    targets: Sequence[str]  # "=" marks a target that must not be inflected
    forms: Forms  # the token ids of all allowed forms
    language: str  # of the translation

    def is_in(self, translation: str) -> bool:
        """Whether a translation contains the term in one of its forms."""
        return any(
            _words(target.removeprefix(EXACT), language) in _words(translation, language)
            for target in self.targets
            for language in [None if target.startswith(EXACT) else self.language]
        )

    def mark(self) -> Mark:
        """Make a mark that replaces a different translation of the term."""
        return Mark(self.start, self.end, "", written=self.targets[0].removeprefix(EXACT))


@lru_cache(maxsize=200_000)
def stem_of(word: str, language: str | None) -> str:
    """Return the stem of a word, in lower case; without a language, the unchanged word."""
    if language is None:
        return word
    name = re.search(rf"\b{re.escape(language)}:(\w+)", STEMMERS)
    if name is None:
        return word.casefold()
    from snowballstemmer import stemmer

    # A stemmer stores the current word, so threads cannot share one.
    return str(stemmer(name[1]).stemWord(word.casefold()))


def _stems(text: str, language: str | None) -> list[str]:
    """Return the stems of a text's words, with a space before and after each."""
    return [f" {stem_of(text[slice(*unit)], language)} " for unit in units_of(text)]


def _words(text: str, language: str | None) -> str:
    return "".join(_stems(text, language))


def read_terms(path: str | Path) -> list[tuple[str, str]]:
    """Read the terms of a `Glossary` from a file, source<TAB>target on each line."""
    lines = [(n, line) for n, line in enumerate(read_lines(path), start=1) if line.strip()]
    for number, line in lines:
        if "\t" not in line.lstrip():
            raise ValueError(
                f"{path}:{number} must be a term, a tab, and its translation, got {line!r}. Of a "
                f"term that stays as it is, the translation is {EXACT}."
            )
    pairs = (line.split("\t", 1) for _, line in lines)
    return [(source.strip(), target.strip()) for source, target in pairs]


class Glossary:
    """Finds the terms of a sentence.

    A term is found in all inflections, by the stems of its words. A term with capitals matches only
    text with capitals. An empty target, or "=", keeps the term unchanged, and "=x" writes exactly
    x; words of other targets may be inflected. If a term has several targets, one of them must
    occur. The languages of source and target choose the stemmers.

    Raises:
        ValueError: The vocabulary of the target's tokenizer cannot write a term.
    """

    def __init__(
        self,
        terms: Iterable[tuple[str, str]],
        tokenizer: PreTrainedTokenizerBase,
        languages: Languages,
    ) -> None:
        self._tokenizer = tokenizer
        self._source, self._target = map(iso_639, languages)
        self._terms: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for source, target in terms:
            self._terms[_words(source, self._source)].append((source, target))
            if tokenizer.unk_token_id in self._ids(target.removeprefix(EXACT) or source):
                raise ValueError(f"The vocabulary cannot write {target or source!r}.")
        self._longest = max((len(stems.split()) for stems in self._terms), default=0)
        self._forms: dict[str, list[tuple[int, ...]]] = {}  # cache, by target

    def terms(self, text: str) -> list[Term]:
        """Find the terms of a sentence, in order; of nested terms, only the longest."""
        units, stems = units_of(text), _stems(text, self._source)
        found: list[Term] = []
        for first, (start, _) in enumerate(units):
            for size in range(min(self._longest, len(units) - first), 0, -1):
                known = self._terms.get("".join(stems[first : first + size]))
                part = text[start : units[first + size - 1][1]]
                targets = [target for source, target in known or () if _has_capitals(part, source)]
                if targets and (not found or start >= found[-1].end):
                    found.append(self._term(start, part, targets))
                    break
        return found

    def _term(self, start: int, part: str, targets: Sequence[str]) -> Term:
        targets = [target if target.strip(EXACT) else EXACT + part for target in targets]
        for target in targets:
            if target not in self._forms:
                self._forms[target] = self._all_forms(target)
        forms = [form for target in targets for form in self._forms[target]]
        return Term(start, start + len(part), targets, forms, self._target)

    def _ids(self, text: str) -> list[int]:
        options: Any = {"add_special_tokens": False, "split_special_tokens": True}
        ids: list[int] = self._tokenizer(text, **options).input_ids
        return ids

    def _all_forms(self, target: str) -> list[tuple[int, ...]]:
        """Return the ids of a translation, and of its variants with inflected words."""
        if target.startswith(EXACT):
            return [tuple(self._ids(target.removeprefix(EXACT)))]
        words = product(*map(self._inflections, target.split()))
        return [tuple(chain(*form)) for form in islice(words, MOST_FORMS)]

    def _inflections(self, word: str) -> list[list[int]]:
        """Return sequences of ids that begin a word with the same stem as the given word.

        They are its first ids, variants with another last id, and single ids. More ids may follow.
        """
        ids = self._ids(word)
        ends = range(1, len(ids))
        size = next((n for n in ends if self._is_same(self._text(ids[:n]), word)), len(ids))
        tokens = self._tokenizer.convert_ids_to_tokens(ids[:size])
        whole = SPACE * tokens[0].startswith(SPACE) + word
        forms = [[*ids[: size - 1], other] for other in self._similar[_folded(tokens[-1])]]
        forms += [[other] for other in self._similar[_folded(whole)] if size > 1]
        initials = word[0], word[0].upper()
        texts = map(self._text, forms)
        return [ids[:size]] + [
            form
            for form, text in zip(forms, texts, strict=True)
            if text.startswith(initials) and self._is_same(text, word)
        ]

    def _is_same(self, text: str, word: str) -> bool:
        return stem_of(text, self._target) == stem_of(word, self._target)

    def _text(self, ids: Sequence[int]) -> str:
        return "".join(self._tokenizer.convert_ids_to_tokens(ids)).replace(SPACE, "")

    @cached_property
    def _similar(self) -> dict[str, list[int]]:
        """All ids, grouped by the first letters of their tokens."""
        similar = defaultdict(list)
        for token, index in self._tokenizer.get_vocab().items():
            similar[_folded(token)].append(index)
        return similar


def _folded(token: str) -> str:
    """Return the first letters of a token, without accents."""
    letters = unicodedata.normalize("NFD", token.casefold())
    base = "".join(letter for letter in letters if not unicodedata.combining(letter))
    return base[: 3 + base.startswith(SPACE)]


def _has_capitals(text: str, term: str) -> bool:
    return text[0].isupper() >= term[0].isupper() and text.isupper() >= term.isupper()
