"""Import the weights of another system and check that the outputs are the same.

aiayn import-weights --system marian --hub true \
    --source Helsinki-NLP/opus-mt-en-de --output models/opus-en-de
aiayn import-weights --system fairseq --source model.pt --output models/wmt16 \
    --source_dictionary dict.en.txt --target_dictionary dict.de.txt --bpe_codes bpecodes
aiayn import-weights --system annotated --source weights.pt --output models/annotated \
    --config '{encoder_attention_heads: 8, decoder_attention_heads: 8}'

Then: aiayn translate --model models/opus-en-de
"""

import sys
from dataclasses import dataclass, field, fields
from pathlib import Path

import torch

from ..interop.annotated import read_annotated
from ..interop.fairseq import FairseqText, read_fairseq
from ..interop.foreign_model import ForeignModel
from ..interop.fsmt import read_fsmt
from ..interop.importing import import_model
from ..interop.library_models import fetch
from ..interop.marian import read_marian
from ..interop.opennmt import read_opennmt
from ..interop.parity import SOURCES
from ..interop.torch_transformer import TorchNames, read_torch_transformer
from ..training.setup import parse_mapping
from .command_line import parse_arguments

DICTIONARIES = ("source_dictionary", "target_dictionary")
FAIRSEQ_TEXT = tuple(field.name for field in fields(FairseqText))
# The flags that each system takes besides --source. All others are rejected.
SYSTEM_FLAGS: dict[str, tuple[str, ...]] = {
    "marian": ("hub",),
    "fsmt": ("hub",),
    "fairseq": FAIRSEQ_TEXT,
    "torch": ("config", "names"),
    "annotated": ("config", *DICTIONARIES),
    "opennmt": (),
}


@dataclass
class ImportFlags:
    """The foreign model, the folder to write, and the size of the comparison."""

    system: str = field(
        metadata={"help": "System that wrote the model.", "choices": sorted(SYSTEM_FLAGS)}
    )
    source: str = field(
        metadata={
            "help": "marian, fsmt: a folder, or with --hub a repository. Other systems: the file "
            "of the checkpoint or state dict."
        }
    )
    output: str = field(metadata={"help": "Folder to write."})
    hub: bool = field(default=False, metadata={"help": "--source is a repository on the Hub."})
    config: str | None = field(
        default=None,
        metadata={
            "help": "torch, annotated: fields of AiaynConfig that cannot be inferred from the "
            "weights, as YAML: '{encoder_attention_heads: 8, decoder_attention_heads: 8}'."
        },
    )
    names: str | None = field(
        default=None,
        metadata={
            "help": "torch: the module's names for transformer, source_embedding, "
            "target_embedding, output and, if positions are a tensor, positions, as YAML."
        },
    )
    source_dictionary: str | None = field(
        default=None,
        metadata={"help": "fairseq: the source's dict.txt. annotated: file with a word per line."},
    )
    target_dictionary: str | None = field(
        default=None,
        metadata={"help": "The same for the target. Default with fairseq: the source's."},
    )
    bpe_codes: str | None = field(
        default=None, metadata={"help": "fairseq: the codes of subword-nmt, to translate raw text."}
    )
    source_lang: str | None = field(
        default=None, metadata={"help": "fairseq with --bpe_codes: source language. Default: en."}
    )
    target_lang: str | None = field(
        default=None, metadata={"help": "fairseq with --bpe_codes: target language. Default: de."}
    )
    sources: int = field(
        default=SOURCES, metadata={"help": "Number of random sources to compare on."}
    )
    dtype: str | None = field(
        default=None,
        metadata={
            "help": "Type of the written weights. Default: unchanged.",
            "choices": ["float32", "bfloat16", "float16"],
        },
    )
    license: str = field(
        default="other", metadata={"help": "Licence of the weights, for the model card."}
    )

    def __post_init__(self) -> None:
        if self.system not in SYSTEM_FLAGS:
            raise ValueError(
                f"system must be one of {', '.join(SYSTEM_FLAGS)}, got {self.system!r}."
            )
        for name in set().union(*SYSTEM_FLAGS.values()) - set(SYSTEM_FLAGS[self.system]):
            if getattr(self, name):
                raise ValueError(f"--{name} is not for --system {self.system}. Leave it out.")
        if self.system == "fairseq":
            for name, needed in (
                ("target_dictionary", "source_dictionary"),
                ("bpe_codes", "source_dictionary"),
                ("source_lang", "bpe_codes"),
                ("target_lang", "bpe_codes"),
            ):
                if getattr(self, name) and not getattr(self, needed):
                    raise ValueError(f"--{name} needs --{needed}: give that too.")
        if self.system == "annotated" and (
            (self.source_dictionary is None) != (self.target_dictionary is None)
        ):
            raise ValueError("Give both --source_dictionary and --target_dictionary, or neither.")


def read_foreign_model(flags: ImportFlags) -> ForeignModel:
    """Read the model that the flags name.

    Raises:
        OSError: A file is missing or damaged.
        ValueError: The file is not one of the system, or this package cannot represent the model.
    """
    path = fetch(flags.source) if flags.hub else Path(flags.source)
    if flags.system == "fairseq":
        text = {name: getattr(flags, name) for name in FAIRSEQ_TEXT}
        given = {name: value for name, value in text.items() if value is not None}
        return read_fairseq(path, FairseqText(**given))
    if flags.system == "torch":
        names, config = parse_mapping("names", flags.names), parse_mapping("config", flags.config)
        return read_torch_transformer(path, torch_names(names), config)
    if flags.system == "annotated":
        config = parse_mapping("config", flags.config)
        dictionaries = None
        if flags.source_dictionary and flags.target_dictionary:
            dictionaries = (flags.source_dictionary, flags.target_dictionary)
        return read_annotated(path, config, dictionaries)
    readers = {"marian": read_marian, "fsmt": read_fsmt, "opennmt": read_opennmt}
    return readers[flags.system](path)


def torch_names(names: dict[str, str]) -> TorchNames:
    """The module names of --names.

    Raises:
        ValueError: A key is not one of the parts that can be named.
    """
    known = [each.name for each in fields(TorchNames)]
    for name in names:
        if name not in known:
            raise ValueError(f"names must be some of {', '.join(known)}, got {name!r}.")
    return TorchNames(**names)


def main() -> None:
    """Read, convert, compare, write, report."""
    (flags,) = parse_arguments(__doc__, ImportFlags)
    foreign = read_foreign_model(flags)
    report = import_model(
        foreign,
        flags.output,
        sources=flags.sources,
        dtype=None if flags.dtype is None else getattr(torch, flags.dtype),
        license=flags.license,
        show_progress=True,
    )
    sys.stdout.write(f"{report}\n")
    for name, why in foreign.taken.left_out.items():
        sys.stdout.write(f"left out                {name}: {why}\n")
    for name in foreign.taken.absent_biases:
        sys.stdout.write(f"0, as {foreign.system} has none: {name}\n")
    if foreign.source_tokenizer is None:
        sys.stdout.write(
            "tokenizer               none was given: save one into the folder to translate text\n"
        )
