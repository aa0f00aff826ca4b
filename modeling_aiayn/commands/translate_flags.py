"""Flags of the job that translates."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from transformers.hf_argparser import HfArg

from ..data.lines import stream_lines
from ..saved.loading import BUNDLED_MODEL, check_package
from ..translation.pools import SourceText, source_texts
from .output_files import check_outputs, files_of_models, partial_path, status_of
from .source_flags import SourceFlags
from .stream_flags import StreamFlags
from .translator_flags import MODEL_OR_BUNDLED

# The path of a file that stdin is redirected from; Windows has none.
STDIN = Path("/dev/stdin")


@dataclass(kw_only=True)
class TranslateFlags(SourceFlags, StreamFlags):
    """Input and columns of a translation."""

    model: list[str] = HfArg(default_factory=lambda: [BUNDLED_MODEL], help=MODEL_OR_BUNDLED)
    text: list[str] | None = HfArg(default=None, help="Sentences to translate.")
    input: str | None = HfArg(
        default=None, help="File of sentences to translate, plain or .gz. Default: stdin."
    )
    prefixes: str | None = HfArg(
        default=None, help="File with a line per sentence: the words its translation starts with."
    )
    phrases: str | None = HfArg(
        default=None,
        help="File with a line per sentence: phrases that its translation must contain, separated "
        "by tabs.",
    )
    scores: bool = HfArg(default=False, help="Add a column with the score of each translation.")
    format: str = HfArg(
        default="lines",
        help="lines: each line of the input is a sentence. text: a line may have several "
        "sentences; it is split, and lines and blanks stay as they are. html, markdown: the input "
        "is one document, whose markup stays. text, html and markdown need the extra 'documents'.",
        metadata={"choices": ["lines", "text", "html", "markdown"]},
    )
    alignment: str | None = HfArg(
        default=None,
        help="Add a column of word links (source-target) read from the cross-attention of a layer "
        "(2), of a layer and head (2,3), or of the mean of all (mean).",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.set_source_lang(self.model[0], self.hub)
        if self.text is not None and self.input is not None:
            raise ValueError("Give either --text or --input, not both.")
        if self.destination.is_shared and self.text is None and self.input is None:
            raise ValueError("Several processes cannot share stdin: they need --input or --text.")
        if self.format != "lines":
            self._check_format()
        self._check_files()

    def _check_format(self) -> None:
        """Check that no option needs a line for each sentence."""
        names = ("prefixes", "phrases", "scores", "alignment", "resume")
        given = [f"--{name}" for name in names if getattr(self, name)]
        given += ["several launched processes"] if self.destination.is_shared else []
        if given:
            raise ValueError(
                f"--format {self.format} cannot be used with {given[0]}. Leave out one."
            )
        check_package("sentencex", "documents")
        if self.format == "markdown":
            check_package("markdown_it", "documents")

    def _check_files(self) -> None:
        names = ("input", "prefixes", "phrases", "shortlist")
        named = {name: getattr(self, name) for name in names}
        inputs = {f"--{name}": [Path(path)] for name, path in named.items() if path is not None}
        for name, path in named.items():
            if path is not None and not (path and Path(path).exists()):
                raise FileNotFoundError(f"No such file: --{name} {path or repr(path)}.")
        if self._reads_file_from_stdin:
            inputs["stdin"] = [STDIN]
        inputs["--model"] = files_of_models(self.model)
        outputs = {"--output": self.output, "The unfinished --output": partial_path(self.output)}
        check_outputs(outputs, inputs, stdout=None if self.output else sys.stdout)

    @property
    def input_files(self) -> list[Path]:
        """The files that the lines depend on."""
        stdin = STDIN if self._reads_file_from_stdin and STDIN.exists() else None
        named = (stdin, self.input, self.prefixes, self.phrases, self.shortlist)
        return [*(Path(path) for path in named if path is not None), *files_of_models(self.model)]

    @property
    def _reads_file_from_stdin(self) -> bool:
        return self.text is None and self.input is None and status_of(sys.stdin) is not None

    @property
    def is_dialogue(self) -> bool:
        """Whether a person types sentences and waits for each translation."""
        return self.text is None and self.input is None and sys.stdin.isatty()

    def texts(self) -> Iterable[str]:
        """Read the texts to translate: the lines of the input."""
        if self.text is not None:
            return self.text
        return stream_lines(sys.stdin.buffer if self.input is None else self.input)

    def source_texts(self, texts: Iterable[str]) -> Iterator[SourceText]:
        """Add prefixes and phrases to texts."""
        texts = map(self.prepare_sentence, texts)
        prefixes = None if self.prefixes is None else stream_lines(self.prefixes)
        phrases = None
        if self.phrases is not None:
            phrases = (line.split("\t") for line in stream_lines(self.phrases))
        return source_texts(texts, prefixes, phrases, first_number=0)
