"""Score a model or a file of translations on sentence pairs (sacreBLEU and chrF).

aiayn evaluate-translation --model runs/multi30k --file data/test_2016_flickr
aiayn evaluate-translation --hypotheses out.de --file data/test_2016_flickr

A file of hypotheses has one line per source sentence, as `aiayn translate` writes it. --baseline,
the hypotheses of another system, adds p-values of the difference (Koehn 2004: paired bootstrap).
"""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from datasets import Dataset
from transformers.hf_argparser import HfArg

from ..data.corpus import parse_columns, read_rows, skip_empty
from ..data.lines import read_lines
from ..data.metrics import moses_bleu, p_values
from ..saved.whole_files import write_file
from ..translation.evaluation import (
    REFERENCE,
    evaluate_translation,
    lines_for_all_rows,
    references_of,
    score_table,
    score_translations,
    with_translations,
)
from ..translation.translator import check_package
from .command_line import parse_arguments
from .flags import (
    PAIRS_HELP,
    BatchFlags,
    EngineFlags,
    ModelFlags,
    OneBestFlags,
    PairFlags,
    check_outputs,
    find_pairs,
    given_options,
    load_translator,
)


@dataclass
class EvaluationFlags:
    file: str = HfArg(help=PAIRS_HELP)
    hypotheses: str | None = HfArg(default=None, help="File of translations, instead of a model.")
    references: list[str] = HfArg(
        default_factory=list, help="Files of more references, each with a line per source sentence."
    )
    baseline: str | None = HfArg(default=None, help="File of another system's translations.")
    moses: bool = HfArg(default=False, help="Also compute BLEU on lower-cased Moses tokens.")
    scores_file: str | None = HfArg(default=None, help="JSON file to write the scores to.")
    translations: str | None = HfArg(default=None, help="File to write the translations to.")


def _rows(columns: PairFlags, flags: EvaluationFlags) -> Dataset:
    """Read all rows of the pairs; add columns of more references and of given translations."""
    languages = (columns.source_lang, columns.target_lang)
    rows = read_rows(flags.file, *languages, parse_columns(columns.columns))
    if flags.hypotheses is not None:
        rows = with_translations(rows, read_lines(flags.hypotheses))
    for number, file in enumerate(flags.references, start=2):
        rows = rows.add_column(f"{REFERENCE} {number}", read_lines(file))
    if flags.baseline is not None:
        rows = rows.add_column("baseline", read_lines(flags.baseline))
    return rows


def main() -> None:
    model, engine, batch, search, pair_flags, flags = parse_arguments(
        __doc__,
        *(ModelFlags, EngineFlags, BatchFlags, OneBestFlags, PairFlags, EvaluationFlags),
        model=None,
    )
    if (model.model is None) == (flags.hypotheses is None):
        raise ValueError("Give either --model or --hypotheses.")
    if flags.moses:
        check_package("sacremoses", "interop")
    columns, files = find_pairs(pair_flags, model, flags.file)
    outputs = {"--scores_file": flags.scores_file, "--translations": flags.translations}
    check_outputs(outputs, [*files, flags.hypotheses, flags.baseline, *flags.references])
    rows = _rows(columns, flags)
    pairs = skip_empty(rows, flags.file)
    if flags.hypotheses is not None:
        translations = list(pairs["translation"])
        scores = score_translations(translations, pairs)
    else:
        translator = load_translator(model, engine, columns)
        options = asdict(batch) | given_options(search)
        scores, translations = evaluate_translation(translator, pairs, **options)
    if flags.baseline is not None:
        scores |= p_values(translations, list(pairs["baseline"]), references_of(pairs))
    if flags.moses:
        scores |= moses_bleu(translations, list(pairs["target"]), columns.target_lang)
    try:
        # Print first, and write files even if stdout is closed, so that no score is lost.
        sys.stdout.write(f"{score_table(scores)}\n")
        sys.stdout.flush()
    finally:
        if flags.translations is not None:
            lines = lines_for_all_rows(rows, translations)
            write_file(Path(flags.translations), "\n".join([*lines, ""]))
        if flags.scores_file is not None:
            write_file(Path(flags.scores_file), json.dumps(scores, indent=2) + "\n")
