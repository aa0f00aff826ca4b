"""Draw what the decoder looks at while it translates a sentence.

python scripts/draw_attention.py --model runs/demo --text "The old man sees the dog."
"""

import sys
from dataclasses import dataclass, field

from modeling_aiayn.command_line import parse_arguments, run_script
from modeling_aiayn.inspection.attention_maps import draw_cross_attention
from modeling_aiayn.inspection.attention_weights import cross_attention
from modeling_aiayn.translation.arguments import TranslatorArguments
from modeling_aiayn.translation.options import SearchOptions


@dataclass
class DrawingArguments:
    """What to draw, and where to put it."""

    text: str = field(metadata={"help": "A sentence."})
    target: str | None = field(
        default=None, metadata={"help": "Its translation; default: the model's own."}
    )
    output: str = field(default="attention.png", metadata={"help": "The PNG to write."})


def main() -> None:
    """Translate, look, draw."""
    arguments, options, drawing = parse_arguments(
        __doc__, TranslatorArguments, SearchOptions, DrawingArguments
    )
    translator = arguments.load()
    target = drawing.target or translator([drawing.text], **vars(options))[0]
    draw_cross_attention(cross_attention(translator, drawing.text, target), drawing.output)
    sys.stdout.write(f"{drawing.text} -> {target}: {drawing.output}\n")


if __name__ == "__main__":
    run_script(main)
