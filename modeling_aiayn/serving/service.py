"""LibreTranslate's HTTP interface: /translate, /languages and /health; /metrics for Prometheus.

Source: https://docs.libretranslate.com/api/operations/translate/.
"""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any
from urllib.parse import parse_qs

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from torch import Tensor

from ..documents.document import Document
from ..documents.formats import FORMATS
from ..saved.languages import Languages, iso_639, known_language
from ..tokenization import replace_surrogates
from ..translation import Translator
from ..translation.pools import MAX_TOKENS_PER_BATCH, SourceText
from ..translation.segments.word_attention import word_attention
from .batching import Batcher, ModelThread, QueueFullError
from .keys import ApiKeys
from .monitoring import BATCHES, TOKENS, WAITING, Monitor

# Bytes of a body for each character of its texts, and for its other fields, at most.
BYTES_PER_CHARACTER, OTHER_BYTES = 12, 10_000
BODY_SECONDS = 30  # until a body has arrived
FORM = "application/x-www-form-urlencoded"
CLOSED = "The connection was closed."


@dataclass(frozen=True)
class ServedModel:
    """A model that translates in one direction.

    is_too_long tells whether a sentence has more tokens than the model takes; attention returns the
    attention of a translation to its source, which places markup. as_item makes a sentence an item
    of the batcher, which may be that of several directions.
    """

    batcher: Batcher
    is_too_long: Callable[[str], bool]
    attention: Callable[..., Tensor]
    as_item: Callable[[str], Any] = str

    async def translate(self, documents: Sequence[Document]) -> list[str]:
        """Translate texts."""
        sentences = [sentence for document in documents for sentence in document.sentences]
        translations = iter(await self.batcher([*map(self.as_item, sentences)]))
        return [
            await self._joined(document, [next(translations) for _ in document.sentences])
            for document in documents
        ]

    async def _joined(self, document: Document, translations: list[str]) -> str:
        join = partial(document.translated, translations, self.attention)
        return await self.batcher.run(join) if document.has_marks else join()


def served_model(
    translator: Translator,
    thread: ModelThread,
    prepare: Callable[..., str],
    max_waiting: int,
    direction: str,
    *,
    batch_size: int,
    max_tokens_per_batch: int = MAX_TOKENS_PER_BATCH,
    **options: Any,
) -> ServedModel:
    """A translator as a served model; several may share a thread.

    prepare returns a sentence as the model gets it, by its language if there are several. direction
    is its name in the metrics, and options are those of calling the translator. A first translation
    shows an unusable model, and makes the first request fast. The second measures one sentence
    alone. While small requests share the server, a batch takes twice that time. So a small request,
    which waits for the end of one batch and is part of the next, takes at most four times as long
    as alone.
    """

    def prepared(sentence: str, languages: Languages | None) -> str:
        return prepare(sentence, iso_639(languages[0])) if languages else prepare(sentence)

    def translate(sentences: list[SourceText]) -> list[str]:
        pool = [
            given._replace(number=number, text=prepared(given.text, given.languages))
            for number, given in enumerate(sentences)
        ]
        found = translator.translate_pool(pool, search, batch_size, max_tokens_per_batch)
        translations = [best.text for best, *_ in found]
        BATCHES.labels(direction).observe(len(sentences))
        tokens = translator.target_tokenizer(translations).input_ids
        TOKENS.labels(direction).inc(sum(map(len, tokens)))
        return translations

    search = translator.search_options(**options)
    for _ in range(2):
        started = time.perf_counter()
        thread(translator, [prepare("A sentence of a few words.")], **options)
    shared_seconds = 2 * (time.perf_counter() - started)
    batcher = Batcher(translate, batch_size, max_waiting, thread, shared_seconds)
    WAITING.labels(direction).set_function(lambda: batcher.waiting)

    def attention(source: str, target: str, languages: Languages | None = None) -> Tensor:
        directed = translator.directed(languages)
        return word_attention(directed, prepared(source, languages), target)

    return ServedModel(
        batcher,
        lambda sentence: translator.is_too_long(prepare(sentence)),
        attention,
        partial(SourceText, 0),
    )


def every_direction(
    served: ServedModel, directions: Sequence[Languages]
) -> dict[Languages, ServedModel]:
    """A served model of several languages for each direction, in batches of all together."""
    return {
        pair: replace(
            served,
            attention=partial(served.attention, languages=pair),
            as_item=partial(SourceText, 0, languages=pair),
        )
        for pair in directions
    }


