"""Flags of the job that translates."""

import gzip
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from transformers.hf_argparser import HfArg

from ..corpus import stream_lines
from ..loading import BUNDLED_MODEL
from ..translation.translator import SourceText, source_texts
from ..whole_files import new_file
from .output_files import (
    PARTIAL,
    check_outputs,
    files_of_models,
    keep_whole_lines,
    partial_path,
    status_of,
)
from .translator_flags import TranslatorFlags

logger = logging.getLogger(__name__)

MAX_PROCESSES = 1024  # and threads


@dataclass(kw_only=True)
class TranslateFlags(TranslatorFlags):
    """Input, output and columns of a translation."""

    model: list[str] = HfArg(
        default_factory=lambda: [BUNDLED_MODEL],
        help="Folder of a trained model; with --hub, a repository. Several models with the same "
        "vocabulary form an ensemble. Default: the bundled English-German model.",
    )
    text: list[str] | None = HfArg(default=None, help="Sentences to translate.")
    input: str | None = HfArg(
        default=None, help="File of sentences to translate, plain or .gz. Default: stdin."
    )
    output: str | None = HfArg(
        default=None,
        help="File to write, plain or .gz; until it is complete, its name ends in .partial. "
        "Default: stdout.",
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
    alignment: str | None = HfArg(
        default=None,
        help="Add a column of word links (source-target) read from the cross-attention of a layer "
        "(2), of a layer and head (2,5), or of the mean of all (mean).",
    )
    threads: int | None = HfArg(
        default=None,
        help="Threads of each process, with the engine torch. Default: all cores, divided among "
        "the processes.",
    )
    processes: int = HfArg(
        default=1, help="Processes that translate, each with its own model in memory."
    )
    resume: bool = HfArg(
        default=False,
        help="Continue after the lines that the same command, when it was stopped, has left in "
        "OUTPUT.partial.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("threads", "processes"):
            if (number := getattr(self, name)) is not None and not 1 <= number <= MAX_PROCESSES:
                raise ValueError(f"{name} must be in [1, {MAX_PROCESSES}], got {number}.")
        if self.threads is not None and self.engine != "torch":
            raise ValueError("--threads is for the engine torch. Leave it out.")
        if self.resume and (partial_path(self.output) is None or self.is_compressed):
            raise ValueError("--resume needs an --output that is a file, and not a .gz.")
        if self.text is not None and self.input is not None:
            raise ValueError("Give either --text or --input, not both.")
        self._check_files()

    def _check_files(self) -> None:
        named = {name: getattr(self, name) for name in ("input", "prefixes", "phrases")}
        inputs = {f"--{name}": [Path(path)] for name, path in named.items() if path is not None}
        for (path,) in inputs.values():
            if not path.exists():
                raise FileNotFoundError(f"No such file: {path}.")
        if self.text is None and self.input is None and status_of(sys.stdin) is not None:
            inputs["stdin"] = [Path("/dev/stdin")]
        inputs["--model"] = files_of_models(self.model)
        outputs = {"--output": self.output, "The unfinished --output": partial_path(self.output)}
        check_outputs(outputs, inputs, stdout=None if self.output else sys.stdout)

    @property
    def is_dialogue(self) -> bool:
        """Whether a person types sentences and waits for each translation."""
        return self.text is None and self.input is None and sys.stdin.isatty()

    @property
    def is_compressed(self) -> bool:
        """Whether the output is a .gz file."""
        return self.output is not None and self.output.endswith(".gz")

    @contextmanager
    def open_output(self) -> Iterator[BinaryIO]:
        """Open the file to write, or stdout; lines go to OUTPUT.partial until all are written."""
        if self.output is None:
            yield sys.stdout.buffer
            return
        opened: Any = gzip.open if self.is_compressed else open
        mode = "ab" if self.resume else "wb"
        try:
            with new_file(self.output, kept=PARTIAL) as path, opened(path, mode) as file:
                yield file
        except BaseException:
            if (partial := partial_path(self.output)) and Path(partial).is_file():
                logger.warning("The lines written so far are in %s.", partial)
            raise

    def lines_to_keep(self) -> int:
        """The number of lines that an earlier run has left; an unfinished one is cut off."""
        partial = partial_path(self.output) if self.resume else None
        return keep_whole_lines(Path(partial)) if partial and Path(partial).is_file() else 0

    def source_texts(self, first: int) -> Iterator[SourceText]:
        """Read what to translate, from the text of number `first` on."""
        texts = iter(self.text) if self.text else stream_lines(self.input or sys.stdin.buffer)
        prefixes = None if self.prefixes is None else stream_lines(self.prefixes)
        phrases = None
        if self.phrases is not None:
            phrases = (line.split("\t") for line in stream_lines(self.phrases))
        for column in (texts, prefixes, phrases):
            if column is not None and sum(1 for _ in islice(column, first)) < first:
                raise ValueError(
                    f"{partial_path(self.output)} has {first} lines, more than there are texts. It "
                    "is of another command: delete it, or give another --output."
                )
        return source_texts(texts, prefixes, phrases, first)
