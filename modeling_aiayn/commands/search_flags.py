"""Flags of a search: a number of beams, penalties, ..."""

from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from transformers.hf_argparser import HfArg

from ..translation.options import LENGTH_NORMALIZATIONS, SearchOptions
from ..translation.translator import Translator


def changed_flags(flags: Any, dataclass_type: type) -> dict[str, Any]:
    """The flags that differ from their defaults; only the fields of dataclass_type are compared."""
    return {
        each.name: getattr(flags, each.name)
        for each in fields(dataclass_type)
        if each.default is not MISSING and getattr(flags, each.name) != each.default
    }


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
        if self.do_sample and self.num_beams is not None:
            raise ValueError("num_beams cannot be used with do_sample. Leave one of them out.")
        # The number of beams may follow from the model, which is not loaded yet.
        beams = {} if self.num_beams is not None else {"num_beams": max(4, self.nbest or 1)}
        SearchOptions(**beams | {n: v for n, v in vars(self).items() if v is not None})

    @property
    def given(self) -> dict[str, Any]:
        """The flags that differ from their defaults."""
        return changed_flags(self, type(self))

    def options_for(self, translator: Translator) -> SearchOptions:
        """The options of a search with a translator."""
        return translator.search_options(**self.given)


@dataclass(frozen=True)
class OneBestFlags(SearchFlags):
    """As `SearchFlags`, for jobs that use only the best translation of each sentence."""

    nbest: int = field(default=1, init=False)  # so that it is no flag
