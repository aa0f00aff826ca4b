r"""Draw the attention of a translation model, a classifier or a language model on a text.

aiayn show-attention --model runs/demo --text "The old man sees the dog."
aiayn show-attention --model runs/demo --text "The old man sees the dog." \
    --kind encoder --attention 1,3 --words --output head.svg
aiayn show-attention --model runs/imdb --text "Not bad at all." --output attention.html
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers.hf_argparser import HfArg

from ..inspection.attention_page import write_attention_page
from ..inspection.attention_weights import (
    KINDS,
    AttentionMaps,
    attention_maps,
    text_attention_maps,
)
from ..inspection.heat_maps import draw_attention
from ..inspection.pictures import PICTURE_ENDINGS, check_ending
from ..translation.processes import default_device
from .command_line import parse_arguments
from .flags import (
    LanguageFlags,
    ModelFlags,
    OneBestFlags,
    check_outputs,
    given_options,
    load_translator,
    load_with_tokenizer,
    saved_architecture,
)

PAGE_ENDING = ".html"
# The classes of models that read one text.
TEXT_MODELS = ("AiaynForSequenceClassification", "AiaynForCausalLM", "AiaynEncoderModel")


@dataclass
class PictureFlags:
    text: str = HfArg(help="Sentence to translate, or text to classify or read.")
    target: str | None = HfArg(default=None, help="Translation. Default: the model's own.")
    output: str = HfArg(default="attention.png", help="A .png, a .svg, or an interactive .html.")
    kind: str | None = HfArg(
        default=None, help="Default: cross if the model has it.", metadata={"choices": KINDS}
    )
    attention: str = HfArg(
        default="layers",
        help="layers (means over heads), heads, or one map: mean, LAYER or LAYER,HEAD, from 0.",
    )
    words: bool = HfArg(default=False, help="Show words instead of sub-words.")


def load_maps(
    flags: ModelFlags, languages: LanguageFlags, search: dict[str, Any], picture: PictureFlags
) -> AttentionMaps:
    name = flags.model[0]
    architecture = saved_architecture(name, flags.hub)
    if architecture not in TEXT_MODELS:
        translator = load_translator(flags, None, languages)
        return attention_maps(translator, picture.text, picture.target, **search)
    model, tokenizer = load_with_tokenizer(architecture, name, flags.hub, dtype=flags.dtype)
    return text_attention_maps(model.to(default_device(flags.device)), tokenizer, picture.text)


def main() -> None:
    flags, languages, search, picture = parse_arguments(
        __doc__, ModelFlags, LanguageFlags, OneBestFlags, PictureFlags
    )
    check_ending(picture.output, (*PICTURE_ENDINGS, PAGE_ENDING))
    check_outputs({"--output": picture.output}, [])
    maps = load_maps(flags, languages, given_options(search), picture)
    if Path(picture.output).suffix.lower() == PAGE_ENDING:
        write_attention_page(maps, picture.output)
    else:
        view = (maps.merged() if picture.words else maps).view(picture.kind)
        draw_attention(view, picture.attention, picture.output)
    arrow = f" -> {' '.join(maps.target.words)}" if maps.source and maps.target else ""
    sys.stdout.write(f"{picture.text}{arrow}: {picture.output}\n")
