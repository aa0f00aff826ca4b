"""Export a translation model to CTranslate2, and prove that it is the same model.

python scripts/export_ctranslate2.py --model runs/multi30k --output runs/multi30k-ct2 \
    --quantization int8 --file data/test_2016_flickr.en

Then: python scripts/translate.py --engine ctranslate2 --model runs/multi30k-ct2
"""

import sys
from dataclasses import dataclass, field

from modeling_aiayn.command_line import parse_arguments, run_script
from modeling_aiayn.corpus import read_lines
from modeling_aiayn.embedded_corpus import generate_pairs
from modeling_aiayn.interop.ctranslate2_export import (
    QUANTIZATIONS,
    compare_engines,
    export_ctranslate2,
)
from modeling_aiayn.translation import Translator
from modeling_aiayn.translation.arguments import TranslatorArguments
from modeling_aiayn.translation.options import SearchOptions


@dataclass
class ExportArguments:
    """Where to, and what to prove it on."""

    output: str = field(metadata={"help": "The folder to write."})
    quantization: str = field(
        default="float32",
        metadata={"help": "How weights are kept.", "choices": QUANTIZATIONS},
    )
    file: str | None = field(
        default=None,
        metadata={
            "help": "Sentences to compare on, plain or .gz; default: 100 of the embedded grammar."
        },
    )


def main() -> None:
    """Export, compare, report."""
    arguments, options, export = parse_arguments(
        __doc__, TranslatorArguments, SearchOptions, ExportArguments
    )
    if len(arguments.model) > 1:
        raise ValueError(f"One model is exported at a time, got {len(arguments.model)} to --model.")
    translator = arguments.load()
    export_ctranslate2(translator, export.output, export.quantization)
    exported = Translator.from_pretrained(export.output, engine="ctranslate2")
    if export.file is None:
        texts = [pair.source for pair in generate_pairs("test", 100)]
    else:
        texts = read_lines(export.file)
    report = compare_engines(translator, exported, texts, options)
    sys.stdout.write(f"{export.output} ({export.quantization}): {report}\n")


if __name__ == "__main__":
    run_script(main)
