r"""Export a translation model to ONNX, for transformers.js and optimum.

aiayn export-onnx --model runs/multi30k --output runs/multi30k-onnx
"""

from dataclasses import dataclass

from transformers.hf_argparser import HfArg

from ..translation.translator import check_package
from .command_line import parse_arguments
from .flags import ModelFlags, OutputFlags, load_translator


@dataclass
class OnnxFlags:
    dtypes: list[str] = HfArg(
        default_factory=lambda: ["float32", "int8"],
        help="Types of the written weights.",
        metadata={"choices": ["float32", "int8"]},
    )


def main() -> None:
    model, output, flags = parse_arguments(__doc__, ModelFlags, OutputFlags, OnnxFlags)
    for package in ("onnx", "onnxscript", "onnxruntime"):
        check_package(package, "onnx")
    from ..interop.onnx_export import export_onnx

    translator = load_translator(model)
    export_onnx(translator, output.output, flags.dtypes, show_progress=True)
