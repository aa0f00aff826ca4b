"""Try a model in the browser: translate, classify or complete a text, and see the attention.

aiayn app
aiayn app --model runs/imdb --port 7861

Then open http://127.0.0.1:7860. Ctrl-C ends it.
"""

import logging
from dataclasses import dataclass
from typing import Any

from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
from transformers.hf_argparser import HfArg

from ..saved.loading import BUNDLED_MODEL, check_package, find_model
from ..translation.translator import Translator
from .command_line import parse_arguments
from .saved_model import DEVICE_HELP, default_device, load_with_tokenizer, saved_architecture
from .server_flags import ServerFlags
from .source_flags import SourceFlags

logger = logging.getLogger(__name__)

HEADS = {
    "AiaynForSequenceClassification": AutoModelForSequenceClassification,
    "AiaynForCausalLM": AutoModelForCausalLM,
}
# Example texts for the bundled models.
EXAMPLES = {
    "aiayn-en-de": [
        "A man rides a bicycle.",
        "Two children are playing football in the park.",
        "Where is the station? I have never been here before.",
    ],
    "aiayn-de-en": [
        "Ein Mann fährt Fahrrad.",
        "Zwei Kinder spielen im Park Fußball.",
        "Wo ist der Bahnhof? Ich war noch nie hier.",
    ],
}


@dataclass(kw_only=True)
class AppFlags(SourceFlags, ServerFlags):
    """The model, and the bounds of its page."""

    model: str = HfArg(
        default=BUNDLED_MODEL,
        help="Folder of a trained translator, classifier or language model, or a bundled model: "
        "aiayn-en-de (the default) or aiayn-de-en.",
    )
    hub: bool = HfArg(default=False, help="Load the model from the Hub.")
    examples: list[str] = HfArg(default_factory=list, help="Texts that a visitor can choose.")
    port: int = HfArg(default=7860, help="Port to listen on.")
    max_characters: int = HfArg(default=2000, help="Maximum number of characters in a text.")
    max_waiting: int = HfArg(default=100, help="Maximum number of waiting visitors.")
    device: str | None = HfArg(default=None, help=DEVICE_HELP)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_waiting < 1:
            raise ValueError(f"max_waiting must be at least 1, got {self.max_waiting}.")
        check_package("gradio", "app")
        check_package("sentencex", "documents")
        names = ("restore_case", "source_lang")
        self.flags_for_translators = [name for name in names if getattr(self, name)]
        self.set_source_lang(self.model, self.hub)


def make_page(flags: AppFlags) -> Any:
    """Load the model, and make the page for its kind."""
    from ..pages.text_pages import ClassificationPage, CompletionPage
    from ..pages.translation_page import TranslationPage
    from ..serving.batching import ModelThread

    thread, device = ModelThread(), default_device(flags.device)
    path = flags.model if flags.hub else find_model(flags.model)
    head = saved_architecture(path, flags.hub)
    title = flags.model.rstrip("/").rsplit("/", 1)[-1]
    if head not in HEADS:
        translator = thread(Translator.from_pretrained, flags.model, hub=flags.hub, device=device)
        examples = flags.examples or EXAMPLES.get(flags.model, [])
        return TranslationPage(
            translator,
            thread,
            title,
            flags.source_lang,
            flags.max_characters,
            examples,
            flags.prepare_sentence,
        ).build()
    for name in flags.flags_for_translators:
        raise ValueError(f"--{name} is for translators, and {path} holds {head}.")
    model, tokenizer = thread(load_with_tokenizer, HEADS[head], flags.model, flags.hub)
    kind = ClassificationPage if head == "AiaynForSequenceClassification" else CompletionPage
    model.eval().to(device)
    return kind(model, tokenizer, thread, title, flags.max_characters, flags.examples).build()


def listen(flags: AppFlags) -> None:
    """Show the page until it is stopped."""
    flags.open_port().close()  # gradio's own error names things that a user does not have
    page = make_page(flags)
    from ..pages.parts import LAUNCH_OPTIONS

    logger.info("Listening on %s.", flags.address)
    page.queue(max_size=flags.max_waiting).launch(
        server_name=flags.host,
        server_port=flags.port,
        share=False,
        **LAUNCH_OPTIONS,
    )


def main() -> None:
    """Load, listen."""
    (flags,) = parse_arguments(__doc__, AppFlags)
    listen(flags)
