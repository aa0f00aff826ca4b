"""The interface between Translator, which knows text, and engines, which know ids."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..modeling_aiayn import AiaynForConditionalGeneration
from .hypotheses import Hypothesis
from .options import SearchOptions


@dataclass(frozen=True)
class SourceSentence:
    """A sentence to translate, in ids.

    Args:
        input_ids: The source, `</s>` last.
        prefix: The first ids of the translation.
        phrases: Ids of each phrase that the translation must contain.
        number: Index of the sentence among all sentences. Sampling draws by it, so that equal
            sentences get different samples.
    """

    input_ids: Sequence[int]
    prefix: Sequence[int] = ()
    phrases: Sequence[Sequence[int]] = ()
    number: int = 0


class Engine(Protocol):
    """Translates and scores batches of ids, and owns the model or models that do it."""

    @property
    def models(self) -> Sequence[AiaynForConditionalGeneration]:
        """The models; empty if the engine has a format of its own."""

    @property
    def source_positions(self) -> int | None:
        """The most tokens that a source may have. None: any number."""

    @property
    def target_positions(self) -> int | None:
        """The most tokens that a translation may have. None: any number."""

    @property
    def search_defaults(self) -> Mapping[str, Any]:
        """Search options that the model has of its own; see `options.search_defaults`."""

    def check_options(self, options: SearchOptions, has_phrases: bool) -> None:
        """Check that the engine supports the options, and required phrases if there are any."""

    def search(
        self, sentences: Sequence[SourceSentence], options: SearchOptions
    ) -> list[list[Hypothesis]]:
        """The nbest translations of each sentence of a batch, best first."""

    def score(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[float]:
        """The log-probability of each target of a batch, `</s>` last, in nats."""
