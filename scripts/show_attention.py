"""Show what a model looks at: a translator at a sentence, a classifier or language model at a text.

python scripts/show_attention.py --model runs/demo --text "The old man sees the dog."
python scripts/show_attention.py --model runs/demo --text "The old man sees the dog." \
    --kind encoder --attention 1,3 --words --output head.svg
python scripts/show_attention.py --model runs/imdb --text "Not bad at all." --output attention.html
"""

import sys

from modeling_aiayn.command_line import parse_arguments, run_script
from modeling_aiayn.inspection.arguments import ShowingArguments, load_maps
from modeling_aiayn.translation.arguments import TranslatorArguments
from modeling_aiayn.translation.options import SearchOptions


def main() -> None:
    """Look, draw, and say what was drawn."""
    arguments, options, showing = parse_arguments(
        __doc__, TranslatorArguments, SearchOptions, ShowingArguments
    )
    maps = load_maps(arguments, options, showing.text, showing.target)
    showing.show(maps)
    said = f" -> {' '.join(maps.target.words)}" if maps.source and maps.target else ""
    sys.stdout.write(f"{showing.text}{said}: {showing.output}\n")


if __name__ == "__main__":
    run_script(main)
