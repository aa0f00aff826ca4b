"""Translate text, one sentence a line: as many lines out as in.

python scripts/translate.py --model runs/multi30k --text "A dog runs across the grass."
python scripts/translate.py --model runs/multi30k --input sentences.en --output sentences.de
python scripts/translate.py --model runs/multi30k < sentences.en > sentences.de
"""

import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path

from modeling_aiayn.command_line import parse_arguments, run_script
from modeling_aiayn.corpus import lines_of, read_lines
from modeling_aiayn.translation.arguments import TranslatorArguments

logger = logging.getLogger(__name__)


@dataclass
class TextArguments:
    """What to translate, and where to put it."""

    text: list[str] | None = field(default=None, metadata={"help": "Sentences to translate."})
    input: str | None = field(
        default=None, metadata={"help": "A file of sentences, plain or .gz; default: stdin."}
    )
    output: str | None = field(default=None, metadata={"help": "A file; default: stdout."})


def main() -> None:
    """Read, translate, write."""
    arguments, text = parse_arguments(__doc__, TranslatorArguments, TextArguments)
    if text.text is not None and text.input is not None:
        raise ValueError("Give either --text or --input, not both.")
    if text.text is not None:
        lines = text.text
    elif text.input is not None:
        lines = read_lines(text.input)
    else:
        lines = lines_of(sys.stdin.buffer.read(), "stdin")
    if not lines:
        logger.warning("There is nothing to translate.")
    translator = arguments.load()
    translations = translator(
        lines, arguments.batch_size, show_progress=True, **arguments.generation_options
    )
    written = "".join(f"{line}\n" for line in translations)
    if text.output is not None:
        Path(text.output).write_text(written, encoding="utf-8")
    else:
        sys.stdout.buffer.write(written.encode())
        sys.stdout.flush()


if __name__ == "__main__":
    run_script(main)
