"""Translate text, one sentence per line.

aiayn translate --text "A dog runs across the grass."
aiayn translate --model runs/multi30k --input sentences.en.gz --output sentences.de
aiayn translate --input README.md --output LIESMICH.md
aiayn translate --input letter.docx --output brief.docx
aiayn translate --input large.en --output large.de --processes 8 --resume auto
aiayn translate --model runs/multi30k --nbest 4 --scores < sentences.en > sentences.tsv

With --nbest N, up to N lines are written for each input line, after its number. Otherwise the
output has as many lines as the input, also with --format text, but not with --wrapped true.
"""

import logging
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from transformers.hf_argparser import HfArg

from ..data.lines import open_binary, stream_lines
from ..documents.document import DocumentLines
from ..documents.files import DocumentFile
from ..documents.formats import FORMATS, format_of
from ..inspection.alignment import aligner
from ..inspection.attention_weights import AttentionChoice
from ..saved.languages import iso_639
from ..translation.segments.whole_texts import paragraphs
from ..translation.translate_file import open_output, translate_file, translation_lines
from ..translation.translator import Translation
from .command_line import parse_arguments
from .flags import (
    BatchFlags,
    EngineFlags,
    ModelFlags,
    SearchFlags,
    SourceFlags,
    StreamFlags,
    check_outputs,
    given_options,
    load_translator,
    sentence_preparation,
    several_processes,
)

logger = logging.getLogger(__name__)

STDIN = Path("/dev/stdin")  # a link to a redirected file; Windows has none
# The endings of document names, by format.
FILES = "; ".join(f"{x.name}: {' '.join(x.endings)}" for x in FORMATS.values() if x.has_markup)


@dataclass
class TranslateFlags:
    text: list[str] | None = HfArg(default=None, help="Sentences to translate.")
    input: str | None = HfArg(default=None, help="File to translate, plain or .gz. Default: stdin.")
    prefixes: str | None = HfArg(default=None, help="File of beginnings, a line per sentence.")
    scores: bool = HfArg(default=False, help="Add a column with the score of each translation.")
    format: str | None = HfArg(
        default=None,
        help="lines: a sentence per line. text: a line may have several sentences. Others: one "
        f"document, whose markup stays ({FILES}). Default: by the ending of --input, or lines. "
        "markdown and po need the extra 'documents'.",
        metadata={"choices": ["lines", *FORMATS]},
    )
    wrapped: bool = HfArg(
        default=False,
        help="With --format text: join lines of a paragraph, up to a blank line or a list item.",
    )
    alignment: str | None = HfArg(
        default=None,
        help="Add a column of word links, by the attention of a LAYER, LAYER,HEAD or the mean.",
    )

    def __post_init__(self) -> None:
        if self.text is not None and self.input is not None:
            raise ValueError("Give either --text or --input, not both.")
        found = format_of((self.input or "").removesuffix(".gz"))
        self.is_guessed = self.format is None and found is not None and found.has_markup
        self.format = self.format or (found.name if found and self.is_guessed else "lines")
        if self.wrapped and self.format != "text":
            raise ValueError("--wrapped needs --format text.")
        for name in ("prefixes", "scores", "alignment"):
            if self.format != "lines" and getattr(self, name):
                raise ValueError(f"--format {self.format} cannot be used with --{name}.")


def main() -> None:
    model, engine, batch, search, source, stream, flags = parse_arguments(
        __doc__,
        *(ModelFlags, EngineFlags, BatchFlags, SearchFlags, SourceFlags, StreamFlags),
        TranslateFlags,
    )
    is_stdin = flags.text is None and flags.input is None
    file = STDIN if is_stdin else flags.input
    read = [file, flags.prefixes, engine.shortlist, engine.glossary, engine.memory]
    check_outputs({"--output": stream.output}, read)
    language, prepare = sentence_preparation(source, model)
    choice = None if flags.alignment is None else AttentionChoice.parse(flags.alignment)
    translator = load_translator(model, engine, source)
    align = aligner(translator, choice) if choice else None
    options = translator.search_options(**given_options(search))
    is_resumable = flags.format == "lines" and options.nbest == 1
    if (stream.resume and not is_resumable) or (flags.format != "lines" and options.nbest > 1):
        raise ValueError("--resume needs --nbest 1 and --format lines; other formats --nbest 1.")
    pools = several_processes(model, engine, source, stream)
    if flags.format not in ("lines", "text"):
        if flags.is_guessed:
            logger.info("Reading %s as --format %s.", flags.input, flags.format)
        FORMATS[flags.format].check_packages()
        with open_binary(flags.input) if flags.input else sys.stdin.buffer as opened:
            content = (
                "".join(f"{x}\n" for x in flags.text).encode() if flags.text else opened.read()
            )
        document = DocumentFile(content, flags.format, iso_639(language), translator.codes[1])
        written = document.translate(translator, options, prepare, pools, **asdict(batch))
        with open_output(stream.output, None, False) as (output, _):
            output.write(written)
        return
    texts = flags.text or stream_lines(flags.input or sys.stdin.buffer)
    texts = paragraphs(texts) if flags.wrapped else texts
    is_dialogue = is_stdin and sys.stdin.isatty()
    whole = DocumentLines(texts, iso_639(language)) if flags.format == "text" else None

    def lines(number: int, translations: list[Translation]) -> list[str]:
        if whole is not None:
            return whole.add(translations[0].text)
        shown = number if options.nbest > 1 else None
        return translation_lines(translations, shown, flags.scores, align)

    translate_file(
        translator,
        map(prepare, whole or texts),
        stream.output,
        options,
        resume=stream.resume is not None,
        prefixes=flags.prefixes,
        translate_pools=None if is_dialogue else pools,
        format_lines=lines,
        inputs=[file, engine.glossary, engine.memory],
        settings=asdict(flags) | asdict(source),
        is_resumable=is_resumable,
        show_progress=not is_dialogue,
        **asdict(batch),
        **({"pool_size": 1} if is_dialogue else {}),
    )
