"""Flags of the exports to other engines: the folder to write, and sentences to compare on."""

from dataclasses import dataclass

from transformers.hf_argparser import HfArg

from ..data.embedded_corpus import generate_pairs
from ..data.lines import read_lines
from .translator_flags import ModelFlags


@dataclass(kw_only=True)
class OutputFlags(ModelFlags):
    """The model, and the folder to write."""

    output: str = HfArg(help="Folder to write.")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_not_int8(
            "Pass --quantization int8 to export-ctranslate2, or --dtypes int8 to export-onnx."
        )


@dataclass(kw_only=True)
class ExportFlags(OutputFlags):
    """The folder to write, and the sentences to compare on."""

    file: str | None = HfArg(
        default=None,
        help="File of sentences to compare on, plain or .gz. Default: 100 sentences of the "
        "built-in grammar.",
    )

    def sentences(self) -> list[str]:
        """The sentences to compare on.

        Raises:
            ValueError: The file holds none.
            OSError: The file cannot be read.
        """
        if self.file is None:
            return [pair.source for pair in generate_pairs("test", 100)]
        sentences = [line for line in read_lines(self.file) if line.strip()]
        if not sentences:
            raise ValueError(f"{self.file} must hold a sentence to compare on, but it is empty.")
        return sentences
