"""Write a translation model with weights in 8 bits: a quarter of the size, fastest on a CPU.

aiayn quantize --model runs/multi30k --output runs/multi30k-int8 --file data/test_2016_flickr

Then: aiayn translate --model runs/multi30k-int8. With --file, the model translates the sentence
pairs before and after, and the scores of both are printed.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from datasets import Dataset
from transformers.hf_argparser import HfArg

from ..interop.int8_export import export_int8
from ..saved.folders import find_file
from ..saved.loading import find_model
from ..saved.whole_files import check_unused
from ..translation import Translator
from ..translation.evaluation import score_translations
from .command_line import parse_arguments
from .pair_flags import PAIRS_HELP, PairFlags
from .search_flags import OneBestFlags
from .translator_flags import BatchFlags

CARD = "README.md"


@dataclass(kw_only=True)
class QuantizeFlags(PairFlags, BatchFlags):
    """The folder to write, and sentence pairs to compare on."""

    output: str = HfArg(help="Folder to write.")
    file: str | None = HfArg(
        default=None, help=f"{PAIRS_HELP} Both models translate and are scored on them."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_not_int8("quantize rounds the weights itself. Leave it out.")
        check_unused(Path(self.output))
        self.files_of_pairs(*([] if self.file is None else [self.file]))


def compare(
    flags: QuantizeFlags, search: OneBestFlags, pairs: Dataset, translators: dict[str, Translator]
) -> str:
    """Translate sentence pairs with each translator, and return a table of scores."""
    lines, translations = [], []
    for name, translator in translators.items():
        options = vars(search.options_for(translator))
        texts = translator(pairs["source"], show_progress=True, **flags.batch_options, **options)
        scores = score_translations(texts, pairs)
        lines.append(f"{name:<10}BLEU {scores['bleu']:.2f}, chrF {scores['chrf']:.2f}")
        translations.append(texts)
    same = sum(before == after for before, after in zip(*translations, strict=True))
    return "\n".join([*lines, f"The same translation for {same:,} of {len(pairs):,} sentences."])


def main() -> None:
    """Round, write, compare, report."""
    flags, search = parse_arguments(__doc__, QuantizeFlags, OneBestFlags)
    for name in search.given if flags.file is None else ():
        raise ValueError(f"--{name} needs --file, whose sentences are translated. Pass both.")
    pairs = None if flags.file is None else flags.read_pairs(flags.file)
    before = flags.load()
    model = flags.model[0]
    card = find_file(model, CARD, {}) if flags.hub else Path(find_model(model), CARD)
    written = export_int8(before, flags.output, card)
    sys.stdout.write(f"{flags.output}: {written}\n")
    after = Translator.from_pretrained(flags.output)
    if pairs is not None:
        table = compare(flags, search, pairs, {"before": before, "int8": after})
        sys.stdout.write(f"{table}\n")
