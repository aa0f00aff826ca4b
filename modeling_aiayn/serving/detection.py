"""Detect the language of a text with py3langid."""

import math
from collections.abc import Iterable

from ..saved.languages import iso_639

MAX_CHARACTERS = 2000  # of a text that are used


def detect(text: str, languages: Iterable[str]) -> tuple[str, float]:
    """Return the likeliest of languages for a text, and its probability among them in percent."""
    from py3langid import rank

    scores = dict(rank(text[:MAX_CHARACTERS]))
    found = {name: scores.get(iso_639(name), -math.inf) for name in languages}
    best = max(found, key=found.__getitem__)
    total = sum(math.exp(score - found[best]) for score in found.values() if score > -math.inf)
    return best, 100 / total if total else 0.0
