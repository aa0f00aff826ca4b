r"""Import the weights of another system and check that the outputs are the same.

aiayn import-weights --system marian --hub true \
    --source Helsinki-NLP/opus-mt-en-de --output models/opus-en-de
aiayn import-weights --system fairseq --source model.pt --output models/wmt16 \
    --source_dictionary dict.en.txt --target_dictionary dict.de.txt --bpe_codes bpecodes
aiayn import-weights --system annotated --source weights.pt --output models/annotated \
    --config '{encoder_attention_heads: 8, decoder_attention_heads: 8}'

Each system has further flags: --system SYSTEM --help shows them.
"""

import sys
from argparse import ArgumentParser
from dataclasses import dataclass
from typing import Literal

import torch
from transformers.hf_argparser import HfArg

from ..interop.importing import import_model
from ..interop.parity import SOURCES, Examples
from ..interop.systems import SYSTEMS
from .command_line import parse_arguments


@dataclass
class ImportFlags:
    system: str = HfArg(help="System that wrote the model.", metadata={"choices": sorted(SYSTEMS)})
    source: str = HfArg(help="The model: the file, folder or repository that the system writes.")
    output: str = HfArg(help="Folder to write.")
    sources: int = HfArg(default=SOURCES, help="Number of random sources to compare on.")
    dtype: Literal["float32", "bfloat16", "float16"] | None = HfArg(
        default=None, help="Type of the written weights. Default: unchanged."
    )
    check: str | None = HfArg(
        default=None, help="File of input_ids, decoder_input_ids, and the logits to reproduce."
    )
    license: str = HfArg(default="other", help="Licence of the weights, for the model card.")


def main() -> None:
    parser = ArgumentParser(add_help=False)
    parser.add_argument("--system")
    _, own_flags = SYSTEMS.get(parser.parse_known_args()[0].system, (None, []))
    flags, *options = parse_arguments(__doc__, ImportFlags, *own_flags)
    read, _ = SYSTEMS[flags.system]
    foreign = read(flags.source, *options)
    report = import_model(
        foreign,
        flags.output,
        sources=flags.sources,
        dtype=None if flags.dtype is None else getattr(torch, flags.dtype),
        license=flags.license,
        examples=None if flags.check is None else Examples.read(flags.check),
        show_progress=True,
    )
    sys.stdout.write(f"{report}\n")
    for name, why in foreign.taken.left_out.items():
        sys.stdout.write(f"left out                {name}: {why}\n")
    for name in foreign.taken.absent_biases:
        sys.stdout.write(f"set to 0                {name}: {foreign.system} has no such bias\n")
    if foreign.source_tokenizer is None:
        sys.stdout.write("tokenizer               none was given: save one into the folder\n")
