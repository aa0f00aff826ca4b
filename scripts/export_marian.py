"""Export a translation model as a MarianMTModel, for whatever serves those, with proof.

python scripts/export_marian.py --model runs/paper --output runs/paper-marian
"""

import sys
from dataclasses import dataclass, field

from modeling_aiayn.command_line import parse_arguments, run_script
from modeling_aiayn.interop.marian_export import export_marian
from modeling_aiayn.interop.parity import SOURCES
from modeling_aiayn.translation.arguments import TranslatorArguments


@dataclass
class ExportArguments:
    """Where to, and how to prove it."""

    output: str = field(metadata={"help": "The folder to write."})
    sources: int = field(default=SOURCES, metadata={"help": "Random sources to compare on."})


def main() -> None:
    """Export, compare, report."""
    arguments, export = parse_arguments(__doc__, TranslatorArguments, ExportArguments)
    report = export_marian(
        arguments.load(), export.output, sources=export.sources, show_progress=True
    )
    sys.stdout.write(f"{report}\n")


if __name__ == "__main__":
    run_script(main)
