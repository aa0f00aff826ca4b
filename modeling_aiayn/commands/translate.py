"""Translate text, one sentence per line.

aiayn translate --text "A dog runs across the grass."
aiayn translate --model runs/multi30k --text "A dog runs across the grass."
aiayn translate --model runs/multi30k --input sentences.en.gz --output sentences.de
aiayn translate --input large.en --output large.de --processes 8 --resume true
aiayn translate --model runs/multi30k --nbest 4 --scores < sentences.en > sentences.tsv

The output has as many lines as the input; with --nbest N, N lines per input line.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import torch

from ..inspection.alignment import aligner
from ..inspection.attention_weights import AttentionChoice
from ..translation.options import SearchOptions
from ..translation.processes import stream_in_processes
from ..translation.progress import TranslationBar
from ..translation.translation_lines import translation_lines
from ..translation.translator import POOL_SIZE, SourceText, Translation, Translator, read_pools
from .command_line import parse_arguments
from .translate_flags import TranslateFlags
from .translator_flags import SearchFlags

logger = logging.getLogger(__name__)


def stream(
    flags: TranslateFlags,
    translator: Translator,
    texts: Iterator[SourceText],
    options: SearchOptions,
    report: Callable[[int, int], object],
) -> Iterator[list[Translation]]:
    """Translate texts in this process, or in several others."""
    if flags.processes > 1 and not flags.is_dialogue:
        threads = flags.threads or max(1, torch.get_num_threads() // flags.processes)
        yield from stream_in_processes(
            flags.load,
            texts,
            options,
            processes=flags.processes,
            threads=threads,
            pool_size=POOL_SIZE,
            report=report,
            **flags.batch_options,
        )
        return
    for pool in read_pools(texts, 1 if flags.is_dialogue else POOL_SIZE):
        yield from translator.translate_pool(pool, options, **flags.batch_options, report=report)


def main() -> None:
    """Read, translate, write."""
    flags, search = parse_arguments(__doc__, TranslateFlags, SearchFlags)
    choice = AttentionChoice.parse(flags.alignment) if flags.alignment else None
    if flags.resume and search.nbest > 1:
        raise ValueError("--resume needs --nbest 1: one line for each text.")
    if flags.threads is not None:
        torch.set_num_threads(flags.threads)
    translator = flags.load()
    options = search.options_for(translator)
    translator.engine.check_options(options, flags.phrases is not None)
    align = aligner(translator, choice) if choice else None
    first = flags.lines_to_keep()
    texts = flags.source_texts(first)
    if first:
        logger.info("Continuing after %d lines.", first)
    with ExitStack() as stack:
        output = stack.enter_context(flags.open_output())
        bar = stack.enter_context(TranslationBar(is_shown=not flags.is_dialogue))
        found = stream(flags, translator, texts, options, bar.report)
        for line in translation_lines(found, options.nbest, flags.scores, align):
            output.write(f"{line}\n".encode())
            if not flags.is_compressed:  # flushing every line would make compression useless
                output.flush()
        if not bar.sentences and not first:
            logger.warning("There is nothing to translate.")
