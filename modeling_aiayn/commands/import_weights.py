r"""Import the weights of another system and check that the outputs are the same.

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
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from ..data.parsing import parse_mapping
from ..interop.annotated import read_annotated
from ..interop.examples import Examples
from ..interop.fairseq import FairseqText, read_fairseq
from ..interop.foreign_model import ForeignModel
from ..interop.fsmt import read_fsmt
from ..interop.importing import import_model
from ..interop.library_models import fetch
from ..interop.marian import read_marian
from ..interop.opennmt import read_opennmt
from ..interop.torch_transformer import TorchNames, read_torch_transformer
from .command_line import parse_arguments
from .import_flags import SYSTEM_FLAGS, ImportFlags


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
            raise ValueError(f"names must be one or more of {', '.join(known)}, got {name!r}.")
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
        repo_id=flags.source if flags.hub else None,
        examples=None if flags.check is None else Examples.read(flags.check),
        show_progress=True,
    )
    sys.stdout.write(f"{report}\n")
    for name, why in foreign.taken.left_out.items():
        sys.stdout.write(f"left out                {name}: {why}\n")
    for name in foreign.taken.absent_biases:
        sys.stdout.write(f"set to 0                {name}: {foreign.system} has no such bias\n")
    if foreign.source_tokenizer is None:
        sys.stdout.write(
            "tokenizer               none was given: save one into the folder to translate text\n"
        )
