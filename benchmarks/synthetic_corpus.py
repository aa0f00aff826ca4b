"""A corpus of any size, from a seed: made-up words with frequencies and lengths like real ones."""

from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

WORDS = 200_000  # different words of each language
WORDS_PER_SENTENCE = 27
CHUNK = 50_000  # pairs that are made at a time
# Consonants and vowels of the syllables of each language.
SOUNDS = {
    "en": ("b c d f g h l m n p r s st t th w", "a e ea i o ou u y"),
    "de": ("b ch d f g h k l m n r s sch t w z", "a au ä e ei i o ö u ü"),
}


def write_corpus(prefix: Path, pairs: int, seed: int) -> None:
    """Write pairs of sentences into prefix.en and prefix.de.

    Word number k of a language occurs in proportion to 1 / (k + 3.7), as Zipf and Mandelbrot found.
    The number of words in a sentence follows a gamma distribution around 27, at most 100.
    """
    lexicons = {language: _lexicon(*sounds) for language, sounds in SOUNDS.items()}
    generator = np.random.default_rng(seed)
    for start in range(0, pairs, CHUNK):
        lengths = generator.gamma(3, WORDS_PER_SENTENCE / 3, min(CHUNK, pairs - start))
        for language, lexicon in lexicons.items():
            side = lengths * generator.normal(1, 0.1, len(lengths))
            with open(f"{prefix}.{language}", "a" if start else "w", encoding="utf-8") as file:
                _write(file, lexicon, side.clip(1, 100).astype(int), generator)


def _lexicon(consonants: str, vowels: str) -> NDArray[np.object_]:
    """Different words of one to four syllables, short ones first."""
    generator = np.random.default_rng(len(consonants))
    onsets, endings = ["", *consonants.split()], ["", "", "n", "r", "s"]
    syllables = [f"{a}{b}{c}" for a in onsets for b in vowels.split() for c in endings]
    words: dict[str, None] = {}
    for size, limit in ((1, 250), (2, 20_000), (3, 120_000), (4, WORDS)):
        drawn = generator.choice(np.array(syllables, object), (WORDS, size)).sum(axis=1)
        words = dict.fromkeys([*words, *drawn][: 2 * limit])
        words = dict.fromkeys([*words][:limit])
    return np.array([*words], dtype=object)


def _write(
    file: TextIO,
    lexicon: NDArray[np.object_],
    lengths: NDArray[np.int_],
    generator: np.random.Generator,
) -> None:
    # The inverse of the cumulative distribution.
    ranks = 3.7 * ((len(lexicon) / 3.7 + 1) ** generator.random(lengths.sum()) - 1)
    words = iter(lexicon[ranks.astype(int)].tolist())
    for length in lengths.tolist():
        text = " ".join(next(words) for _ in range(length))
        file.write(f"{text[:1].upper()}{text[1:]}.\n")
