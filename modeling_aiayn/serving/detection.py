"""The language of a text, by py3langid."""

import math
from collections.abc import Iterable

from ..saved.languages import iso_639


def detect(text: str, languages: Iterable[str]) -> tuple[str, float]:
    """The language that a text is most likely in, and how sure that is, in percent."""
    from py3langid import rank

    scores = dict(rank(text))
    found = {name: scores.get(iso_639(name), -math.inf) for name in languages}
    best = max(found, key=found.__getitem__)
    total = sum(math.exp(score - found[best]) for score in found.values() if score > -math.inf)
    return best, 100 / total if total else 0.0
