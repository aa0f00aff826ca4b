"""Data augmentation: make more training pairs from the given ones."""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle

from datasets import Dataset, concatenate_datasets

from .corpus import COLUMNS, FEATURES

TYPING_ERRORS = 0.04  # share of a text's letters that get one
FINAL = ".!?…"


def with_reversed_pairs(pairs: Dataset) -> Dataset:
    """The pairs, then the same pairs reversed (Ding et al. 2021, arXiv:2109.07780)."""
    names = dict(zip(COLUMNS, reversed(COLUMNS), strict=True))
    swapped = pairs.select_columns(COLUMNS).rename_columns(names).select_columns(COLUMNS)
    return concatenate_datasets([pairs.select_columns(COLUMNS), swapped])


def with_noisy_sources(pairs: Dataset, share: float, kinds: Sequence[str], seed: int) -> Dataset:
    """The pairs, then copies of a share of them with noise in the sources, such as typing errors.

    Each copy has one of the given kinds of `NOISES`; targets are not changed.
    """
    count = round(share * len(pairs))
    if not count:
        return pairs.select_columns(COLUMNS)
    options = {"pairs": pairs, "count": count, "kinds": (*kinds,), "seed": seed}
    noisy = Dataset.from_generator(_noisy_rows, FEATURES, gen_kwargs=options)
    return concatenate_datasets([pairs.select_columns(COLUMNS), noisy])


def _noisy_rows(
    pairs: Dataset, count: int, kinds: Sequence[str], seed: int
) -> Iterator[dict[str, str]]:
    generator = random.Random(seed)
    noises = cycle(NOISES[kind] for kind in kinds)
    chosen = generator.sample(range(len(pairs)), count)
    for noise, pair in zip(noises, pairs.select(chosen), strict=False):
        yield {**pair, "source": noise(pair["source"], generator)}


def with_typing_errors(text: str, generator: random.Random) -> str:
    """A text in which some letters are left out, doubled, swapped with the next, or replaced."""
    letters, written, skipped = list(text), [], False
    for position, letter in enumerate(letters):
        if skipped or not letter.isalpha() or generator.random() >= TYPING_ERRORS:
            written.append("" if skipped else letter)
            skipped = False
            continue
        following = letters[position + 1] if position + 1 < len(letters) else ""
        kind = generator.randrange(4)
        skipped = kind == 2 and following.isalpha()
        others = ["", letter * 2, following + letter if skipped else letter * 2]
        written.append([*others, generator.choice("abcdefghijklmnopqrstuvwxyz")][kind])
    return "".join(written) or text


Noise = Callable[[str, random.Random], str]
NOISES: dict[str, Noise] = {
    "capitals": lambda text, _: text.upper(),
    "title_case": lambda text, _: " ".join(word[:1].upper() + word[1:] for word in text.split(" ")),
    "no_final_punctuation": lambda text, _: text.rstrip(FINAL).rstrip() or text,
    "typing_errors": with_typing_errors,
}
