"""Several corpora in one run, of one direction or many (Johnson et al. 2017, arXiv:1611.04558)."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, concatenate_datasets
from numpy.typing import NDArray

from ..data.parsing import parse_yaml
from ..saved.languages import SETTINGS, Languages
from ..tokenization import BACK_TRANSLATED
from .data import DataArguments, data_sha256

logger = logging.getLogger(__name__)

# Fields that a mapping in the file cannot set: they belong to the whole run.
OF_THE_RUN = {"corpora", "corpora_temperature", "streaming", "max_length", "data"}
OF_THE_RUN |= {"preprocessing_num_workers", "overwrite_cache"}


@dataclass(frozen=True)
class Corpus:
    """Pairs of one direction."""

    data: DataArguments
    weight: float = 1.0  # factor of its share of an epoch
    back_translated: bool = False  # whether a model wrote the sources

    @property
    def languages(self) -> Languages:
        """Source and target."""
        return self.data.languages()

    @property
    def name(self) -> str:
        """Its direction, such as en-de."""
        return "-".join(self.languages)


def read_corpora(data: DataArguments) -> list[Corpus]:
    """Read a run's corpora from the file `data.corpora`; without it, data is the only corpus.

    The file is a YAML list of mappings. A mapping has flags of `DataArguments`, which override
    those of data, and may have "weight" and "back_translated". With both_directions, it gives two
    corpora.

    Raises:
        OSError: There is no such file.
        ValueError: The file has the wrong format, or a flag cannot be used with corpora.
    """
    if data.corpora is None:
        return [Corpus(data)]
    if data.streaming or data.dataset_name or data.train_file:
        raise ValueError("corpora cannot be used with train_file, dataset_name or streaming.")
    entries = parse_yaml(Path(data.corpora).read_text("utf-8"), data.corpora)
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{data.corpora} must be a list of corpora, got {entries!r:.200}.")
    return [corpus for entry in entries for corpus in _directions(entry, data)]


def tokens_of(corpora: Sequence[Corpus]) -> list[str]:
    """The tokens before sources: language tags, if there are several directions, and <bt>."""
    languages = {language for corpus in corpora for language in corpus.languages}
    tags = [f"<2{language}>" for language in sorted(languages) if has_several(corpora)]
    return tags + [BACK_TRANSLATED] * any(corpus.back_translated for corpus in corpora)


def has_several(corpora: Sequence[Corpus]) -> bool:
    """Whether corpora have several directions."""
    return len({corpus.languages for corpus in corpora}) > 1


def _directions(entry: Any, data: DataArguments) -> list[Corpus]:
    flags = (*fields(DataArguments), *fields(Corpus))
    known = {field.name: field for field in flags if field.name not in OF_THE_RUN}
    is_whole = isinstance(entry, Mapping) and {*SETTINGS} <= {*entry} <= {*known}
    if not is_whole or any(known[x].type is bool and not isinstance(entry[x], bool) for x in entry):
        raise ValueError(
            f"{data.corpora}: a corpus must be a mapping with source_lang, target_lang, and others "
            f"of {', '.join(sorted({*known} - {*SETTINGS}))}; got {entry!r:.300}. Write true and "
            "false for yes and no."
        )
    facts = {name: entry[name] for name in ("weight", "back_translated") if name in entry}
    changes: dict[str, Any] = {
        name: [value] if name.endswith("_file") and isinstance(value, str) else value
        for name, value in entry.items()
        if name not in facts
    }
    given = replace(data, **changes)
    if given.both_directions and facts.get("back_translated"):
        raise ValueError(f"{data.corpora}: back_translated excludes both_directions, in {entry}.")
    # Both directions read the same columns.
    columns = given.columns or ",".join(given.languages())
    forward = replace(given, columns=columns, both_directions=False)
    reverse = replace(forward, source_lang=given.target_lang, target_lang=given.source_lang)
    directions = [forward, reverse] if given.both_directions else [forward]
    return [Corpus(one, **facts) for one in directions]


class Mixture:
    """The pairs of all corpora. Each epoch draws about as many pairs as there are in total.

    The share of a corpus in an epoch is proportional to weight * size ** (1 / temperature). At
    temperature 1, all pairs are drawn equally often. A higher temperature makes the shares more
    equal (Arivazhagan et al. 2019, arXiv:1907.05019, section 4.2).
    """

    def __init__(
        self, corpora: Sequence[Corpus], pairs: Sequence[Dataset], temperature: float
    ) -> None:
        self.corpora = corpora
        self.rows = concatenate_datasets([*pairs])
        self.sizes = [*map(len, pairs)]
        weights = np.array([corpus.weight for corpus in corpora])
        shares = weights * np.array(self.sizes, float) ** (1 / temperature)
        self.draws: list[int] = (
            (shares / shares.sum() * len(self.rows)).round().astype(int).tolist()
        )

    def __len__(self) -> int:
        return sum(self.draws)

    def draw(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """Draw the row indices of an epoch; a corpus with too few pairs is repeated."""
        drawn = []
        for end, size, count in zip(np.cumsum(self.sizes), self.sizes, self.draws, strict=True):
            whole, rest = divmod(count, size)
            rows = np.concatenate([*[np.arange(size)] * whole, generator.permutation(size)[:rest]])
            drawn.append(end - size + rows)
        return np.concatenate(drawn)

    def log_shares(self) -> None:
        """Log the size of each corpus, and how many of its pairs an epoch draws."""
        for corpus, size, count in zip(self.corpora, self.sizes, self.draws, strict=True):
            kind = " (back-translated)" if corpus.back_translated else ""
            message = "%s%s: %s pairs, of which an epoch draws %s, %.1f %% of all."
            part = 100 * count / len(self)
            logger.info(message, corpus.name, kind, f"{size:,}", f"{count:,}", part)

    def data_sha256(self) -> str:
        """A hash of the rows, and of how many are drawn of each corpus."""
        content = f"{data_sha256(self.rows)} {self.sizes} {self.draws}"
        return hashlib.sha256(content.encode()).hexdigest()


def with_languages(pairs: Dataset, corpus: Corpus) -> Dataset:
    """Add columns with the languages of held-out pairs."""
    for name, language in zip(SETTINGS, corpus.languages, strict=True):
        pairs = pairs.add_column(name, [language] * len(pairs))
    return pairs
