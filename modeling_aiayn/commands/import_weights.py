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
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from transformers.hf_argparser import HfArg

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

# The flags that each system takes besides --source, and the flag that each of them needs.
SYSTEM_FLAGS: dict[str, dict[str, str | None]] = {
    "marian": {"hub": None},
    "fsmt": {"hub": None},
    "fairseq": {
        "source_dictionary": None,
        "target_dictionary": "source_dictionary",
        "bpe_codes": "source_dictionary",
        "source_lang": "bpe_codes",
        "target_lang": "bpe_codes",
    },
    "torch": {"config": None, "names": None},
    "annotated": {
        "config": None,
        "source_dictionary": "target_dictionary",
        "target_dictionary": "source_dictionary",
    },
    "opennmt": {},
}


@dataclass
class ImportFlags:
    """The foreign model, the folder to write, and the size of the comparison."""

    system: str = HfArg(
        help="System that wrote the model.", metadata={"choices": sorted(SYSTEM_FLAGS)}
    )
    source: str = HfArg(
        help="marian, fsmt: a folder, or with --hub a repository. Other systems: the file of the "
        "checkpoint or state dict."
    )
    output: str = HfArg(help="Folder to write.")
    hub: bool = HfArg(default=False, help="--source is a repository on the Hub.")
    config: str | None = HfArg(
        default=None,
        help="torch, annotated: fields of AiaynConfig that cannot be inferred from the weights, "
        "as YAML: '{encoder_attention_heads: 8, decoder_attention_heads: 8}'.",
    )
    names: str | None = HfArg(
        default=None,
        help="torch: the module's names for transformer, source_embedding, target_embedding, "
        "output and, if positions are a tensor, positions, as YAML.",
    )
    source_dictionary: str | None = HfArg(
        default=None, help="fairseq: the source's dict.txt. annotated: file with a word per line."
    )
    target_dictionary: str | None = HfArg(
        default=None, help="The same for the target. Default with fairseq: the source's."
    )
    bpe_codes: str | None = HfArg(
        default=None, help="fairseq: the codes of subword-nmt, to translate raw text."
    )
    source_lang: str | None = HfArg(
        default=None, help="fairseq with --bpe_codes: source language. Default: en."
    )
    target_lang: str | None = HfArg(
        default=None, help="fairseq with --bpe_codes: target language. Default: de."
    )
    sources: int = HfArg(default=SOURCES, help="Number of random sources to compare on.")
    dtype: str | None = HfArg(
        default=None,
        help="Type of the written weights. Default: unchanged.",
        metadata={"choices": ["float32", "bfloat16", "float16"]},
    )
    license: str = HfArg(default="other", help="Licence of the weights, for the model card.")

    def __post_init__(self) -> None:
        if self.system not in SYSTEM_FLAGS:
            raise ValueError(
                f"system must be one of {', '.join(SYSTEM_FLAGS)}, got {self.system!r}."
            )
        for name in {name for flags in SYSTEM_FLAGS.values() for name in flags}:
            if getattr(self, name):
                self._check_use(name)

    def _check_use(self, name: str) -> None:
        if name not in SYSTEM_FLAGS[self.system]:
            raise ValueError(f"--{name} is not for --system {self.system}. Leave it out.")
        needed = SYSTEM_FLAGS[self.system][name]
        if needed is not None and not getattr(self, needed):
            raise ValueError(f"--{name} needs --{needed}: give that too.")


def read_foreign_model(flags: ImportFlags) -> ForeignModel:
    """Read the model that the flags name."""
    path = fetch(flags.source) if flags.hub else Path(flags.source)
    config, names = parse_mapping("config", flags.config), parse_mapping("names", flags.names)
    dictionaries = None
    if flags.source_dictionary and flags.target_dictionary:
        dictionaries = (flags.source_dictionary, flags.target_dictionary)
    text = {name: getattr(flags, name) for name in SYSTEM_FLAGS["fairseq"]}
    readers: dict[str, Callable[[], ForeignModel]] = {
        "marian": lambda: read_marian(path),
        "fsmt": lambda: read_fsmt(path),
        "fairseq": lambda: read_fairseq(path, FairseqText(**_without_none(text))),
        "torch": lambda: read_torch_transformer(path, _torch_names(names), config),
        "annotated": lambda: read_annotated(path, config, dictionaries),
        "opennmt": lambda: read_opennmt(path),
    }
    return readers[flags.system]()


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _torch_names(names: dict[str, str]) -> TorchNames:
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
