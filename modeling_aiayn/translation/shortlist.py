"""Lexical shortlists: for each source id, the target ids that are likely translations of it.

They are the tokens that attention linked most often to the source id in training pairs, as in
Marian. Only these get logits; computing all logits of a large vocabulary takes half of each step.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..saved.languages import Languages
from .hypotheses import SourceSentence

VOCABULARIES = "vocabularies_sha256"
LANGUAGES = "languages"


@dataclass(frozen=True)
class Shortlist:
    """Target ids for each source id."""

    starts: Tensor  # index in ids where each of V source ids starts, and where the last ends
    ids: Tensor  # target ids of source id 0, then of source id 1, ...
    always: Tensor  # target ids that every batch may use
    vocabularies: Sequence[str]  # `vocabulary_sha256` of the source's and the target's tokenizer
    languages: Languages | None = None  # of the model's source and target; None: unknown

    def for_batch(self, sentences: Sequence[SourceSentence], needed: Iterable[int]) -> Tensor:
        """Return the sorted target ids for a batch, [C], with prefixes, phrases and needed ids."""
        given = {*needed}
        sources: set[int] = set()
        for sentence in sentences:
            sources.update(sentence.input_ids)
            given.update(sentence.prefix, *chain(*sentence.phrases))
        parts = [
            self.ids[self.starts[source] : self.starts[source + 1]] for source in sorted(sources)
        ]
        parts += [self.always, torch.tensor(sorted(given), dtype=torch.long)]
        return torch.unique(torch.cat(parts))

    def save(self, path: Path) -> None:
        """Write the shortlist to a file."""
        tensors = {name: getattr(self, name).int() for name in ("starts", "ids", "always")}
        metadata = {
            VOCABULARIES: json.dumps(list(self.vocabularies)),
            LANGUAGES: json.dumps(self.languages),
        }
        save_file(tensors, path, metadata=metadata)

    @classmethod
    def read(cls, path: str | Path) -> "Shortlist":
        """Read a file that `save` wrote."""
        with safe_open(path, framework="pt") as file:
            starts, ids, always = map(file.get_tensor, ("starts", "ids", "always"))
            metadata = file.metadata()
        vocabularies, languages = (json.loads(metadata[x]) for x in (VOCABULARIES, LANGUAGES))
        languages = languages and tuple(languages)
        return cls(starts.long(), ids.long(), always.long(), vocabularies, languages)

    def check_model(
        self, vocabularies: Sequence[str], languages: Languages | None, path: str | Path
    ) -> None:
        """Check that the shortlist, read from path, fits a model's vocabularies and languages."""
        is_known = languages is not None and self.languages is not None
        if list(self.vocabularies) != vocabularies or (is_known and languages != self.languages):
            raise ValueError(
                f"{path} was made for other tokenizers, or for other languages than "
                f"{' to '.join(languages or ('unknown',))}. Make one for this model with "
                "aiayn make-shortlist."
            )

    @classmethod
    def from_counts(
        cls,
        counts: "LinkCounts",
        vocabularies: Sequence[str],
        *,
        per_id: int,
        frequent: int,
        is_shared: bool,
        languages: Languages | None = None,
    ) -> "Shortlist":
        """Keep the per_id target ids that were linked most with each source id.

        Every batch may use the `frequent` most frequent target ids. With a shared vocabulary, each
        source id is also its own target, so that names and bytes can be copied.
        """
        keys, weights = counts.total()
        sources, targets = keys // counts.targets, keys % counts.targets
        # Sort by source, and within a source by decreasing weight.
        order = weights.argsort(descending=True, stable=True)
        order = order[sources[order].argsort(stable=True)]
        sources, targets = sources[order], targets[order]
        first = torch.searchsorted(sources, sources)
        is_kept = torch.arange(len(sources)) - first < per_id
        sources, targets = sources[is_kept], targets[is_kept]
        if is_shared:
            itself = torch.arange(counts.sources)
            both = torch.cat((sources * counts.targets + targets, itself * (counts.targets + 1)))
            keys = torch.unique(both)
            sources, targets = keys // counts.targets, keys % counts.targets
        starts = torch.searchsorted(sources, torch.arange(counts.sources + 1))
        often = counts.of_targets.topk(min(frequent, counts.targets)).indices
        often = often[counts.of_targets[often] > 0]
        return cls(starts, targets, often, vocabularies, languages)


class LinkCounts:
    """How strongly target ids attended to source ids, summed over pairs."""

    # Beyond this number of stored links, equal links are merged.
    MAX_STORED_LINKS = 10_000_000
    # Weaker attention is noise.
    MIN_ATTENTION = 0.1

    def __init__(self, sources: int, targets: int) -> None:
        self.sources, self.targets = sources, targets
        self.of_targets = torch.zeros(targets)
        self._keys = [torch.empty(0, dtype=torch.long)]
        self._weights = [torch.empty(0)]

    def add(self, source_ids: Tensor, target_ids: Tensor, attention: Tensor) -> None:
        """Add a batch: ids, [N, S] and [N, T], and weights, [N, T, S], 0 at padding of either."""
        keys = source_ids[:, None] * self.targets + target_ids[..., None]
        is_link = attention >= self.MIN_ATTENTION
        self._keys.append(keys[is_link])
        self._weights.append(attention[is_link])
        seen = target_ids[attention.sum(-1) > 0]
        self.of_targets += torch.bincount(seen, minlength=self.targets)
        if sum(map(len, self._keys)) > self.MAX_STORED_LINKS:
            keys, weights = self.total()
            self._keys, self._weights = [keys], [weights]

    def total(self) -> tuple[Tensor, Tensor]:
        """Return each pair of linked ids as source id * targets + target id, and its weight."""
        keys, index = torch.unique(torch.cat(self._keys), return_inverse=True)
        weights = torch.zeros(len(keys)).index_add_(0, index, torch.cat(self._weights))
        return keys, weights
