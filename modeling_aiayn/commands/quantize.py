"""Write a translation model with weights in 8 bits: a quarter of the size, fastest on a CPU.

aiayn quantize --model runs/multi30k --output runs/multi30k-int8 --file data/test_2016_flickr

Then: aiayn translate --model runs/multi30k-int8. With --file, the model translates the sentence
pairs before and after, and the scores of both are printed.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from transformers.hf_argparser import HfArg

from ..corpus import files_of, parse_columns, read_pairs
from ..interop.int8_export import export_int8
from ..loading import find_model
from ..translation import Translator
from ..translation.evaluation import score_translations
from ..whole_files import check_unused
from .command_line import parse_arguments
from .translator_flags import SearchFlags, TranslatorFlags


@dataclass(kw_only=True)
class QuantizeFlags(TranslatorFlags):
    """The folder to write, and sentence pairs to compare on."""

    output: str = HfArg(help="Folder to write.")
    file: str | None = HfArg(
        default=None,
        help="Sentence pairs to compare on: a .tsv or .jsonl file, or the common prefix of two "
        "line-aligned files. Each may end in .gz.",
    )
    source_lang: str = HfArg(default="en", help="Source language.")
    target_lang: str = HfArg(default="de", help="Target language.")
    columns: str | None = HfArg(
        default=None, help="Languages of the two columns of a .tsv file, as in en,de."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.engine != "torch" or self.dtype == "int8":
            raise ValueError("quantize starts from a model in floating-point numbers.")
        check_unused(Path(self.output))
        if self.file is not None:
            files_of(self.file, self.source_lang, self.target_lang)


def compare(flags: QuantizeFlags, search: SearchFlags, translators: dict[str, Translator]) -> str:
    """Translate the sentence pairs with each translator, and return a table of scores."""
    columns = parse_columns(flags.columns)
    pairs = read_pairs(str(flags.file), flags.source_lang, flags.target_lang, columns)
    lines, found = [], []
    for name, translator in translators.items():
        options = vars(search.options_for(translator))
        texts = translator(pairs["source"], show_progress=True, **flags.batch_options, **options)
        scores = score_translations(texts, pairs)
        lines.append(f"{name:<10}BLEU {scores['bleu']:.2f}, chrF {scores['chrf']:.2f}")
        found.append(texts)
    same = sum(before == after for before, after in zip(*found, strict=True))
    return "\n".join([*lines, f"The same translation for {same:,} of {len(pairs):,} sentences."])


def main() -> None:
    """Round, write, compare, report."""
    flags, search = parse_arguments(__doc__, QuantizeFlags, SearchFlags)
    before = flags.load()
    card = None if flags.hub else Path(find_model(flags.model[0]), "README.md")
    written = export_int8(before, flags.output, card)
    sys.stdout.write(f"{flags.output}: {written}\n")
    after = Translator.from_pretrained(flags.output)
    if flags.file is not None:
        sys.stdout.write(f"{compare(flags, search, {'before': before, 'int8': after})}\n")
