"""Score cross-attention as word alignment: error rate by layer and head.

aiayn score-alignment --model runs/demo
aiayn score-alignment --model runs/wmt14 --source a.en --target a.de --gold a.pharaoh

The best layer and head are chosen on the first half of the pairs and scored on the second half.
"""

import sys
from dataclasses import dataclass

from transformers.hf_argparser import HfArg

from ..inspection.alignment import maps_with_words
from ..inspection.alignment_scores import (
    GoldPair,
    alignment_table,
    embedded_gold,
    read_gold,
    score_attentions,
)
from ..inspection.heat_maps import draw_alignment_matrix
from ..inspection.pictures import check_ending
from ..saved.languages import DEFAULT_LANGUAGES, saved_languages
from .command_line import parse_arguments
from .flags import LanguageFlags, ModelFlags, check_outputs, load_translator


@dataclass
class AlignmentFlags:
    source: str | None = HfArg(default=None, help="File of tokenized sentences.")
    target: str | None = HfArg(default=None, help="File of their translations.")
    gold: str | None = HfArg(default=None, help="File of links: 0-0 is sure, 3p4 possible.")
    reversed: bool = HfArg(default=False, help="The links in --gold are written target-source.")
    pairs: int = HfArg(default=500, help="Number of pairs of the built-in grammar.")
    picture: str | None = HfArg(default=None, help="Draw the last pair to this .png or .svg file.")

    def __post_init__(self) -> None:
        named = [self.source, self.target, self.gold]
        if any(named) and not all(named):
            raise ValueError("--source, --target and --gold belong together: give all three.")
        if self.picture is not None:
            check_ending(self.picture)
            check_outputs({"--picture": self.picture}, [self.source, self.target, self.gold])


def read_pairs_with_links(flags: AlignmentFlags, model: ModelFlags) -> list[GoldPair]:
    if flags.source and flags.target and flags.gold:
        pairs = read_gold(flags.source, flags.target, flags.gold, flags.reversed)
    else:
        languages = saved_languages(model.model[0], model.hub) or DEFAULT_LANGUAGES
        if sorted(languages) != sorted(DEFAULT_LANGUAGES):
            direction = f"from {languages[0]} to {languages[1]}"
            raise ValueError(f"No grammar {direction}. Give --source, --target and --gold.")
        pairs = embedded_gold(flags.pairs, is_reversed=languages != DEFAULT_LANGUAGES)
    if len(pairs) < 2:
        raise ValueError(f"score-alignment needs at least 2 pairs, got {len(pairs)}.")
    return pairs


def main() -> None:
    model, languages, flags = parse_arguments(__doc__, ModelFlags, LanguageFlags, AlignmentFlags)
    pairs = read_pairs_with_links(flags, model)
    translator = load_translator(model, None, languages)
    half = len(pairs) // 2
    first, second = (score_attentions(translator, part) for part in (pairs[:half], pairs[half:]))
    best = min(first, key=lambda choice: first[choice].error_rate)
    try:
        # Print first, and draw the picture even if stdout is closed, so that nothing is lost.
        sys.stdout.write(f"{alignment_table(second)}\n")
        sys.stdout.write(f"Best on the first half: {alignment_table({best: second[best]})}\n")
        sys.stdout.write(f"To use it: aiayn translate --alignment {best.flag}\n")
        sys.stdout.flush()
    finally:
        if flags.picture is not None:
            last = pairs[-1]
            maps = maps_with_words(translator, last.source, last.target, last.words).merged()
            draw_alignment_matrix(maps, best, last, flags.picture)
