r"""Export a translation model to CTranslate2 and compare the two.

aiayn export-ctranslate2 --model runs/multi30k --output runs/multi30k-ct2 \
    --quantization int8 --file data/test_2016_flickr.en

Then: aiayn translate --engine ctranslate2 --model runs/multi30k-ct2
"""

import sys
from dataclasses import dataclass

from transformers.hf_argparser import HfArg

from ..data.embedded_corpus import generate_pairs
from ..data.lines import read_lines
from ..translation import Translator
from ..translation.translator import check_package
from .command_line import parse_arguments
from .flags import (
    LanguageFlags,
    ModelFlags,
    OneBestFlags,
    OutputFlags,
    given_options,
    load_translator,
)


@dataclass
class CTranslate2Flags:
    quantization: str = HfArg(
        default="float32", help="float32, float16, bfloat16, int8, int8_float16 or int16."
    )
    file: str | None = HfArg(default=None, help="Sentences. Default: 100 of the built-in grammar.")


def main() -> None:
    model, output, languages, search, flags = parse_arguments(
        __doc__, ModelFlags, OutputFlags, LanguageFlags, OneBestFlags, CTranslate2Flags
    )
    check_package("ctranslate2", "ctranslate2")
    from ..interop.ctranslate2_export import compare_engines, export_ctranslate2

    texts = [pair.source for pair in generate_pairs("test", 100)]
    if flags.file is not None:
        texts = [line for line in read_lines(flags.file) if line.strip()]
    translator = load_translator(model, None, languages)
    direction = translator.direction()
    options = translator.search_options(**given_options(search))
    options.check_supported("ctranslate2")
    export_ctranslate2(translator, output.output, flags.quantization)
    exported = Translator.from_pretrained(output.output, engine="ctranslate2")
    report = compare_engines(translator, exported.directed(direction), texts, options)
    sys.stdout.write(f"{output.output} ({flags.quantization}): {report}\n")
