"""Options of a search for translations."""

import math
from dataclasses import dataclass, field, fields
from typing import Any

from transformers import GenerationConfig

LENGTH_NORMALIZATIONS = ("gnmt", "power")
ENGINES = ("torch", "ctranslate2")


def search_defaults(generation_config: GenerationConfig) -> dict[str, Any]:
    """Return an imported model's settings for generate(); {} for other models."""
    # generate()'s defaults, for values that the configuration lacks.
    library = {"num_beams": 1, "length_penalty": 1.0, "no_repeat_ngram_size": 0}
    names = ("length_normalization", *library)
    found = {name: getattr(generation_config, name, None) for name in names}
    if found["length_normalization"] is None:
        return {}
    return library | {name: value for name, value in found.items() if value is not None}


def _option(default: Any, help: str, **facts: Any) -> Any:
    """Declare an option of `SearchOptions`, which becomes a flag of commands.

    facts are its minimum or choices, the engines that support it, and the default for the help.
    """
    facts = {"minimum": 0, "choices": (), "engines": ENGINES, "default_help": None, **facts}
    return field(default=default, metadata={"help": help, **facts})


@dataclass(frozen=True)
class SearchOptions:
    """How to search for translations; the defaults are section 6.1's.

    Lengths are in target tokens and include `</s>`, except min_length, which does not.

    Raises:
        ValueError: A value is out of its range, or two options exclude each other.
    """

    num_beams: int = _option(
        4,
        "Number of beams; 1 means greedy search.",
        minimum=1,
        default_help="4, or an imported model's own",
    )
    nbest: int = _option(
        1, "Translations of each sentence, best first; at most num_beams.", minimum=1
    )
    length_penalty: float = _option(
        0.6,
        "Exponent alpha of the length penalty; larger values prefer longer translations.",
        minimum=-math.inf,
        default_help="0.6, or an imported model's own",
    )
    length_normalization: str = _option(
        "gnmt",
        "Length penalty that divides log-probabilities: gnmt is ((5 + n) / 6)^alpha, power is "
        "n^alpha, as in generate().",
        choices=LENGTH_NORMALIZATIONS,
        default_help="gnmt; power for an imported model with settings for generate()",
    )
    coverage_penalty: float = _option(
        0.0,
        "Weight of Wu et al.'s penalty on source tokens that get little attention.",
        engines=("torch",),
    )
    max_length_factor: float = _option(
        1.0, "A translation has at most max_length_factor * source + max_length_offset tokens."
    )
    max_length_offset: int | None = _option(
        None, "See max_length_factor.", default_help="the model's own, or 50 as in the paper"
    )
    min_length: int = _option(
        0, "Minimum number of tokens before `</s>`. A lower maximum overrides it."
    )
    no_repeat_ngram_size: int = _option(
        0,
        "No n-gram of this size occurs twice in a translation; 0: no limit.",
        default_help="0, or an imported model's own",
    )
    do_sample: bool = _option(
        False, "Sample nbest translations instead of searching.", engines=("torch",)
    )
    temperature: float = _option(
        1.0,
        "Sampling: values below 1 give translations that differ less.",
        minimum=1e-6,
        engines=("torch",),
    )
    top_k: int = _option(
        0, "Sampling: use the k likeliest tokens only; 0: all.", engines=("torch",)
    )
    top_p: float = _option(
        1.0,
        "Sampling: use only the likeliest tokens whose probabilities add up to p.",
        minimum=1e-6,
        engines=("torch",),
    )
    search_seed: int = _option(0, "Sampling: random seed.", minimum=-math.inf, engines=("torch",))

    def __post_init__(self) -> None:
        for option in fields(self):
            value, minimum = getattr(self, option.name), option.metadata["minimum"]
            choices = option.metadata["choices"]
            if choices and value not in choices:
                raise ValueError(
                    f"{option.name} must be one of {', '.join(choices)}, got {value!r}."
                )
            if not choices and value is not None and not minimum <= value < math.inf:
                raise ValueError(f"{option.name} must be at least {minimum}, got {value}.")
        self._check_sampling()

    def _check_sampling(self) -> None:
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
        """Check that nbest is 1, for calls that return one translation of each text."""
        if self.nbest > 1:
            raise ValueError(
                "A call returns one translation of each text, so nbest must be 1, got "
                f"{self.nbest}. For several, call translator.stream(texts, "
                f"translator.search_options(nbest={self.nbest}))."
            )

    def check_supported(self, engine: str) -> None:
        """Check that an engine supports the options that differ from their defaults."""
        given = (option for option in fields(self) if getattr(self, option.name) != option.default)
        names = [option.name for option in given if engine not in option.metadata["engines"]]
        if names:
            raise ValueError(
                f"The engine {engine} does not support {', '.join(names)}. Use engine='torch'."
            )

    @property
    def width(self) -> int:
        """The number of hypotheses of a sentence at a time, k."""
        return self.nbest if self.do_sample else self.num_beams
