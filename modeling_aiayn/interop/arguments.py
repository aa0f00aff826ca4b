"""What scripts/import_weights.py is told, and which reader it goes to."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..training.setup import parse_mapping
from .annotated import read_annotated
from .fairseq import FairseqText, read_fairseq
from .foreign_model import ForeignModel
from .fsmt import read_fsmt
from .library_models import fetch
from .marian import read_marian
from .opennmt import read_opennmt
from .torch_transformer import TorchNames, read_torch_transformer

TEXT_OPTIONS = {field.name for field in fields(FairseqText)}
# What each system takes beside its source; no other may be given.
OPTIONS: dict[str, set[str]] = {
    "marian": {"hub"},
    "fsmt": {"hub"},
    "fairseq": TEXT_OPTIONS,
    "torch": {"config", "names"},
    "annotated": {"config", "source_dictionary", "target_dictionary"},
    "opennmt": set(),
}


@dataclass
class SourceArguments:
    """Which foreign model to read."""

    system: str = field(
        metadata={"help": "What wrote it.", "choices": sorted(OPTIONS)},
    )
    source: str = field(
        metadata={
            "help": "marian, fsmt: a folder, or with --hub a repository; the others: the file of "
            "the checkpoint or state dict."
        }
    )
    hub: bool = field(default=False, metadata={"help": "Whether source is a repository."})
    config: str | None = field(
        default=None,
        metadata={
            "help": "torch, annotated: fields of AiaynConfig that no tensor tells, as YAML: "
            "'{encoder_attention_heads: 8, decoder_attention_heads: 8}'."
        },
    )
    names: str | None = field(
        default=None,
        metadata={
            "help": "torch: what the module calls transformer, source_embedding, target_embedding, "
            "output and, where they are a tensor, positions, as YAML."
        },
    )
    source_dictionary: str | None = field(
        default=None,
        metadata={"help": "fairseq: the source's dict.txt; annotated: a file with a word a line."},
    )
    target_dictionary: str | None = field(
        default=None, metadata={"help": "The same of the target; fairseq: default the source's."}
    )
    bpe_codes: str | None = field(
        default=None, metadata={"help": "fairseq: subword-nmt's codes, for text as people write."}
    )
    source_lang: str | None = field(
        default=None, metadata={"help": "fairseq with codes: language of the source; default en."}
    )
    target_lang: str | None = field(
        default=None, metadata={"help": "fairseq with codes: language of the target; default de."}
    )

    def __post_init__(self) -> None:
        if self.system not in OPTIONS:
            raise ValueError(f"system must be one of {', '.join(OPTIONS)}, got {self.system!r}.")
        for name in set().union(*OPTIONS.values()) - OPTIONS[self.system]:
            if getattr(self, name):
                raise ValueError(f"--{name} is not for --system {self.system}.")
        if self.system == "fairseq":
            for name, needs in (
                ("target_dictionary", "source_dictionary"),
                ("bpe_codes", "source_dictionary"),
                ("source_lang", "bpe_codes"),
                ("target_lang", "bpe_codes"),
            ):
                if getattr(self, name) and not getattr(self, needs):
                    raise ValueError(f"--{name} is of use with --{needs}: give that too.")
        if self.system == "annotated" and (
            (self.source_dictionary is None) != (self.target_dictionary is None)
        ):
            raise ValueError("Give both --source_dictionary and --target_dictionary, or neither.")

    def read(self) -> ForeignModel:
        """The foreign model.

        Raises:
            OSError: A file is missing or damaged.
            ValueError: It is not what its system writes, or one that this model cannot be.
        """
        path: Path = fetch(self.source) if self.hub else Path(self.source)
        if self.system == "marian":
            return read_marian(path)
        if self.system == "fsmt":
            return read_fsmt(path)
        if self.system == "opennmt":
            return read_opennmt(path)
        if self.system == "fairseq":
            return read_fairseq(path, FairseqText(**self._given(TEXT_OPTIONS)))
        config = parse_mapping("config", self.config)
        if self.system == "torch":
            return read_torch_transformer(path, self._torch_names(), config)
        dictionaries = (self.source_dictionary, self.target_dictionary)
        return read_annotated(path, config, None if None in dictionaries else dictionaries)  # type: ignore[arg-type]

    def _given(self, names: set[str]) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def _torch_names(self) -> TorchNames:
        given = parse_mapping("names", self.names)
        known = [each.name for each in fields(TorchNames)]
        for name in given:
            if name not in known:
                raise ValueError(f"names must be some of {', '.join(known)}, got {name!r}.")
        return TorchNames(**given)