@dataclass(frozen=True)
class Service:
    """Models by source and target language; with keys, a request for a translation needs one."""

    directions: Mapping[tuple[str, str], ServedModel]
    max_characters: int
    keys: ApiKeys | None = None

    @cached_property
    def _languages(self) -> list[list[tuple[str, ...]]]:
        """The sources and the targets of each model."""
        of_models: dict[Batcher, list[Languages]] = {}
        for pair, model in self.directions.items():
            of_models.setdefault(model.batcher, []).append(pair)
        return [
            [tuple(dict.fromkeys(side)) for side in zip(*pairs, strict=True)]
            for pairs in of_models.values()
        ]

    async def translate(self, request: Request) -> JSONResponse:
        """Answer POST /translate with "translatedText": a text, or a list if "q" is one."""
        fields = _parsed(await self._body(request), request.headers.get("content-type", ""))
        texts = self._texts(fields)
        self._use(request, fields, sum(map(len, texts)))
        (source, target), model = self._direction_and_model(fields)
        format_name = fields.get("format", "text")
        if format_name not in FORMATS:
            names = " or ".join(FORMATS)
            raise HTTPException(400, f"format must be {names}, got {format_name!r}.")
        languages = (iso_639(source), iso_639(target))
        documents = [Document(text, format_name, *languages) for text in texts]
        sentences = (sentence for document in documents for sentence in document.sentences)
        for sentence in filter(model.is_too_long, sentences):
            text = f"A sentence is too long for the model: {sentence[:60]!r}... Split it."
            raise HTTPException(413, text)
        try:
            translations = await _while_connected(request, model.translate(documents))
        except QueueFullError as error:
            text = "The server is busy. Try again in a moment."
            raise HTTPException(429, text, {"Retry-After": "1"}) from error
        is_list = isinstance(fields["q"], list)
        return JSONResponse({"translatedText": translations if is_list else translations[0]})

    async def languages(self, _: Request) -> JSONResponse:
        """Answer GET /languages."""
        targets: dict[str, list[str]] = {}
        for source, target in self.directions:
            targets.setdefault(source, []).append(target)
            targets.setdefault(target, [])
        return JSONResponse(
            [{"code": code, "name": code, "targets": some} for code, some in targets.items()]
        )

    async def health(self, _: Request) -> JSONResponse:
        """Answer GET /health."""
        return JSONResponse({"status": "ok"})

    async def metrics(self, _: Request) -> Response:
        """Answer GET /metrics."""
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    def _use(self, request: Request, fields: Mapping[str, Any], characters: int) -> None:
        request.state.facts["characters"] = characters
        if self.keys is not None:
            bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
            client = self.keys.client(str(fields.get("api_key") or bearer))
            request.state.facts["key"] = client
            self.keys.use(client, "requests", 1)
            self.keys.use(client, "characters", characters)

    async def _body(self, request: Request) -> bytes:
        limit = BYTES_PER_CHARACTER * self.max_characters + OTHER_BYTES
        parts, size = [], 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for part in request.stream():
                    size += len(part)
                    if size > limit:
                        raise HTTPException(413, self._limit)
                    parts.append(part)
        except TimeoutError:
            text = f"The request did not arrive within {BODY_SECONDS} seconds."
            raise HTTPException(408, text) from None
        except ClientDisconnect:  # nobody reads the answer
            raise HTTPException(400, CLOSED) from None
        return b"".join(parts)

    @property
    def _limit(self) -> str:
        return f"The texts of a request must have at most {self.max_characters:,} characters."

    def _texts(self, fields: Mapping[str, Any]) -> Sequence[str]:
        given = fields.get("q")
        texts: list[Any] = given if isinstance(given, list) else [given]
        if not texts or not all(isinstance(text, str) for text in texts):
            raise HTTPException(400, "q must be a text or a list of texts.")
        if sum(map(len, texts)) > self.max_characters:
            raise HTTPException(413, self._limit)
        return [replace_surrogates(text) for text in texts]

    def _direction_and_model(self, fields: Mapping[str, Any]) -> tuple[Languages, ServedModel]:
        given, wanted = str(fields.get("source", "auto")), str(fields.get("target"))
        found: list[Any] = []
        for sources, targets in self._languages:  # a name may mean other languages to other models
            target = known_language(wanted, targets)
            some = sources if given == "auto" else [known_language(given, sources)]
            found += [(x, target) for x in some if (x, target) in self.directions]
        if len(found) == 1 or (found and given != "auto"):  # without a choice, auto is clear
            return found[0], self.directions[found[0]]
        served = " and ".join(f"from {a} to {b}" for a, b in [*self.directions][:2])
        if len(self.directions) > 2:
            served += f" and {len(self.directions) - 2:,} more (GET /languages)"
        text = f"This server translates {served}, got source {given!r} and target {wanted!r}."
        raise HTTPException(400, text)


def _parsed(body: bytes, content_type: str) -> dict[str, Any]:
    """The fields of a request: JSON, or a form."""
    content_type = content_type.lower()
    if content_type.startswith("multipart/"):
        raise HTTPException(415, f"Send JSON, or a form as {FORM}, got {content_type!r}.")
    try:
        text = body.decode("utf-8")
        if content_type.startswith(FORM):
            form = parse_qs(text, keep_blank_values=True, max_num_fields=1000)
            return {name: values if len(values) > 1 else values[0] for name, values in form.items()}
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"The request must be JSON or a form in UTF-8: {error}") from error
    if not isinstance(fields, dict):
        raise HTTPException(400, 'The request must be a JSON object, as in {"q": "A text."}.')
    return fields


async def _while_connected(request: Request, work: Coroutine[Any, Any, list[str]]) -> list[str]:
    """The result of work, which is cancelled if the client goes; its body has been read."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():  # nobody reads the answer
            raise HTTPException(400, CLOSED)
        return task.result()
    finally:
        gone.cancel()
        task.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _refusal(_: Request, error: Exception) -> JSONResponse:
    """The answer to a request that is refused, or has failed for a reason that stays in the log."""
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)
    return JSONResponse({"error": "The translation failed."}, 500)


def make_app(service: Service) -> Monitor:
    """The application of a service."""
    routes = [
        Route("/translate", service.translate, methods=["POST"]),
        Route("/languages", service.languages, methods=["GET"]),
        Route("/health", service.health, methods=["GET"]),
        Route("/metrics", service.metrics, methods=["GET"]),
    ]
    handlers: Any = {HTTPException: _refusal, Exception: _refusal}
    return Monitor(Starlette(routes=routes, exception_handlers=handlers))
