"""Score a model or a file of translations on sentence pairs (sacreBLEU and chrF).

aiayn evaluate-translation --model runs/multi30k --file data/test_2016_flickr
aiayn evaluate-translation --hypotheses out.de --file data/test_2016_flickr

Each score is printed with its signature. For a model, the perplexity is printed too. A file of
hypotheses has one line per source sentence, as `aiayn translate` writes it.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers.hf_argparser import HfArg

from ..data.corpus import skip_empty
from ..data.lines import read_lines
from ..data.metrics import moses_bleu
from ..saved.loading import check_package
from ..saved.whole_files import write_file
from ..translation.evaluation import (
    evaluate_translation,
    lines_for_all_rows,
    score_table,
    score_translations,
    with_translations,
)
from .command_line import parse_arguments
from .output_files import check_outputs, files_of_models
from .pair_flags import PAIRS_HELP, PairFlags
from .search_flags import OneBestFlags, changed_flags
from .translator_flags import TranslatorFlags


@dataclass(kw_only=True)
class EvaluationFlags(PairFlags, TranslatorFlags):
    """The model or translations to score, the sentence pairs, and files for the results."""

    model: list[str] = HfArg(
        default_factory=list, help="Folder of a trained model, as for translate."
    )
    hypotheses: str | None = HfArg(
        default=None, help="File of translations to score, instead of a model."
    )
    file: str = HfArg(help=PAIRS_HELP)
    moses: bool = HfArg(
        default=False, help="Also compute BLEU on lower-cased Moses tokens, as Multi30k papers do."
    )
    scores: str | None = HfArg(default=None, help="JSON file to write the scores to.")
    translations: str | None = HfArg(default=None, help="File to write the translations to.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.model) == (self.hypotheses is not None):
            raise ValueError("Give either --model or --hypotheses.")
        if self.moses:
            check_package("sacremoses", "interop")
        inputs = {
            "--file": self.files_of_pairs(self.file),
            "--hypotheses": [] if self.hypotheses is None else [Path(self.hypotheses)],
            "--model": files_of_models(self.model),
        }
        check_outputs({"--scores": self.scores, "--translations": self.translations}, inputs)

    def check_search(self, search: OneBestFlags) -> None:
        """Check that flags of a model and its search come with a model."""
        unused = changed_flags(self, TranslatorFlags) | search.given
        if self.hypotheses is not None and unused:
            raise ValueError(f"--{next(iter(unused))} is for --model. Leave it out.")

    def write(self, scores: dict[str, Any], lines: Sequence[str]) -> None:
        """Write the scores, and the translations of all lines, to the files that flags name."""
        if self.translations is not None:
            write_file(Path(self.translations), "\n".join([*lines, ""]))
        if self.scores is not None:
            write_file(Path(self.scores), json.dumps(scores, indent=2) + "\n")


def main() -> None:
    """Read, translate, score, report."""
    flags, search = parse_arguments(__doc__, EvaluationFlags, OneBestFlags)
    flags.check_search(search)
    rows = flags.read_rows(flags.file)
    if flags.hypotheses is not None:
        rows = with_translations(rows, read_lines(flags.hypotheses))
    pairs = skip_empty(rows, flags.file)
    if flags.hypotheses is not None:
        translations = list(pairs["translation"])
        scores = score_translations(translations, pairs)
    else:
        translator = flags.load()
        options = vars(search.options_for(translator))
        scores, translations = evaluate_translation(
            translator, pairs, **flags.batch_options, **options
        )
    if flags.moses:
        scores |= moses_bleu(translations, list(pairs["target"]), flags.target_lang)
    try:
        # Nothing is lost if a file cannot be written, or if nobody reads stdout.
        sys.stdout.write(f"{score_table(scores)}\n")
        sys.stdout.flush()
    finally:
        flags.write(scores, lines_for_all_rows(rows, translations))
