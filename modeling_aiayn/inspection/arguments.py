"""What the script that shows attention is told, and what it does by that."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from ..command_line import default_device
from ..loading import load_checked
from ..modeling_aiayn import AiaynEncoderModel
from ..translation.arguments import TranslatorArguments
from ..translation.options import SearchOptions
from .alignment import AttentionChoice
from .attention_page import write_attention_page
from .attention_weights import KINDS, AttentionMaps, attention_maps, text_attention_maps
from .heat_maps import draw_head_grid, draw_heat_map, draw_layers
from .pictures import PICTURE_ENDINGS, check_ending

PAGE_ENDING = ".html"
# Models that read one text; each is loaded by what its configuration says it is.
TEXT_MODELS: dict[str, Any] = {
    "AiaynForSequenceClassification": AutoModelForSequenceClassification,
    "AiaynForCausalLM": AutoModelForCausalLM,
    "AiaynEncoderModel": AiaynEncoderModel,
}


@dataclass
class ShowingArguments:
    """Of which text to show what, and where to put it.

    Raises:
        ValueError: The output's ending is none that can be written, or takes no choice.
    """

    text: str = field(metadata={"help": "A sentence; for a classifier or language model a text."})
    target: str | None = field(
        default=None, metadata={"help": "Its translation; default: the model's own."}
    )
    output: str = field(
        default="attention.png",
        metadata={"help": "A picture, .png or .svg, or .html: a page with everything in it."},
    )
    kind: str | None = field(
        default=None,
        metadata={
            "help": "A picture's: encoder or decoder, each over itself, or cross, over the source; "
            "default: cross where there is one.",
            "choices": KINDS,
        },
    )
    attention: str | None = field(
        default=None,
        metadata={
            "help": "A picture's: layers, a map of each, its heads averaged (the default); heads, "
            "a grid of all; or one map: mean, LAYER, or LAYER,HEAD, counted from 0."
        },
    )
    words: bool = field(
        default=False, metadata={"help": "Show words in the place of their sub-words."}
    )

    def __post_init__(self) -> None:
        ending = check_ending(self.output, (*PICTURE_ENDINGS, PAGE_ENDING))
        if ending == PAGE_ENDING and (self.kind, self.attention, self.words) != (None, None, False):
            raise ValueError("kind, attention and words are for pictures: a page lets you pick.")
        if self.attention not in (None, "layers", "heads"):
            AttentionChoice.parse(self.attention)

    def show(self, maps: AttentionMaps) -> None:
        """Draw what is asked for.

        Args:
            maps: The weights.

        Raises:
            OSError: The file cannot be written.
            ValueError: The model has no such attention.
        """
        if check_ending(self.output, (*PICTURE_ENDINGS, PAGE_ENDING)) == PAGE_ENDING:
            return write_attention_page(maps, self.output)
        view = (maps.merged() if self.words else maps).view(self.kind)
        if self.attention in (None, "layers"):
            return draw_layers(view, self.output)
        if self.attention == "heads":
            return draw_head_grid(view, self.output)
        return draw_heat_map(view, AttentionChoice.parse(str(self.attention)), self.output)


def load_maps(
    model: TranslatorArguments, options: SearchOptions, text: str, target: str | None = None
) -> AttentionMaps:
    """Attention of the model that arguments name, over a text.

    Args:
        model: Which model: a translator's, a classifier's, an encoder's or a language model's.
        options: How a translator searches, without a target.
        text: The text.
        target: Its translation. None: the translator's own.

    Returns:
        The weights.

    Raises:
        OSError: There is no such model.
        ValueError: A target or a way to search is given to a model that does not translate.
    """
    architecture = _architecture(model)
    if architecture not in TEXT_MODELS:
        standard = vars(SearchOptions())
        search = {name: value for name, value in vars(options).items() if value != standard[name]}
        return attention_maps(model.load(), text, target, **search)
    loading = {name: getattr(model, name) for name in ("model", "hub", "dtype", "device")}
    is_plain = model == TranslatorArguments(**loading) and len(model.model) == 1
    if target is not None or options != SearchOptions() or not is_plain:
        raise ValueError(
            f"{model.model[0]} is an {architecture}, which does not translate: it takes one text, "
            "one model, and no target, search or batches."
        )
    options_of_load: dict[str, Any] = {
        "trust_remote_code": False,
        "local_files_only": not model.hub,
    }
    loaded = load_checked(
        TEXT_MODELS[architecture], model.model[0], hub=model.hub, dtype=model.dtype
    )
    tokenizer = AutoTokenizer.from_pretrained(model.model[0], **options_of_load)
    return text_attention_maps(loaded.to(default_device(model.device)), tokenizer, text)


def _architecture(model: TranslatorArguments) -> str:
    """The class that a model was saved as; "" where loading a translator says what is wrong."""
    path = model.model[0]
    if model.engine != "torch" or not (model.hub or Path(path, "config.json").is_file()):
        return ""
    config = AutoConfig.from_pretrained(
        path, trust_remote_code=False, local_files_only=not model.hub
    )
    return next(iter(config.architectures or []), "")
