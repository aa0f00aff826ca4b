"""Translate over HTTP, by LibreTranslate's interface.

aiayn serve --port 5000
curl 127.0.0.1:5000/translate -d q="A dog runs." -d source=en -d target=de

SIGTERM and Ctrl-C end the server after the requests that are under way, or after a minute.
"""

import logging
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass

from transformers.hf_argparser import HfArg

from ..documents.formats import FORMATS
from ..saved.languages import choose_languages
from ..translation.translator import check_package
from .command_line import parse_arguments
from .flags import (
    TARGET_LANG_HELP,
    BatchFlags,
    EngineFlags,
    ModelFlags,
    OneBestFlags,
    ServerFlags,
    SourceFlags,
    given_options,
    load_translator,
    sentence_preparation,
)

logger = logging.getLogger(__name__)


@dataclass
class ServeFlags:
    target_lang: str = HfArg(default=None, help=TARGET_LANG_HELP)


def address(server: ServerFlags) -> str:
    host = f"[{server.host}]" if ":" in server.host else server.host
    return f"http://{host}:{server.port}"


def open_port(server: ServerFlags) -> socket.socket:
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    return socket.create_server((server.host, server.port), family=family)


def main() -> None:
    model, engine, batch, search, source, server, flags = parse_arguments(
        __doc__,
        *(ModelFlags, EngineFlags, BatchFlags, OneBestFlags, SourceFlags, ServerFlags, ServeFlags),
    )
    for text_format in FORMATS.values():
        text_format.check_packages()
    for package in ("starlette", "uvicorn"):
        check_package(package, "server")
    source_lang, target_lang = choose_languages(
        source.source_lang, flags.target_lang, model.model[0], model.hub
    )
    import uvicorn

    from ..serving.batching import ModelThread
    from ..serving.service import Service, make_app, served_model

    thread = ModelThread()
    translator = thread(load_translator, model, engine)
    _, prepare = sentence_preparation(source, model)
    options = asdict(batch) | given_options(search)
    served = served_model(translator, thread, prepare, server.max_waiting, **options)
    service = Service({(source_lang, target_lang): served}, server.max_characters)
    config = uvicorn.Config(
        make_app(service),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=60,
    )
    with open_port(server) as listener:
        logger.info("Listening on %s.", address(server))
        with suppress(KeyboardInterrupt):  # uvicorn has answered the last request
            uvicorn.Server(config).run(sockets=[listener])
