"""What a search for translations is told."""

from dataclasses import dataclass, field

LENGTH_NORMALIZATIONS = ("gnmt", "power")


@dataclass(frozen=True)
class SearchOptions:
    """How translations are searched for; the defaults are section 6.1's.

    Lengths are in target tokens, `</s>` counted but for min_length.

    Raises:
        ValueError: A value is out of its range, or two exclude each other.
    """

    num_beams: int = field(default=4, metadata={"help": "Beams; 1 is greedy search."})
    nbest: int = field(
        default=1,
        metadata={"help": "Translations of each sentence, best first; at most num_beams."},
    )
    length_penalty: float = field(
        default=0.6, metadata={"help": "Exponent alpha: the larger, the longer the translations."}
    )
    length_normalization: str = field(
        default="gnmt",
        metadata={
            "help": "What log-probabilities are divided by: gnmt, ((5 + n) / 6)^alpha, or power, "
            "n^alpha, as generate() does.",
            "choices": LENGTH_NORMALIZATIONS,
        },
    )
    coverage_penalty: float = field(
        default=0.0,
        metadata={"help": "Weight of Wu et al.'s penalty on source tokens that got no attention."},
    )
    max_length_factor: float = field(
        default=1.0, metadata={"help": "A translation has at most factor * source + offset tokens."}
    )
    max_length_offset: int | None = field(
        default=None, metadata={"help": "The offset; default: the model's own, the paper's 50."}
    )
    min_length: int = field(default=0, metadata={"help": "Tokens that must come before the end."})
    no_repeat_ngram_size: int = field(
        default=0, metadata={"help": "No n tokens in a row twice in a translation; 0: anything."}
    )
    do_sample: bool = field(
        default=False, metadata={"help": "Draw nbest translations by chance instead of searching."}
    )
    temperature: float = field(
        default=1.0, metadata={"help": "Sampling: divides the scores; below 1 is less daring."}
    )
    top_k: int = field(default=0, metadata={"help": "Sampling: from the k likeliest; 0: all."})
    top_p: float = field(
        default=1.0, metadata={"help": "Sampling: from the likeliest that sum up to p."}
    )
    search_seed: int = field(default=0, metadata={"help": "Sampling: where chance starts from."})

    def __post_init__(self) -> None:
        for name, at_least in (
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
            if value is not None and value < at_least:
                raise ValueError(f"{name} must be at least {at_least}, got {value}.")
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
        """Hypotheses of a sentence that are alive at a time, k."""
        return self.nbest if self.do_sample else self.num_beams
