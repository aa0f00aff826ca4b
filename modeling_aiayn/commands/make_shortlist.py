"""Make a lexical shortlist: it speeds up translation with a large vocabulary.

aiayn make-shortlist --model runs/wmt14 --file data/train --output runs/wmt14/shortlist.safetensors

Then: aiayn translate --model runs/wmt14 --shortlist runs/wmt14/shortlist.safetensors
"""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from transformers.hf_argparser import HfArg

from ..inspection.alignment import count_links
from ..saved.folders import model_files
from ..saved.languages import saved_languages
from ..saved.loading import find_model
from ..saved.whole_files import new_file
from ..tokenization import vocabulary_sha256
from ..translation.shortlist import Shortlist
from .command_line import parse_arguments
from .flags import (
    PAIRS_HELP,
    BatchFlags,
    ModelFlags,
    PairFlags,
    check_outputs,
    find_pairs,
    load_translator,
    read_pairs_of,
)


@dataclass
class ShortlistFlags:
    file: str = HfArg(help=f"{PAIRS_HELP} The pairs that the model was trained on serve best.")
    output: str = HfArg(help="File to write, .safetensors.")
    per_token: int = HfArg(default=100, help="Maximum number of target tokens per source token.")
    frequent: int = HfArg(default=100, help="Number of frequent target tokens, for every batch.")


def main() -> None:
    model, batch, pair_flags, flags = parse_arguments(
        __doc__, ModelFlags, BatchFlags, PairFlags, ShortlistFlags
    )
    columns, files = find_pairs(pair_flags, model, flags.file)
    files += model_files(find_model(model.model[0]))
    check_outputs({"--output": flags.output}, files)
    pairs = read_pairs_of(columns, flags.file)
    translator = load_translator(model, None, columns)
    counts = count_links(translator, list(pairs["source"]), list(pairs["target"]), **asdict(batch))
    tokenizers = (translator.source_tokenizer, translator.target_tokenizer)
    shortlist = Shortlist.from_counts(
        counts,
        [vocabulary_sha256(tokenizer) for tokenizer in tokenizers],
        per_id=flags.per_token,
        frequent=flags.frequent,
        is_shared=translator.model.config.decoder_vocab_size is None,
        languages=translator.direction() or saved_languages(model.model[0], model.hub),
    )
    with new_file(Path(flags.output)) as unfinished:
        shortlist.save(unfinished)
    size, linked = Path(flags.output).stat().st_size / 1e6, len(shortlist.ids) / counts.sources
    tokens = f"{linked:.1f} target tokens for each source token"
    sys.stdout.write(f"{flags.output}: {tokens}, {size:.1f} MB\n")
