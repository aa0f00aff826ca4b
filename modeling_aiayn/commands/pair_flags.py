"""Flags of the jobs that read sentence pairs from files."""

from dataclasses import dataclass
from pathlib import Path

from datasets import Dataset
from transformers.hf_argparser import HfArg

from ..data.corpus import files_of, is_tsv, parse_columns, read_pairs, read_rows
from ..saved.languages import choose_languages
from .translator_flags import ModelFlags

PAIRS_HELP = (
    "Sentence pairs: a .tsv or .jsonl file, or the common prefix of two line-aligned files "
    "(data/test for data/test.en and data/test.de). Each may end in .gz."
)


@dataclass(kw_only=True)
class PairFlags(ModelFlags):
    """Which model to load, and the languages of the pairs."""

    source_lang: str = HfArg(default=None, help="Source language. Default: the model's, or en.")
    target_lang: str = HfArg(default=None, help="Target language. Default: the model's, or de.")
    columns: str | None = HfArg(
        default=None,
        help="Languages of the two columns of a .tsv file, as in en,de. Default: the source "
        "language, then the target language.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        model = next(iter(self.model), None)
        self.source_lang, self.target_lang = choose_languages(
            self.source_lang, self.target_lang, model, self.hub
        )

    def files_of_pairs(self, *paths: str) -> list[Path]:
        """The files of paths with pairs.

        Raises:
            ValueError: --columns are given and no path is a .tsv file, or they are invalid.
        """
        parse_columns(self.columns)
        if self.columns is not None and not any(is_tsv(path) for path in paths):
            given = ", ".join(paths) or "no file"
            raise ValueError(f"--columns needs a .tsv file, got {given}. Leave it out.")
        languages = (self.source_lang, self.target_lang)
        return [file for path in paths for file in files_of(path, *languages)]

    def read_pairs(self, path: str) -> Dataset:
        """Read the pairs of a path, as `corpus.read_pairs` does."""
        return read_pairs(path, self.source_lang, self.target_lang, parse_columns(self.columns))

    def read_rows(self, path: str) -> Dataset:
        """Read the pairs of a path, as `corpus.read_rows` does."""
        return read_rows(path, self.source_lang, self.target_lang, parse_columns(self.columns))
