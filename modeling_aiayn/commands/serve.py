"""Translate over HTTP, by LibreTranslate's interface.

aiayn serve --port 5000
aiayn serve --directions aiayn-en-de aiayn-de-en
curl 127.0.0.1:5000/translate -d q="A dog runs." -d source=en -d target=de

SIGTERM and Ctrl-C end the server after the requests that are under way, or after a minute. SIGHUP
reads --api_keys again.
"""

import asyncio
import logging
import signal
import socket
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from transformers.hf_argparser import HfArg

from ..documents.formats import FORMATS
from ..saved.languages import Languages, choose_languages
from ..translation.translator import check_package
from .command_line import parse_arguments
from .flags import (
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
    api_keys: str = HfArg(
        default=None, help="YAML file: {NAME: {key: KEY, requests: 60/minute, ...}}. Default: none."
    )
    directions: list[str] = HfArg(
        default_factory=list,
        help="Models of different directions, instead of --model. They share a computing thread.",
    )
    allow_origins: list[str] = HfArg(
        default_factory=list,
        help="Pages that may use the server from a browser: https://example.org, or * for all.",
    )
    max_file_bytes: int = HfArg(default=10_000_000, help="Maximum size of a file.")


def address(server: ServerFlags) -> str:
    host = f"[{server.host}]" if ":" in server.host else server.host
    return f"http://{host}:{server.port}"


def open_port(server: ServerFlags) -> socket.socket:
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    return socket.create_server((server.host, server.port), family=family)


def served_directions(
    model: ModelFlags,
    engine: EngineFlags,
    source: SourceFlags,
    thread: Any,
    max_waiting: int,
    options: dict[str, Any],
) -> dict[Languages, Any]:
    """Load a model, and serve its direction, or all directions of a multilingual model."""
    from ..serving.service import every_direction, served_model

    languages = choose_languages(source.source_lang, source.target_lang, model.model[0], model.hub)
    translator = thread(load_translator, model, engine, source)
    _, prepare = sentence_preparation(source, model)
    is_open = translator.languages and not (source.source_lang or source.target_lang)
    name = Path(model.model[0]).name if is_open else "-".join(languages)
    if is_open:
        translator.set_languages(*translator.directions[0])  # for the test translations
    served = served_model(translator, thread, prepare, max_waiting, name, **options)
    return every_direction(served, translator.directions) if is_open else {languages: served}


def main() -> None:
    model, engine, batch, search, source, server, flags = parse_arguments(
        __doc__,
        *(ModelFlags, EngineFlags, BatchFlags, OneBestFlags, SourceFlags, ServerFlags, ServeFlags),
    )
    for text_format in FORMATS.values():
        text_format.check_packages()
    for package in ("hypercorn", "multipart", "py3langid"):
        check_package(package, "server")
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    from ..serving.batching import ModelThread
    from ..serving.keys import ApiKeys
    from ..serving.service import Service, make_app

    if (engine.glossary or engine.memory) and len(flags.directions) > 1:
        raise ValueError("--glossary and --memory are for one direction: give one --model.")
    keys = ApiKeys(flags.api_keys) if flags.api_keys else None
    thread = ModelThread()
    options = asdict(batch) | given_options(search)
    directions: dict[Languages, Any] = {}
    for chosen in [replace(model, model=[name]) for name in flags.directions] or [model]:
        found = served_directions(chosen, engine, source, thread, server.max_waiting, options)
        if twice := directions.keys() & found.keys():
            raise ValueError(f"Two models translate from {' to '.join(min(twice))}. Remove one.")
        directions |= found
    service = Service(directions, server.max_characters, keys, flags.max_file_bytes)
    app: Any = make_app(service, flags.allow_origins)
    config = Config()
    config.errorlog = logger  # also logs the address
    config.include_server_header, config.graceful_timeout = False, 60
    config.bind = f"fd://{open_port(server).detach()}"

    async def run() -> None:
        if keys and hasattr(signal, "SIGHUP"):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, keys.read)
        await serve(app, config)

    asyncio.run(run())
