r"""Export a translation model to CTranslate2 and compare the two.

aiayn export-ctranslate2 --model runs/multi30k --output runs/multi30k-ct2 \
    --quantization int8 --file data/test_2016_flickr.en

Then: aiayn translate --engine ctranslate2 --model runs/multi30k-ct2
"""

import sys
from dataclasses import dataclass

from transformers.hf_argparser import HfArg

from ..saved.loading import check_package
from ..translation import Translator
from .command_line import parse_arguments
from .flags import (
    ModelFlags,
    OneBestFlags,
    OutputFlags,
    SentenceFlags,
    given_options,
    load_translator,
    sentences_to_compare,
)


@dataclass
class CTranslate2Flags:
    """How to write weights."""

    quantization: str = HfArg(
        default="float32",
        help="Type of the written weights: float32, float16, bfloat16, int8, int8_float16 or "
        "int16.",
    )


def main() -> None:
    """Export, compare, report."""
    model, output, sentences, search, flags = parse_arguments(
        __doc__, ModelFlags, OutputFlags, SentenceFlags, OneBestFlags, CTranslate2Flags
    )
    check_package("ctranslate2", "ctranslate2")
    from ..interop.ctranslate2_export import compare_engines, export_ctranslate2

    texts = sentences_to_compare(sentences.file)
    translator = load_translator(model)
    options = translator.search_options(**given_options(search))
    options.check_supported("ctranslate2")
    export_ctranslate2(translator, output.output, flags.quantization)
    exported = Translator.from_pretrained(output.output, engine="ctranslate2")
    report = compare_engines(translator, exported, texts, options)
    sys.stdout.write(f"{output.output} ({flags.quantization}): {report}\n")
