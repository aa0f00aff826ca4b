"""Score a model, or translations, on sentence pairs: sacreBLEU and chrF with signatures.

python scripts/evaluate_translation.py --model runs/multi30k --file data/test_2016_flickr
python scripts/evaluate_translation.py --hypotheses out.de --file data/test_2016_flickr

A model has its perplexity too. Hypotheses are what translate.py writes: a line for each source.
"""

import json
import sys
from pathlib import Path

from modeling_aiayn.command_line import parse_arguments, run_script
from modeling_aiayn.corpus import read_lines, without_empty
from modeling_aiayn.metrics import moses_bleu
from modeling_aiayn.translation.arguments import ModelOrHypotheses, PairArguments
from modeling_aiayn.translation.evaluation import (
    evaluate_translation,
    lines_for_all_rows,
    score_table,
    score_translations,
    with_translations,
)
from modeling_aiayn.translation.options import SearchOptions


def main() -> None:
    """Read, translate, score, report."""
    arguments, options, pair_arguments = parse_arguments(
        __doc__, ModelOrHypotheses, SearchOptions, PairArguments
    )
    rows = pair_arguments.rows()
    if arguments.hypotheses is not None:
        rows = with_translations(rows, read_lines(arguments.hypotheses))
    pairs = without_empty(rows, pair_arguments.file)
    if arguments.hypotheses is not None:
        translations = list(pairs["translation"])
        scores = score_translations(translations, pairs)
    else:
        scores, translations = evaluate_translation(
            arguments.load(), pairs, **arguments.batch_options, **vars(options)
        )
    if pair_arguments.moses:
        scores |= moses_bleu(translations, list(pairs["target"]), pair_arguments.target_lang)
    if pair_arguments.translations is not None:
        lines = lines_for_all_rows(rows, translations)
        Path(pair_arguments.translations).write_text("\n".join([*lines, ""]), "utf-8")
    if pair_arguments.scores is not None:
        Path(pair_arguments.scores).write_text(json.dumps(scores, indent=2) + "\n", "utf-8")
    sys.stdout.write(f"{score_table(scores)}\n")


if __name__ == "__main__":
    run_script(main)
