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
from modeling_aiayn.loading import check_package
from modeling_aiayn.translation import Translator
from modeling_aiayn.translation.arguments import TranslatorArguments
from modeling_aiayn.translation.options import SearchOptions


@dataclass
class ExportArguments:
    """Where to, and what to prove it on."""

    output: str = field(metadata={"help": "The folder to write."})
    quantization: str = field(
        default="float32",
        metadata={
            "help": "How weights are kept: float32, float16, bfloat16, int8, int8_float16, int16."
        },
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
    check_package("ctranslate2", "ctranslate2")
    from modeling_aiayn.interop.ctranslate2_export import compare_engines, export_ctranslate2
    from modeling_aiayn.translation.ctranslate2_engine import check_ctranslate2_options

    check_ctranslate2_options(options)
    if export.file is None:
        texts = [pair.source for pair in generate_pairs("test", 100)]
    else:
        texts = [line for line in read_lines(export.file) if line.strip()]
    if not texts:
        raise ValueError(f"There is no sentence to compare on in {export.file}.")
    translator = arguments.load()
    export_ctranslate2(translator, export.output, export.quantization)
    exported = Translator.from_pretrained(export.output, engine="ctranslate2")
    report = compare_engines(translator, exported, texts, options)
    sys.stdout.write(f"{export.output} ({export.quantization}): {report}\n")


if __name__ == "__main__":
    run_script(main)
