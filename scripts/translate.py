"""Translate text, one sentence a line: as many lines out as in.

python scripts/translate.py --model runs/multi30k --text "A dog runs across the grass."
python scripts/translate.py --model runs/multi30k --input sentences.en.gz --output sentences.de
python scripts/translate.py --model runs/multi30k --nbest 4 --scores < sentences.en > sentences.tsv
"""

import logging
from contextlib import ExitStack

from modeling_aiayn.command_line import parse_arguments, run_script
from modeling_aiayn.corpus import stream_lines
from modeling_aiayn.inspection.alignment import AttentionChoice, aligner
from modeling_aiayn.translation.arguments import TextArguments, TranslatorArguments
from modeling_aiayn.translation.options import SearchOptions
from modeling_aiayn.translation.progress import TranslationBar
from modeling_aiayn.translation.translation_lines import translation_lines
from modeling_aiayn.translation.translator import POOL_SIZE

logger = logging.getLogger(__name__)


def main() -> None:
    """Read, translate, write."""
    arguments, options, text = parse_arguments(
        __doc__, TranslatorArguments, SearchOptions, TextArguments
    )
    lines = text.lines()
    choice = text.alignment and AttentionChoice.parse(text.alignment)
    prefixes = text.prefixes and stream_lines(text.prefixes)
    translator = arguments.load()
    translator.check_options(options, text.phrases is not None)
    align = choice and aligner(translator, choice)
    phrases = text.phrases and (line.split("\t") for line in stream_lines(text.phrases))
    # Flags that are wrong are known now: an earlier output is not emptied for them.
    with ExitStack() as stack:
        output = stack.enter_context(text.opened_output())
        bar = stack.enter_context(TranslationBar(is_shown=not text.is_dialogue))
        found = translator.stream(
            lines,
            options,
            prefixes=prefixes,
            phrases=phrases,
            **arguments.batch_options,
            pool_size=1 if text.is_dialogue else POOL_SIZE,
            report=bar.report,
        )
        for line in translation_lines(found, options.nbest, text.scores, align):
            output.write(f"{line}\n".encode())
            if not text.is_compressed:  # what is flushed line by line is hardly any smaller
                output.flush()
        if not bar.sentences:
            logger.warning("There is nothing to translate.")


if __name__ == "__main__":
    run_script(main)
