"""Find training pairs that look wrong: the log counts them, and --clean removes them."""

import logging
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow.compute
from datasets import Dataset, Features, Value
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from .cache import map_rows
from .corpus import COLUMNS, FEATURES

logger = logging.getLogger(__name__)

# The limit of Moses' clean-corpus-n.perl; here in characters, as some scripts have no spaces.
MAX_LENGTH_RATIO = 9
# py3langid assigns the wrong language to 6 % of shorter sentences of Tatoeba, to 0.2 % of others.
MIN_BYTES = 20
CHECKING = "Step 2 of 4: checking the pairs"
FACTS = Features(
    {
        "is_identical": Value("bool"),
        "is_unequal": Value("bool"),
        "hash": Value("uint64"),
        "is_foreign": Value("bool"),
        **FEATURES,
    }
)
# First words of Unicode names that belong to the same writing system.
_SAME_SCRIPT = {"HIRAGANA": "CJK", "KATAKANA": "CJK"}


@cache
def script_of_letter(letter: str) -> str:
    """The script of a letter, by the first word of its name in Unicode: LATIN, CYRILLIC, CJK."""
    first = unicodedata.name(letter, "UNKNOWN").partition(" ")[0]
    return _SAME_SCRIPT.get(first, first)


def script_of(text: str) -> str | None:
    """The script of most of a text's different letters; None without letters."""
    letters = filter(str.isalpha, dict.fromkeys(text))
    if text.isascii():
        return "LATIN" if any(letters) else None
    counts = Counter(map(script_of_letter, letters))
    return max(counts, key=counts.__getitem__) if counts else None


def find_suspicious(
    pairs: Dataset, num_proc: int | None = None, languages: Sequence[str] = ()
) -> dict[str, NDArray[np.bool_]]:
    """Find pairs that look wrong: for each reason, a flag for each pair.

    The usual script of a side is the script of most of its sentences. If languages has the ISO 639
    codes of source and target, pairs in other languages are found, too.
    """
    sides = [x for x in zip(COLUMNS, languages, strict=False) if _is_detectable(x[1])]
    find_facts = partial(_facts, sides=sides)
    facts = map_rows(pairs, find_facts, FACTS, CHECKING, num_proc).with_format("arrow")[:]
    # The first of several equal pairs does not count as repeated.
    hashes = facts["hash"].to_numpy()
    is_repeated = np.ones(len(hashes), bool)
    is_repeated[np.unique(hashes, return_index=True)[1]] = False
    reasons = {
        "with identical sides": facts["is_identical"].to_numpy(),
        f"with one side over {MAX_LENGTH_RATIO} times as long as the other": facts[
            "is_unequal"
        ].to_numpy(),
        "that repeat an earlier pair": is_repeated,
        "in another language": facts["is_foreign"].to_numpy(),
    }
    for side in COLUMNS:
        counts = pyarrow.compute.value_counts(facts[side].drop_null()).to_pylist()
        usual = max(counts, key=lambda count: count["counts"], default={"values": None})["values"]
        is_other = pyarrow.compute.not_equal(facts[side], usual).fill_null(False)
        reasons[f"with a {side} that is not in {usual} script"] = is_other.to_numpy()
    return reasons


def _is_detectable(language: str) -> bool:
    from py3langid import rank

    if language in dict(rank("")):
        return True
    logger.warning("check_languages: py3langid does not know %s, which is not checked.", language)
    return False


def _is_foreign(text: str, language: str) -> bool:
    """Whether py3langid says that a text is in another language."""
    from py3langid import classify

    is_long = len(text.encode()) >= MIN_BYTES and script_of(text) is not None
    return is_long and classify(text)[0] != language


def _facts(batch: dict[str, list[str]], sides: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Compute the columns of FACTS for a batch of pairs. Each text is replaced by its script.

    sides has each column whose language is checked, with its expected language.
    """
    rows = [*zip(batch["source"], batch["target"], strict=True)]
    lengths = [sorted((len(source), len(target))) for source, target in rows]
    return {
        "is_identical": [source == target for source, target in rows],
        "is_unequal": [longer > MAX_LENGTH_RATIO * shorter for shorter, longer in lengths],
        "hash": np.array([xxh3_64_intdigest("\0".join(row).encode()) for row in rows], np.uint64),
        "is_foreign": [
            any(_is_foreign(batch[side][row], language) for side, language in sides)
            for row in range(len(rows))
        ],
        **{side: [*map(script_of, batch[side])] for side in COLUMNS},
    }


def report_suspicious(
    pairs: Dataset, is_cleaning: bool, num_proc: int | None = None, languages: Sequence[str] = ()
) -> Dataset:
    """Log how many training pairs look wrong, and why; if is_cleaning, remove them.

    languages are as in `find_suspicious`.
    """
    suspicious = find_suspicious(pairs, num_proc, languages)
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
