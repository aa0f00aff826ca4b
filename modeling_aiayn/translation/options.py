"""Options of a search for translations."""

import math
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any

from transformers import GenerationConfig
from transformers.hf_argparser import HfArg

LENGTH_NORMALIZATIONS = ("gnmt", "power")
MAX_LENGTH_OFFSET = 100_000
# The classes that options of these types accept: numbers of numpy too.
ACCEPTED: dict[type, type] = {int: Integral, float: Real}
# Time and memory grow with most of these. The upper bounds are far above what is of use.
RANGES: dict[str, tuple[float, float]] = {
    "num_beams": (1, 1000),
    "nbest": (1, 10_000),
    "length_penalty": (-100, 100),
    "coverage_penalty": (0, 100),
    "max_length_factor": (0, 1000),
    "max_length_offset": (0, MAX_LENGTH_OFFSET),
    "min_length": (0, MAX_LENGTH_OFFSET),
    "no_repeat_ngram_size": (0, MAX_LENGTH_OFFSET),
    "top_k": (0, 2**31),
}


def search_defaults(generation_config: GenerationConfig) -> dict[str, Any]:
    """The search that an imported model's own generate() makes; empty for a model of ours.

    Importers set `length_normalization` in the generation config that they keep.
    """
    normalization = getattr(generation_config, "length_normalization", None)
    if normalization is None:
        return {}
    # The values of generate() where the configuration has none.
    library = {"num_beams": 1, "length_penalty": 1.0, "no_repeat_ngram_size": 0}
    own = {name: getattr(generation_config, name, None) for name in library}
    given = {name: value for name, value in own.items() if value is not None}
    return {"length_normalization": normalization, **library, **given}


@dataclass(frozen=True)
class SearchOptions:
    """How to search for translations; the defaults are section 6.1's.

    Lengths are in target tokens and include `</s>`, except min_length, which does not.

    Raises:
        ValueError: A value has another type or is out of its range, or two options exclude each
            other.
    """

    num_beams: int = HfArg(default=4, help="Number of beams; 1 means greedy search.")
    nbest: int = HfArg(
        default=1, help="Translations of each sentence, best first; at most num_beams."
    )
    length_penalty: float = HfArg(
        default=0.6,
        help="Exponent alpha of the length penalty; larger values prefer longer translations.",
    )
    length_normalization: str = HfArg(
        default="gnmt",
        help="Length penalty that divides log-probabilities: gnmt is ((5 + n) / 6)^alpha, power is "
        "n^alpha, as in generate().",
        metadata={"choices": LENGTH_NORMALIZATIONS},
    )
    coverage_penalty: float = HfArg(
        default=0.0,
        help="Weight of Wu et al.'s penalty on source tokens that get little attention.",
    )
    max_length_factor: float = HfArg(
        default=1.0,
        help="A translation has at most max_length_factor * source + max_length_offset tokens.",
    )
    max_length_offset: int | None = HfArg(
        default=None,
        help="See max_length_factor. Default: the model's own, or 50 as in the paper.",
    )
    min_length: int = HfArg(
        default=0, help="Minimum number of tokens before `</s>`. A lower maximum overrides it."
    )
    no_repeat_ngram_size: int = HfArg(
        default=0, help="No n-gram of this size occurs twice in a translation; 0: no limit."
    )
    do_sample: bool = HfArg(default=False, help="Sample nbest translations instead of searching.")
    temperature: float = HfArg(
        default=1.0, help="Sampling: values below 1 give translations that differ less."
    )
    top_k: int = HfArg(default=0, help="Sampling: use the k likeliest tokens only; 0: all.")
    top_p: float = HfArg(
        default=1.0, help="Sampling: use only the likeliest tokens whose probabilities add up to p."
    )
    search_seed: int = HfArg(default=0, help="Sampling: random seed.")

    def __post_init__(self) -> None:
        self._check_types()
        for name, (minimum, maximum) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not minimum <= value <= maximum:
                bound = f"at least {minimum}" if value < minimum else f"at most {maximum}"
                raise ValueError(f"{name} must be {bound}, got {value}.")
        if self.length_normalization not in LENGTH_NORMALIZATIONS:
            raise ValueError(
                f"length_normalization must be one of {', '.join(LENGTH_NORMALIZATIONS)}, got "
                f"{self.length_normalization!r}."
            )
        self._check_sampling()

    def _check_types(self) -> None:
        for each in fields(SearchOptions):
            value, default = getattr(self, each.name), each.default
            kind = int if default is None else type(default)
            is_fit = isinstance(value, ACCEPTED.get(kind, kind)) and (
                kind is bool or not isinstance(value, bool)
            )
            if not is_fit and not (default is None and value is None):
                raise ValueError(f"{each.name} must be of type {kind.__name__}, got {value!r}.")

    def _check_sampling(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise ValueError(
                f"temperature must be a number greater than 0, got {self.temperature}. For the "
                "likeliest token at each step, search with num_beams=1."
            )
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}.")
        sampling = (self.temperature, self.top_k, self.top_p, self.search_seed)
        if not self.do_sample and sampling != (1.0, 0, 1.0, 0):
            raise ValueError(
                "temperature, top_k, top_p and search_seed are for sampling: set do_sample=True."
            )
        if not self.do_sample and self.nbest > self.num_beams:
            raise ValueError(
                f"nbest must be at most num_beams, got nbest={self.nbest} and "
                f"num_beams={self.num_beams}."
            )

    def check_one_translation(self) -> None:
        """Check that nbest is 1, for calls that return one translation of each text.

        Raises:
            ValueError: It is larger.
        """
        if self.nbest > 1:
            raise ValueError(
                "A call returns one translation of each text, so nbest must be 1, got "
                f"{self.nbest}. For several, call translator.stream(texts, "
                f"translator.search_options(nbest={self.nbest}))."
            )

    @property
    def width(self) -> int:
        """Hypotheses of a sentence at a time, k."""
        return self.nbest if self.do_sample else self.num_beams
