"""Translate text, one sentence per line.

aiayn translate --text "A dog runs across the grass."
aiayn translate --model runs/multi30k --text "A dog runs across the grass."
aiayn translate --model runs/multi30k --input sentences.en.gz --output sentences.de
aiayn translate --format text < letter.en > letter.de
aiayn translate --format markdown --input README.md --output LIESMICH.md
aiayn translate --input large.en --output large.de --processes 8 --resume true
aiayn translate --model runs/multi30k --nbest 4 --scores < sentences.en > sentences.tsv

With --format lines or text, the output has as many lines as the input. With --nbest N, up to N
lines are written for each input line, and one for an empty line; they start with the number of the
input line. torchrun and accelerate launch divide a file among processes and machines: see
docs/translation.md.
"""

import logging
from collections.abc import Iterable, Iterator

from torch import Tensor

from ..documents.document import DocumentLines
from ..documents.word_attention import word_attention
from ..inspection.alignment import aligner
from ..inspection.attention_weights import AttentionChoice
from ..tokenization import replace_surrogates
from ..translation.pools import SourceText
from ..translation.translation_lines import translation_lines
from ..translation.translator import Translation, Translator
from ..translation.whole_texts import WholeLines
from .command_line import parse_arguments
from .search_flags import SearchFlags
from .translate_flags import TranslateFlags

logger = logging.getLogger(__name__)


def valid_lines(lines: Iterable[str]) -> Iterator[str]:
    """Replace lone surrogates, which stand for invalid bytes, in lines, with a warning."""
    for number, line in enumerate(lines, start=1):
        valid = replace_surrogates(line)
        if valid != line:
            logger.warning("Line %d: replaced invalid Unicode with U+FFFD.", number)
        yield valid


def whole_texts(flags: TranslateFlags, translator: Translator) -> WholeLines | DocumentLines | None:
    """Return the object that splits the input into sentences; None if each line is a sentence.

    Raises:
        ValueError: The format needs attention, and the model is an exported one.
    """
    if flags.format == "lines":
        return None
    texts = valid_lines(flags.texts())
    if flags.format == "text":
        return WholeLines(texts, flags.source_lang)
    _ = translator.model

    def attention(source: str, target: str) -> Tensor:
        return word_attention(translator, flags.prepare_sentence(source), target)

    return DocumentLines(texts, flags.format, flags.source_lang, attention)


def main() -> None:
    """Read, translate, write."""
    flags, search = parse_arguments(__doc__, TranslateFlags, SearchFlags)
    choice = None if flags.alignment is None else AttentionChoice.parse(flags.alignment)
    flags.check_one_line_for_each(search.nbest)
    if flags.format != "lines" and search.nbest > 1:
        raise ValueError(f"--format {flags.format} needs --nbest 1.")
    translator = flags.load()
    options = search.options_for(translator)
    translator.engine.check_options(options, flags.phrases is not None)
    flags.check_earlier_lines(options)
    align = aligner(translator, choice) if choice else None
    whole = whole_texts(flags, translator)

    def lines(source: SourceText, translations: list[Translation]) -> list[str]:
        if whole is not None:
            return whole.add(translations[0].text)
        number = source.number if options.nbest > 1 else None
        return translation_lines(translations, number, flags.scores, align)

    flags.write(translator, flags.source_texts(whole or flags.texts()), options, lines)
