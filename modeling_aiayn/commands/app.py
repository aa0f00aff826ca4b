"""Try a model in the browser: translate, classify or complete a text, and see the attention.

aiayn app
aiayn app --model runs/imdb --port 7861

Then open http://127.0.0.1:7860. Ctrl-C ends it.
"""

import logging
from dataclasses import dataclass
from typing import Any

from transformers.hf_argparser import HfArg

from ..translation.processes import default_device
from ..translation.translator import check_package
from .command_line import parse_arguments
from .flags import (
    ModelFlags,
    ServerFlags,
    SourceFlags,
    load_translator,
    load_with_tokenizer,
    saved_architecture,
    sentence_preparation,
)
from .serve import address, open_port

logger = logging.getLogger(__name__)

# Defaults of the flags of a page's server.
BOUNDS: dict[str, Any] = {"port": 7860, "max_characters": 2000, "max_waiting": 100}
# Example texts for the bundled models.
EXAMPLES = {
    "aiayn-en-de": ["A man rides a bicycle.", "Where is the station? I have never been here."],
    "aiayn-de-en": ["Ein Mann fährt Fahrrad.", "Wo ist der Bahnhof? Ich war noch nie hier."],
}


@dataclass
class AppFlags:
    examples: list[str] = HfArg(default_factory=list, help="Texts that a visitor can choose.")


def make_page(
    model_flags: ModelFlags, source: SourceFlags, max_characters: int, examples: list[str]
) -> Any:
    from ..pages.text_pages import ClassificationPage, CompletionPage
    from ..pages.translation_page import TranslationPage
    from ..serving.batching import ModelThread

    thread, name = ModelThread(), model_flags.model[0]
    kinds: dict[str, Any] = {
        "AiaynForSequenceClassification": ClassificationPage,
        "AiaynForCausalLM": CompletionPage,
    }
    head = saved_architecture(name, model_flags.hub)
    title = name.rstrip("/").rsplit("/", 1)[-1]
    if head in kinds:
        model, tokenizer = thread(load_with_tokenizer, head, name, model_flags.hub)
        model.eval().to(default_device(model_flags.device))
        return kinds[head](model, tokenizer, thread, title, max_characters, examples).build()
    language, prepare = sentence_preparation(source, model_flags)
    translator = thread(load_translator, model_flags, None, source)
    examples = examples or EXAMPLES.get(name, [])
    page = TranslationPage(translator, thread, title, language, max_characters, examples, prepare)
    return page.build()


def main() -> None:
    flags = (ModelFlags, SourceFlags, ServerFlags, AppFlags)
    listen(*parse_arguments(__doc__, *flags, **BOUNDS))


def listen(model: ModelFlags, source: SourceFlags, server: ServerFlags, flags: AppFlags) -> None:
    check_package("gradio", "app")
    open_port(server).close()  # gradio's own error would confuse users
    page = make_page(model, source, server.max_characters, flags.examples)
    from ..pages.parts import LAUNCH_OPTIONS

    logger.info("Listening on %s.", address(server))
    page.queue(max_size=server.max_waiting).launch(
        server_name=server.host, server_port=server.port, share=False, **LAUNCH_OPTIONS
    )
