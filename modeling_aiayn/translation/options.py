"""Options of a search for translations."""

from dataclasses import dataclass, field
from typing import Any

LENGTH_NORMALIZATIONS = ("gnmt", "power")


def _option(default: Any, text: str, **metadata: Any) -> Any:
    return field(default=default, metadata={"help": text, **metadata})


@dataclass(frozen=True)
class SearchOptions:
    """How to search for translations; the defaults are section 6.1's.

    Lengths are in target tokens and include `</s>`, except min_length, which does not.

    Raises:
        ValueError: A value is out of its range, or two options exclude each other.
    """

    num_beams: int = _option(4, "Number of beams; 1 means greedy search.")
    nbest: int = _option(1, "Translations of each sentence, best first; at most num_beams.")
    length_penalty: float = _option(
        0.6, "Exponent alpha of the length penalty; larger values prefer longer translations."
    )
    length_normalization: str = _option(
        "gnmt",
        "Length penalty that divides log-probabilities: gnmt is ((5 + n) / 6)^alpha, power is "
        "n^alpha, as in generate().",
        choices=LENGTH_NORMALIZATIONS,
    )
    coverage_penalty: float = _option(
        0.0, "Weight of Wu et al.'s penalty on source tokens that get little attention."
    )
    max_length_factor: float = _option(
        1.0, "A translation has at most max_length_factor * source + max_length_offset tokens."
    )
    max_length_offset: int | None = _option(
        None, "See max_length_factor; default: the model's own, 50 as in the paper."
    )
    min_length: int = _option(0, "Minimum number of tokens before `</s>`.")
    no_repeat_ngram_size: int = _option(
        0, "No n-gram of this size occurs twice in a translation; 0: no limit."
    )
    do_sample: bool = _option(False, "Sample nbest translations instead of searching.")
    temperature: float = _option(
        1.0, "Sampling: divide the scores by this; values below 1 vary less."
    )
    top_k: int = _option(0, "Sampling: use the k likeliest tokens only; 0: all.")
    top_p: float = _option(
        1.0, "Sampling: use only the likeliest tokens whose probabilities add up to p."
    )
    search_seed: int = _option(0, "Sampling: random seed.")

    def __post_init__(self) -> None:
        for name, minimum in (
            ("num_beams", 1),
            ("nbest", 1),
            ("coverage_penalty", 0),
            ("max_length_factor", 0),
            ("max_length_offset", 0),
            ("min_length", 0),
            ("no_repeat_ngram_size", 0),
            ("top_k", 0),
        ):
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise ValueError(f"{name} must be at least {minimum}, got {value}.")
        if self.length_normalization not in LENGTH_NORMALIZATIONS:
            raise ValueError(
                f"length_normalization must be one of {', '.join(LENGTH_NORMALIZATIONS)}, got "
                f"{self.length_normalization!r}."
            )
        self._check_sampling()

    def _check_sampling(self) -> None:
        if not self.temperature > 0:
            raise ValueError(
                f"temperature must be greater than 0, got {self.temperature}. For the likeliest "
                "token at each step, search with num_beams=1."
            )
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}.")
        if not self.do_sample and (self.temperature, self.top_k, self.top_p) != (1.0, 0, 1.0):
            raise ValueError("temperature, top_k and top_p are for sampling: set do_sample=True.")
        if not self.do_sample and self.nbest > self.num_beams:
            raise ValueError(
                f"nbest must be at most num_beams, got nbest={self.nbest} and "
                f"num_beams={self.num_beams}."
            )

    @property
    def width(self) -> int:
        """Hypotheses of a sentence at a time, k."""
        return self.nbest if self.do_sample else self.num_beams
