r"""Export a translation model to ONNX, for transformers.js and optimum, and compare the two.

aiayn export-onnx --model runs/multi30k --output runs/multi30k-onnx \
    --file data/test_2016_flickr.en
"""

import sys
from dataclasses import dataclass

from transformers.hf_argparser import HfArg

from ..saved.loading import check_package
from .command_line import parse_arguments
from .flags import ModelFlags, OutputFlags, SentenceFlags
from .inputs import load_translator, sentences_to_compare


@dataclass
class OnnxFlags:
    """How to write weights."""

    dtypes: list[str] = HfArg(
        default_factory=lambda: ["float32", "int8"],
        help="Types of the written weights: float32, int8 or both.",
    )


def main() -> None:
    """Export, compare, report."""
    model, output, sentences, flags = parse_arguments(
        __doc__, ModelFlags, OutputFlags, SentenceFlags, OnnxFlags
    )
    for package in ("onnx", "onnxscript", "onnxruntime"):
        check_package(package, "onnx")
    from ..interop.onnx_export import export_onnx
    from ..interop.onnx_parity import count_equal

    texts = sentences_to_compare(sentences.file)
    translator = load_translator(model)
    export_onnx(translator, output.output, flags.dtypes, show_progress=True)
    for dtype in flags.dtypes:
        equal = count_equal(translator, output.output, texts, dtype, show_progress=True)
        sys.stdout.write(
            f"{output.output} ({dtype}): the same greedy ids as generate() for {equal} of "
            f"{len(texts)} texts\n"
        )
