"""Export a translation model as a MarianMTModel of transformers and compare the two.

aiayn export-marian --model runs/paper --output runs/paper-marian
"""

import sys
from dataclasses import dataclass

from transformers.hf_argparser import HfArg

from ..interop.marian_export import export_marian
from ..interop.parity import SOURCES
from .command_line import parse_arguments
from .translator_flags import ModelFlags


@dataclass(kw_only=True)
class MarianFlags(ModelFlags):
    """The folder to write, and the size of the comparison."""

    output: str = HfArg(help="Folder to write.")
    sources: int = HfArg(default=SOURCES, help="Number of random sources to compare on.")


def main() -> None:
    """Export, compare, report."""
    (flags,) = parse_arguments(__doc__, MarianFlags)
    report = export_marian(flags.load(), flags.output, sources=flags.sources, show_progress=True)
    sys.stdout.write(f"{report}\n")
