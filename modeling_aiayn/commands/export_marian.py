"""Export a translation model as a MarianMTModel of transformers and compare the two.

aiayn export-marian --model runs/paper --output runs/paper-marian
"""

import sys
from dataclasses import dataclass

from transformers.hf_argparser import HfArg

from ..interop.marian_export import export_marian
from ..interop.parity import SOURCES
from .command_line import parse_arguments
from .export_flags import OutputFlags


@dataclass(kw_only=True)
class MarianFlags(OutputFlags):
    """The folder to write, and the size of the comparison."""

    sources: int = HfArg(default=SOURCES, help="Number of random sources to compare on.")


def main() -> None:
    """Export, compare, report."""
    (flags,) = parse_arguments(__doc__, MarianFlags)
    report = export_marian(flags.load(), flags.output, sources=flags.sources, show_progress=True)
    sys.stdout.write(f"{report}\n")
