"""Make a lexical shortlist: it speeds up translation with a large vocabulary.

aiayn make-shortlist --model runs/wmt14 --file data/train --output runs/wmt14/shortlist.safetensors

Then: aiayn translate --model runs/wmt14 --shortlist runs/wmt14/shortlist.safetensors. The model
reads the sentence pairs, and its attention tells which words translate which.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from transformers.hf_argparser import HfArg

from ..corpus import files_of, parse_columns, read_pairs
from ..inspection.lexical_links import count_links
from ..tokenization import vocabulary_sha256
from ..translation.shortlist import Shortlist
from ..whole_files import new_file
from .command_line import parse_arguments
from .output_files import check_outputs, files_of_models
from .translator_flags import TranslatorFlags


@dataclass(kw_only=True)
class ShortlistFlags(TranslatorFlags):
    """The sentence pairs, the file to write, and its size."""

    file: str = HfArg(
        help="Sentence pairs: a .tsv or .jsonl file, or the common prefix of two line-aligned "
        "files. Each may end in .gz. The pairs that the model was trained on serve best."
    )
    output: str = HfArg(help="File to write, .safetensors.")
    source_lang: str = HfArg(default="en", help="Source language.")
    target_lang: str = HfArg(default="de", help="Target language.")
    columns: str | None = HfArg(
        default=None, help="Languages of the two columns of a .tsv file, as in en,de."
    )
    per_token: int = HfArg(default=100, help="Target tokens of each source token, at most.")
    frequent: int = HfArg(
        default=100, help="Number of the most frequent target tokens, which are always offered."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("per_token", "frequent"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.engine != "torch" or len(self.model) > 1:
            raise ValueError("make-shortlist needs one model, and the engine torch.")
        inputs = {
            "--file": files_of(self.file, self.source_lang, self.target_lang),
            "--model": [] if self.hub else files_of_models(self.model),
        }
        check_outputs({"--output": self.output}, inputs)


def main() -> None:
    """Read, count, write."""
    (flags,) = parse_arguments(__doc__, ShortlistFlags)
    columns = parse_columns(flags.columns)
    pairs = read_pairs(flags.file, flags.source_lang, flags.target_lang, columns)
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
    )
    with new_file(Path(flags.output)) as unfinished:
        shortlist.save(unfinished)
    size = Path(flags.output).stat().st_size / 1e6
    linked = len(shortlist.ids) / counts.sources
    sys.stdout.write(
        f"{flags.output}: {linked:.1f} target tokens for each source token, {size:.1f} MB\n"
    )
