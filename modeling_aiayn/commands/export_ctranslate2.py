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
from .export_flags import ExportFlags
from .search_flags import OneBestFlags


@dataclass(kw_only=True)
class CTranslate2Flags(ExportFlags):
    """What to write, with which weights."""

    quantization: str = HfArg(
        default="float32",
        help="Type of the written weights: float32, float16, bfloat16, int8, int8_float16 or "
        "int16.",
    )


def main() -> None:
    """Export, compare, report."""
    flags, search = parse_arguments(__doc__, CTranslate2Flags, OneBestFlags)
    check_package("ctranslate2", "ctranslate2")
    from ..interop.ctranslate2_export import compare_engines, export_ctranslate2
    from ..translation.ctranslate2_engine import check_ctranslate2_options

    check_ctranslate2_options(search)
    texts = flags.sentences()
    translator = flags.load()
    export_ctranslate2(translator, flags.output, flags.quantization)
    exported = Translator.from_pretrained(flags.output, engine="ctranslate2")
    report = compare_engines(translator, exported, texts, search.options_for(translator))
    sys.stdout.write(f"{flags.output} ({flags.quantization}): {report}\n")
