"""Training pairs that look wrong: the log gives their numbers, and --clean removes them."""

import logging
import unicodedata
from collections import Counter
from functools import cache

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray

from .corpus import BATCH_SIZE

logger = logging.getLogger(__name__)

# The limit of Moses' clean-corpus-n.perl, here in characters: not every script separates words.
MAX_LENGTH_RATIO = 9
# The first words of names in Unicode that belong to one writing system.
_SAME_SCRIPT = {"HIRAGANA": "CJK", "KATAKANA": "CJK"}


@cache
def script_of_letter(letter: str) -> str:
    """The script of a letter, by the first word of its name in Unicode: LATIN, CYRILLIC, CJK."""
    first = unicodedata.name(letter, "UNKNOWN").partition(" ")[0]
    return _SAME_SCRIPT.get(first, first)


def script_of(text: str) -> str | None:
    """The script of most of a text's different letters; None without letters."""
    letters = filter(str.isalpha, dict.fromkeys(text))
    counts = Counter(map(script_of_letter, letters))
    return max(counts, key=counts.__getitem__) if counts else None


def find_suspicious(pairs: Dataset) -> dict[str, NDArray[np.bool_]]:
    """Find pairs that look wrong: for each reason, a flag for each pair.

    The usual script of a side is the script of most of its sentences.
    """
    identical, unequal, repeated = [], [], []
    scripts: dict[str, list[str | None]] = {"source": [], "target": []}
    # Hashes need less memory than the pairs of a large corpus themselves.
    seen: set[int] = set()
    for batch in pairs.iter(BATCH_SIZE):
        for source, target in zip(batch["source"], batch["target"], strict=True):
            identical.append(source == target)
            shorter, longer = sorted((len(source), len(target)))
            unequal.append(longer > MAX_LENGTH_RATIO * shorter)
            repeated.append(hash((source, target)) in seen)
            seen.add(hash((source, target)))
        for side, side_scripts in scripts.items():
            side_scripts += map(script_of, batch[side])
    reasons = {
        "with identical sides": identical,
        f"with one side over {MAX_LENGTH_RATIO} times as long as the other": unequal,
        "that repeat an earlier pair": repeated,
    }
    for side, side_scripts in scripts.items():
        counts = Counter(script for script in side_scripts if script is not None)
        usual = max(counts, key=counts.__getitem__, default=None)
        reasons[f"with a {side} that is not in {usual} script"] = [
            script not in (None, usual) for script in side_scripts
        ]
    return {reason: np.array(flags, dtype=bool) for reason, flags in reasons.items()}


def report_suspicious(pairs: Dataset, is_cleaning: bool) -> Dataset:
    """Log how many training pairs look wrong, and why; return the pairs, cleaned if asked for."""
    suspicious = find_suspicious(pairs)
    is_suspicious = np.logical_or.reduce([*suspicious.values()])
    total = int(is_suspicious.sum())
    if not total:
        return pairs
    counts = ", ".join(
        f"{flags.sum()} {reason}" for reason, flags in suspicious.items() if flags.any()
    )
    done = "They were removed." if is_cleaning else "To remove them, pass --clean true."
    logger.warning(
        "Training data: %d of %d pairs look wrong: %s. %s", total, len(pairs), counts, done
    )
    if not is_cleaning:
        return pairs
    if total == len(pairs):
        raise ValueError(f"All {total} training pairs look wrong: {counts}. Check the files.")
    return pairs.select(np.flatnonzero(~is_suspicious))
