r"""Write a teacher's translations as training pairs for a small, fast student (distillation).

aiayn distill --model runs/teacher --file data/train --output data/distilled.jsonl --num_beams 8
aiayn train-translation student.yaml --train_file data/distilled.jsonl data/train \
    --validation_file data/valid --output_dir runs/student

Of the hypotheses of each beam search, the one nearest to the reference is written.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from datasets import concatenate_datasets
from sacrebleu.metrics.bleu import BLEU
from transformers.hf_argparser import HfArg

from ..translation.pools import SourceText, source_texts
from ..translation.translator import Translation
from .command_line import parse_arguments
from .output_files import check_outputs, files_of_models, partial_path
from .pair_flags import PAIRS_HELP, PairFlags
from .search_flags import SearchFlags
from .stream_flags import StreamFlags


@dataclass(kw_only=True)
class DistillFlags(PairFlags, StreamFlags):
    """The pairs to translate, and the file to write."""

    file: list[str] = HfArg(help=f"{PAIRS_HELP} Several are concatenated.")
    output: str = HfArg(
        help="File to write, .jsonl or .jsonl.gz; until it is complete, its name ends in .partial."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.output.removesuffix(".gz").endswith(".jsonl"):
            raise ValueError(f"--output must end in .jsonl or .jsonl.gz, got {self.output}.")
        if self.source_lang == self.target_lang:  # they are the keys of a pair
            raise ValueError(f"source_lang and target_lang must differ, got {self.source_lang!r}.")
        outputs = {"--output": self.output, "The unfinished --output": partial_path(self.output)}
        check_outputs(outputs, self._inputs)

    @property
    def _inputs(self) -> dict[str, list[Path]]:
        return {
            "--file": self.files_of_pairs(*self.file),
            "--model": [] if self.hub else files_of_models(self.model),
            "--shortlist": [] if self.shortlist is None else [Path(self.shortlist)],
        }

    @property
    def input_files(self) -> list[Path]:
        """The files that the lines depend on."""
        return [path for files in self._inputs.values() for path in files]


@dataclass(frozen=True)
class DistillSearchFlags(SearchFlags):
    """As `SearchFlags`, with a choice among hypotheses."""

    nbest: int | None = HfArg(  # type: ignore[assignment]
        default=None,
        help="Number of hypotheses from which the one nearest to the reference is chosen. Default: "
        "all beams, or one sample.",
    )


def nearest(translations: list[Translation], reference: str) -> str:
    """The translation with the highest sentence BLEU, as in Kim & Rush 2016, section 3.3.

    Source: https://arxiv.org/abs/1606.07947. Of equal ones, it is the first.
    """
    bleu = BLEU(effective_order=True)
    texts = [each.text for each in translations]
    return max(texts, key=lambda text: bleu.sentence_score(text, [reference]).score)


def main() -> None:
    """Read, translate, choose, write."""
    flags, search = parse_arguments(__doc__, DistillFlags, DistillSearchFlags)
    pairs = concatenate_datasets([flags.read_pairs(file) for file in flags.file])
    references = list(pairs["target"])
    translator = flags.load()
    options = search.options_for(translator)
    if search.nbest is None and not options.do_sample:
        options = replace(options, nbest=options.num_beams)
    flags.check_earlier_lines(options)

    def lines(source: SourceText, translations: list[Translation]) -> list[str]:
        text = nearest(translations, references[source.number])
        pair = {flags.source_lang: source.text, flags.target_lang: text}
        return [json.dumps(pair, ensure_ascii=False)]

    flags.write(translator, source_texts(pairs["source"], None, None, 0), options, lines)
