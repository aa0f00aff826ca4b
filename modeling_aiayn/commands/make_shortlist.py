"""Make a lexical shortlist: it speeds up translation with a large vocabulary.

aiayn make-shortlist --model runs/wmt14 --file data/train --output runs/wmt14/shortlist.safetensors

Then: aiayn translate --model runs/wmt14 --shortlist runs/wmt14/shortlist.safetensors. The model
reads the sentence pairs, and its attention tells which words translate which.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from transformers.hf_argparser import HfArg

from ..inspection.lexical_links import count_links
from ..saved.languages import saved_languages
from ..saved.whole_files import new_file
from ..tokenization import vocabulary_sha256
from ..translation.shortlist import Shortlist
from .command_line import parse_arguments
from .output_files import check_outputs, files_of_models
from .pair_flags import PAIRS_HELP, PairFlags
from .translator_flags import BatchFlags


@dataclass(kw_only=True)
class ShortlistFlags(PairFlags, BatchFlags):
    """The sentence pairs, the file to write, and its size."""

    file: str = HfArg(help=f"{PAIRS_HELP} The pairs that the model was trained on serve best.")
    output: str = HfArg(help="File to write, .safetensors.")
    per_token: int = HfArg(
        default=100, help="Maximum number of target tokens for each source token."
    )
    frequent: int = HfArg(
        default=100, help="Number of the most frequent target tokens, which every batch may use."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_not_int8("The model reads pairs here. Leave it out.")
        for name in ("per_token", "frequent"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        inputs = {
            "--file": self.files_of_pairs(self.file),
            "--model": [] if self.hub else files_of_models(self.model),
        }
        check_outputs({"--output": self.output}, inputs)


def main() -> None:
    """Read, count, write."""
    (flags,) = parse_arguments(__doc__, ShortlistFlags)
    pairs = flags.read_pairs(flags.file)
    translator = flags.load()
    counts = count_links(
        translator, list(pairs["source"]), list(pairs["target"]), **flags.batch_options
    )
    tokenizers = (translator.source_tokenizer, translator.target_tokenizer)
    shortlist = Shortlist.from_counts(
        counts,
        [vocabulary_sha256(each) for each in tokenizers],
        per_id=flags.per_token,
        frequent=flags.frequent,
        is_shared=translator.model.config.decoder_vocab_size is None,
        languages=saved_languages(flags.model[0], flags.hub),
    )
    with new_file(Path(flags.output)) as unfinished:
        shortlist.save(unfinished)
    size = Path(flags.output).stat().st_size / 1e6
    linked = len(shortlist.ids) / counts.sources
    sys.stdout.write(
        f"{flags.output}: {linked:.1f} target tokens for each source token, {size:.1f} MB\n"
    )
