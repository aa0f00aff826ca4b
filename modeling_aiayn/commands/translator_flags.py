"""Flags of all jobs that use a translation model."""

from dataclasses import MISSING, dataclass, fields
from typing import Any

from transformers.hf_argparser import HfArg

from ..translation.options import LENGTH_NORMALIZATIONS, SearchOptions
from ..translation.translator import BATCH_SIZE, MAX_TOKENS_PER_BATCH, Translator
from .saved_model import default_device

DTYPES = ("auto", "float32", "bfloat16", "float16", "int8")


def given_flags(flags: Any, kind: type) -> dict[str, Any]:
    """The flags of a kind, a dataclass that flags is of, that differ from their defaults."""
    return {
        each.name: getattr(flags, each.name)
        for each in fields(kind)
        if each.default is not MISSING and getattr(flags, each.name) != each.default
    }


@dataclass
class ModelFlags:
    """Which model to load."""

    model: list[str] = HfArg(
        help="Folder of a trained model; with --hub, a repository. Several models with the same "
        "vocabulary form an ensemble."
    )
    hub: bool = HfArg(default=False, help="Load the model from the Hub.")
    engine: str = HfArg(
        default="torch",
        help="torch: this package's decoder. ctranslate2: for a folder that export-ctranslate2 "
        "wrote.",
        metadata={"choices": ["torch", "ctranslate2"]},
    )
    dtype: str = HfArg(
        default="auto",
        help="auto, float32, bfloat16, float16 or int8. On a CPU, float16 weights are stored in "
        "float16 and computed with in float32; int8 is the fastest there.",
    )
    device: str | None = HfArg(
        default=None,
        help="cpu, cuda, ... Default: a GPU if there is one; with ctranslate2, the CPU.",
    )

    def __post_init__(self) -> None:
        if self.engine == "torch" and self.dtype not in DTYPES:
            raise ValueError(f"dtype must be {', '.join(DTYPES)}, got {self.dtype!r}.")

    def load(self, **options: Any) -> Translator:
        """Load the translator; options are further ones of `Translator.from_pretrained`."""
        if self.engine == "ctranslate2":
            options |= {} if self.dtype == "auto" else {"dtype": self.dtype}
            return Translator.from_pretrained(
                self.model,
                engine="ctranslate2",
                hub=self.hub,
                device=self.device or "cpu",
                **options,
            )
        return Translator.from_pretrained(
            self.model,
            hub=self.hub,
            dtype=self.dtype,
            device=default_device(self.device),
            **options,
        )


@dataclass
class BatchFlags(ModelFlags):
    """Which model to load, and the size of batches."""

    batch_size: int = HfArg(default=BATCH_SIZE, help="Maximum number of sentences in a batch.")
    max_tokens_per_batch: int = HfArg(
        default=MAX_TOKENS_PER_BATCH,
        help="Maximum number of source tokens in a batch, padding included.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("batch_size", "max_tokens_per_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")

    @property
    def batch_options(self) -> dict[str, int]:
        """The size of batches, as arguments of a `Translator`."""
        return {
            "batch_size": self.batch_size,
            "max_tokens_per_batch": self.max_tokens_per_batch,
        }


@dataclass
class TranslatorFlags(BatchFlags):
    """Which model to load to translate with, and the size of batches."""

    shortlist: str | None = HfArg(
        default=None,
        help="File of make-shortlist: compute only the target tokens that the words of a batch can "
        "become. Default: the whole vocabulary.",
    )

    def load(self, **options: Any) -> Translator:
        """Load the translator with its shortlist."""
        return super().load(shortlist=self.shortlist, **options)


@dataclass(frozen=True)
class SearchFlags(SearchOptions):
    """How to search; flags that are not given follow an imported model, or are the defaults."""

    num_beams: int | None = HfArg(  # type: ignore[assignment]
        default=None,
        help="Number of beams; 1 means greedy search. Default: 4, or an imported model's own.",
    )
    length_penalty: float | None = HfArg(  # type: ignore[assignment]
        default=None,
        help="Exponent alpha of the length penalty; larger values prefer longer translations. "
        "Default: 0.6, or an imported model's own.",
    )
    length_normalization: str | None = HfArg(  # type: ignore[assignment]
        default=None,
        help="Length penalty that divides log-probabilities: gnmt is ((5 + n) / 6)^alpha, power is "
        "n^alpha, as in generate(). Default: gnmt; power for an imported model with settings for "
        "generate().",
        metadata={"choices": LENGTH_NORMALIZATIONS},
    )
    no_repeat_ngram_size: int | None = HfArg(  # type: ignore[assignment]
        default=None,
        help="No n-gram of this size occurs twice in a translation; 0: no limit. Default: 0, or an "
        "imported model's own.",
    )

    def __post_init__(self) -> None:
        # The number of beams may follow from the model, which is not loaded yet.
        beams = {} if self.num_beams is not None else {"num_beams": max(4, self.nbest)}
        SearchOptions(**beams | {n: v for n, v in vars(self).items() if v is not None})

    @property
    def given(self) -> dict[str, Any]:
        """The flags that differ from their defaults."""
        return given_flags(self, SearchFlags)

    def check_one_best(self) -> None:
        """Check that no more than one translation of a sentence is asked for."""
        if self.nbest > 1:
            raise ValueError(f"nbest must be 1 here: only the best is used, got {self.nbest}.")

    def options_for(self, translator: Translator) -> SearchOptions:
        """The options of a search with a translator."""
        return translator.search_options(**self.given)
