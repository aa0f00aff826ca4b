"""Export a translation model as a MarianMTModel of transformers and compare the two.

aiayn export-marian --model runs/paper --output runs/paper-marian
"""

import sys
from dataclasses import dataclass

from transformers.hf_argparser import HfArg

from ..interop.marian_export import export_marian
from ..interop.parity import SOURCES
from .command_line import parse_arguments
from .flags import ModelFlags, OutputFlags, load_translator


@dataclass
class MarianFlags:
    sources: int = HfArg(default=SOURCES, help="Number of random sources to compare on.")


def main() -> None:
    model, output, flags = parse_arguments(__doc__, ModelFlags, OutputFlags, MarianFlags)
    translator = load_translator(model)
    report = export_marian(translator, output.output, sources=flags.sources, show_progress=True)
    sys.stdout.write(f"{report}\n")
