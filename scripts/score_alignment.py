"""Score attention over the source as word alignment: error rate by layer and head.

python scripts/score_alignment.py --model runs/demo
python scripts/score_alignment.py --model runs/wmt14 --source a.en --target a.de --gold a.pharaoh

Without files the pairs and links are those of the embedded grammar. The best attention is chosen on
the first half of the pairs and scored on the second.
"""

import sys
from dataclasses import dataclass, field

from modeling_aiayn.command_line import parse_arguments, run_script
from modeling_aiayn.inspection.alignment_arguments import GoldArguments
from modeling_aiayn.inspection.alignment_matrix import draw_alignment_matrix, word_attention_maps
from modeling_aiayn.inspection.alignment_scores import alignment_table, score_attentions
from modeling_aiayn.inspection.pictures import check_ending
from modeling_aiayn.translation.arguments import TranslatorArguments


@dataclass
class PictureArguments:
    """What to draw."""

    picture: str | None = field(
        default=None,
        metadata={"help": "A .png or .svg to draw: the last pair's attention, and its links."},
    )


def main() -> None:
    """Read, align, report."""
    arguments, gold, files = parse_arguments(
        __doc__, TranslatorArguments, GoldArguments, PictureArguments
    )
    if files.picture is not None:
        check_ending(files.picture)
    pairs = gold.read()
    translator = arguments.load()
    half = len(pairs) // 2
    first, second = (score_attentions(translator, part) for part in (pairs[:half], pairs[half:]))
    best = min(first, key=lambda choice: first[choice].error_rate)
    sys.stdout.write(f"{alignment_table(second)}\n")
    sys.stdout.write(f"Best on the first half: {alignment_table({best: second[best]})}\n")
    sys.stdout.write(f"By that attention: translate.py --alignment {best.flag}\n")
    if files.picture is not None:
        maps = word_attention_maps(translator, pairs[-1])
        draw_alignment_matrix(maps, best, pairs[-1], files.picture)


if __name__ == "__main__":
    run_script(main)
