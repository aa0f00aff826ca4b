"""Translate text, one sentence per line.

aiayn translate --text "A dog runs across the grass."
aiayn translate --model runs/multi30k --text "A dog runs across the grass."
aiayn translate --model runs/multi30k --input sentences.en.gz --output sentences.de
aiayn translate --model runs/multi30k --nbest 4 --scores < sentences.en > sentences.tsv

The output has as many lines as the input; with --nbest N, N lines per input line.
"""

import gzip
import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from transformers.hf_argparser import HfArg

from ..corpus import stream_lines
from ..inspection.alignment import aligner
from ..inspection.attention_weights import AttentionChoice
from ..loading import BUNDLED_MODEL
from ..translation.progress import TranslationBar
from ..translation.translation_lines import translation_lines
from ..translation.translator import POOL_SIZE
from ..whole_files import new_file
from .command_line import parse_arguments
from .output_files import PARTIAL, check_outputs, files_of_models, partial_path, status_of
from .translator_flags import SearchFlags, TranslatorFlags

logger = logging.getLogger(__name__)


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

    def __post_init__(self) -> None:
        super().__post_init__()
        named = {name: getattr(self, name) for name in ("input", "prefixes", "phrases")}
        inputs = {f"--{name}": [Path(path)] for name, path in named.items() if path is not None}
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
        try:
            with new_file(self.output, kept=PARTIAL) as path, opened(path, "wb") as file:
                yield file
        except BaseException:
            if (partial := partial_path(self.output)) and Path(partial).is_file():
                logger.warning("The lines written so far are in %s.", partial)
            raise

    def sentences(self) -> Iterator[str]:
        """Read the sentences to translate."""
        if self.text is not None and self.input is not None:
            raise ValueError("Give either --text or --input, not both.")
        if self.text is not None:
            return iter(self.text)
        return stream_lines(self.input or sys.stdin.buffer)


def main() -> None:
    """Read, translate, write."""
    flags, search = parse_arguments(__doc__, TranslateFlags, SearchFlags)
    lines = flags.sentences()
    choice = AttentionChoice.parse(flags.alignment) if flags.alignment else None
    prefixes = flags.prefixes and stream_lines(flags.prefixes)
    translator = flags.load()
    options = search.options_for(translator)
    translator.engine.check_options(options, flags.phrases is not None)
    align = aligner(translator, choice) if choice else None
    phrases = flags.phrases and (line.split("\t") for line in stream_lines(flags.phrases))
    with ExitStack() as stack:
        output = stack.enter_context(flags.open_output())
        bar = stack.enter_context(TranslationBar(is_shown=not flags.is_dialogue))
        found = translator.stream(
            lines,
            options,
            prefixes=prefixes,
            phrases=phrases,
            **flags.batch_options,
            pool_size=1 if flags.is_dialogue else POOL_SIZE,
            report=bar.report,
        )
        for line in translation_lines(found, options.nbest, flags.scores, align):
            output.write(f"{line}\n".encode())
            if not flags.is_compressed:  # flushing every line would make compression useless
                output.flush()
        if not bar.sentences:
            logger.warning("There is nothing to translate.")
