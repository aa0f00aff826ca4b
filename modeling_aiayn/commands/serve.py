"""Translate over HTTP, by LibreTranslate's interface.

aiayn serve --port 5000
curl 127.0.0.1:5000/translate -d q="A dog runs." -d source=en -d target=de

Texts may have several sentences and lines. SIGTERM and Ctrl-C end the server after the requests
that are under way, or after a minute.
"""

import logging
from contextlib import suppress
from dataclasses import dataclass

from torch import Tensor
from transformers.hf_argparser import HfArg

from ..documents.formats import FORMATS
from ..saved.languages import choose_languages
from ..saved.loading import BUNDLED_MODEL, check_package
from .command_line import parse_arguments
from .search_flags import OneBestFlags
from .server_flags import ServerFlags
from .source_flags import SourceFlags
from .translator_flags import MODEL_OR_BUNDLED, TranslatorFlags

logger = logging.getLogger(__name__)

# A server that is told to end waits so long for the requests under way.
SHUTDOWN_SECONDS = 60


@dataclass(kw_only=True)
class ServeFlags(SourceFlags, ServerFlags, TranslatorFlags):
    """The address, the languages, and the bounds of a server."""

    model: list[str] = HfArg(default_factory=lambda: [BUNDLED_MODEL], help=MODEL_OR_BUNDLED)
    target_lang: str = HfArg(default=None, help="Target language. Default: the model's, or de.")
    max_waiting: int = HfArg(
        default=2000, help="Maximum number of waiting sentences; further requests get status 429."
    )

    def __post_init__(self) -> None:
        ServerFlags.__post_init__(self)
        TranslatorFlags.__post_init__(self)
        self.source_lang, self.target_lang = choose_languages(
            self.source_lang, self.target_lang, self.model[0], self.hub
        )
        if self.max_waiting < 1:
            raise ValueError(f"max_waiting must be at least 1, got {self.max_waiting}.")
        for text_format in FORMATS.values():
            text_format.check_packages()
        for package in ("starlette", "uvicorn"):
            check_package(package, "server")


def main() -> None:
    """Load, try, listen."""
    flags, search = parse_arguments(__doc__, ServeFlags, OneBestFlags)
    import uvicorn

    from ..documents.word_attention import word_attention
    from ..serving.batching import Batcher, ModelThread
    from ..serving.service import ServedModel, Service, make_app

    thread = ModelThread()
    translator = thread(flags.load)
    options = flags.batch_options | vars(search.options_for(translator))

    def translate(sentences: list[str]) -> list[str]:
        return translator([*map(flags.prepare_sentence, sentences)], **options)

    def attention(source: str, target: str) -> Tensor:
        return word_attention(translator, flags.prepare_sentence(source), target)

    # An unusable model shows here, and the first request is not slow.
    thread(translate, ["A test."])
    model = ServedModel(
        Batcher(translate, flags.batch_size, flags.max_waiting, thread),
        lambda sentence: translator.is_too_long(flags.prepare_sentence(sentence)),
        attention,
        [name for name, kind in FORMATS.items() if translator.models or not kind.has_markup],
    )
    service = Service({(flags.source_lang, flags.target_lang): model}, flags.max_characters)
    config = uvicorn.Config(
        make_app(service),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    with flags.open_port() as listener:
        logger.info("Listening on %s.", flags.address)
        with suppress(KeyboardInterrupt):  # uvicorn has answered the last request
            uvicorn.Server(config).run(sockets=[listener])
