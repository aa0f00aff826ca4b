"""Write a translation model with weights in 8 bits: a quarter of the size, fastest on a CPU.

aiayn quantize --model runs/multi30k --output runs/multi30k-int8 --file data/test_2016_flickr

With --file, both models translate the sentence pairs, and the scores of both are printed.
"""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from transformers.hf_argparser import HfArg

from ..interop.int8_export import export_int8
from ..saved.folders import find_file
from ..saved.loading import find_model
from ..saved.whole_files import check_unused
from ..translation import Translator
from ..translation.evaluation import compare_translators
from .command_line import parse_arguments
from .flags import (
    PAIRS_HELP,
    BatchFlags,
    ModelFlags,
    OneBestFlags,
    OutputFlags,
    PairFlags,
    find_pairs,
    given_options,
    load_translator,
    read_pairs_of,
)


@dataclass
class QuantizeFlags:
    file: str | None = HfArg(default=None, help=PAIRS_HELP)


def main() -> None:
    model, output, batch, search, pair_flags, flags = parse_arguments(
        __doc__,
        *(ModelFlags, OutputFlags, BatchFlags, OneBestFlags, PairFlags, QuantizeFlags),
    )
    check_unused(Path(output.output))
    pairs = None
    if flags.file is not None:
        pair_flags, _ = find_pairs(pair_flags, model)
        pairs = read_pairs_of(pair_flags, flags.file)
    before = load_translator(model, None, pair_flags)
    name, card = model.model[0], "README.md"
    path = find_file(name, card, {}) if model.hub else Path(find_model(name), card)
    size, in_float32 = export_int8(before, output.output, path), 4 * before.model.num_parameters()
    sizes = f"{size / 1e6:.1f} MB; in float32 {in_float32 / 1e6:.1f} MB"
    sys.stdout.write(f"{output.output}: {sizes}\n")
    if pairs is not None:
        after = Translator.from_pretrained(output.output).directed(before.direction())
        translators = {"before": before, "int8": after}
        table = compare_translators(pairs, translators, asdict(batch) | given_options(search))
        sys.stdout.write(f"{table}\n")
