"""LibreTranslate's HTTP interface, with files and detection; /metrics for Prometheus.

Source: https://docs.libretranslate.com/api/operations/translate/.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeVar

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from torch import Tensor

from ..documents.document import Document
from ..documents.files import DocumentFile
from ..documents.formats import ENDINGS, FORMATS, TextFormat, format_of
from ..saved.languages import DEFAULT_LANGUAGES, Languages, iso_639, known_language
from ..tokenization import replace_surrogates
from ..translation import Translator
from ..translation.pools import MAX_TOKENS_PER_BATCH, SourceText
from ..translation.segments.word_attention import word_attention
from .batching import Batcher, ModelThread, QueueFullError
from .detection import detect
from .keys import ApiKeys
from .monitoring import BATCHES, TOKENS, WAITING, Monitor
from .requests import CLOSED, Upload, read_fields
from .translated_files import with_files

# Maximum bytes of a body, for each character of its texts and for its other fields.
BYTES_PER_CHARACTER, OTHER_BYTES = 12, 10_000
MAX_FILES = 2  # maximum number of files that are translated at a time
MAX_ALTERNATIVES = 5
BUSY = "The server is busy. Try again in a moment."
TEXT_FORMATS = [x.name for x in FORMATS.values() if x.members is None]
T = TypeVar("T")


@dataclass(frozen=True)
class ServedModel:
    """A model that translates in one direction.

    is_too_long returns whether a sentence has more tokens than the model accepts. attention returns
    the attention of a translation to its source, which places markup. several returns a given
    number of best translations for items of the batcher. as_item converts a sentence to such an
    item; several directions may share a batcher.
    """

    batcher: Batcher
    is_too_long: Callable[[str], bool]
    attention: Callable[..., Tensor]
    several: Callable[[list[Any], int], list[list[str]]]
    as_item: Callable[[str], Any] = str

    async def translate(self, documents: Sequence[Document], count: int) -> list[list[str]]:
        """Return at most `count` different translations of each text, best first."""
        sentences = [sentence for document in documents for sentence in document.sentences]
        found = iter(await self._best([*map(self.as_item, sentences)], count))
        texts: list[list[str]] = []
        for document in documents:
            best = [next(found) for _ in document.sentences]
            versions = [[some[min(n, len(some) - 1)] for some in best] for n in range(count)]
            joined = [await self._joined(document, version) for version in versions]
            texts.append([*dict.fromkeys(joined)])
        return texts

    async def _best(self, items: list[Any], count: int) -> list[list[str]]:
        if count == 1:
            return [[text] for text in await self.batcher(items)]
        size, best = self.batcher.batch_size, []
        for start in range(0, len(items), size):  # runs between other requests' batches
            job = partial(self.several, items[start : start + size], count)
            best += await self.batcher.run(job)
        return best

    async def translate_file(self, file: DocumentFile) -> bytes:
        """Translate a file."""
        found = await self.batcher([*map(self.as_item, file.sentences)])
        # Each attention is a separate job, so that other requests can run in between.
        attention = partial(self.batcher.thread, self.attention)
        return await asyncio.to_thread(file.translated, found, attention)

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
    """Serve a translator; several served models may share a thread.

    prepare converts a sentence for the model, by its language if there are several. direction is
    the model's name in the metrics; options are those of `Translator.__call__`. A first translation
    detects an unusable model and makes the first request fast. A second measures the time of one
    sentence. While small requests share the server, a batch takes twice this time. A small request
    waits for one batch and is part of the next, so it takes at most four times as long as alone.
    """

    def prepared(sentence: str, languages: Languages | None) -> str:
        return prepare(sentence, iso_639(languages[0])) if languages else prepare(sentence)

    def several(sentences: list[SourceText], count: int) -> list[list[str]]:
        pool = [
            given._replace(number=number, text=prepared(given.text, given.languages))
            for number, given in enumerate(sentences)
        ]
        rules = replace(search, num_beams=max(search.num_beams, count), nbest=count)
        found = translator.translate_pool(pool, rules, batch_size, max_tokens_per_batch)
        BATCHES.labels(direction).observe(len(sentences))
        TOKENS.labels(direction).inc(sum(len(best.token_ids) for best, *_ in found))
        return [[best.text for best in some] for some in found]

    def translate(sentences: list[SourceText]) -> list[str]:
        return [best for best, *_ in several(sentences, 1)]

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
        several,
        partial(SourceText, 0),
    )


def every_direction(
    served: ServedModel, directions: Sequence[Languages]
) -> dict[Languages, ServedModel]:
    """Return a served model for each direction of a multilingual model; they share batches."""
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
    """Models by source and target language. With keys, translation and detection require a key."""

    directions: Mapping[tuple[str, str], ServedModel]
    max_characters: int
    keys: ApiKeys | None = None
    max_file_bytes: int = 10_000_000
    _running: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_FILES))

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
        fields, texts = await self._fields_and_texts(request)
        self._use(request, fields, sum(map(len, texts)))
        (source, target), model, detected = self._direction_and_model(fields, " ".join(texts))
        format_name = fields.get("format", "text")
        if format_name not in TEXT_FORMATS:
            names = " or ".join(TEXT_FORMATS)
            raise HTTPException(400, f"format must be {names}, got {format_name!r}.")
        languages = (iso_639(source), iso_639(target))
        documents = [Document(text, format_name, *languages) for text in texts]
        try:
            sentences = [sentence for each in documents for sentence in each.sentences]
        except (ValueError, OSError) as error:  # the text is not in its format
            raise HTTPException(400, str(error)) from error
        _check_lengths(model, sentences)
        wanted = str(fields.get("alternatives") or 0)[:3]
        count = min(int(wanted), MAX_ALTERNATIVES) if wanted.isdecimal() else 0
        found = await _while_connected(request, model.translate(documents, 1 + count))
        best, others = [texts[0] for texts in found], [texts[1:] for texts in found]
        is_list = isinstance(fields["q"], list)
        answer: dict[str, Any] = {"translatedText": best if is_list else best[0]}
        if count:
            answer["alternatives"] = others if is_list else others[0]
        return JSONResponse(answer | detected)

    async def translate_file(self, request: Request) -> JSONResponse:
        """Answer POST /translate_file with "translatedFileUrl", from which the file is fetched."""
        size = self.max_file_bytes
        fields = await read_fields(
            request, size + OTHER_BYTES, f"A file must have at most {size:,} bytes."
        )
        file = fields.get("file")
        text_format = format_of(file.name) if isinstance(file, Upload) else None
        if text_format is None:
            raise HTTPException(400, f"file must be a file that ends in {' or '.join(ENDINGS)}.")
        if self._running.locked():
            raise HTTPException(429, BUSY, {"Retry-After": "10"})
        async with self._running:
            try:
                content = await self._translated_file(request, fields, text_format)
            except (ValueError, OSError) as error:  # the file is damaged
                raise HTTPException(400, str(error)) from error
        name = request.state.files.add(content, text_format.endings[0])
        return JSONResponse({"translatedFileUrl": f"{request.base_url}download_file/{name}"})

    async def _translated_file(
        self, request: Request, fields: Mapping[str, Any], text_format: TextFormat
    ) -> bytes:
        async def read(*languages: str) -> DocumentFile:
            file = DocumentFile(fields["file"].content, text_format.name, *languages)
            await asyncio.to_thread(lambda: file.sentences)
            return file

        client = self._client(request, fields)
        text = ""
        if fields.get("source", "auto") == "auto":
            text = " ".join((await read(DEFAULT_LANGUAGES[0])).sentences)
        (source, target), model, _ = self._direction_and_model(fields, text)
        file = await read(iso_639(source), iso_639(target))
        self._count(request, client, sum(map(len, file.sentences)))
        file.check_words()
        _check_lengths(model, file.sentences)
        return await _while_connected(request, model.translate_file(file))

    async def download_file(self, request: Request) -> Response:
        """Answer GET /download_file/NAME."""
        path = request.state.files.path(request.path_params["name"])
        if path is None:
            raise HTTPException(404, "The file does not exist or was deleted. Translate it again.")
        return FileResponse(path, filename=path.name)

    async def detect(self, request: Request) -> JSONResponse:
        """Answer POST /detect."""
        fields, (text, *_) = await self._fields_and_texts(request)
        self._use(request, fields, len(text))
        language, confidence = detect(text, dict.fromkeys(source for source, _ in self.directions))
        return JSONResponse([{"language": language, "confidence": confidence}])

    async def settings(self, _: Request) -> JSONResponse:
        """Answer GET /frontend/settings."""
        sides = zip(("source", "target"), next(iter(self.directions)), strict=True)
        return JSONResponse(
            {
                "apiKeys": self.keys is not None,
                "charLimit": self.max_characters,
                "frontendTimeout": 500,
                "keyRequired": self.keys is not None,
                "language": {side: {"code": code, "name": code} for side, code in sides},
                "suggestions": False,
                "supportedFilesFormat": ENDINGS,
            }
        )

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
        self._count(request, self._client(request, fields), characters)

    def _client(self, request: Request, fields: Mapping[str, Any]) -> str:
        """Check the key of a request, and count the request; return the client, "" without keys."""
        if self.keys is None:
            return ""
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        client = self.keys.client(str(fields.get("api_key") or bearer))
        request.state.facts["key"] = client
        self.keys.use(client, "requests", 1)
        return client

    def _count(self, request: Request, client: str, characters: int) -> None:
        request.state.facts["characters"] = characters
        if self.keys is not None:
            self.keys.use(client, "characters", characters)

    async def _fields_and_texts(self, request: Request) -> tuple[dict[str, Any], list[str]]:
        message = f"The texts of a request must have at most {self.max_characters:,} characters."
        limit = BYTES_PER_CHARACTER * self.max_characters + OTHER_BYTES
        fields = await read_fields(request, limit, message)
        given = fields.get("q")
        texts: list[Any] = given if isinstance(given, list) else [given]
        if not texts or not all(isinstance(text, str) for text in texts):
            raise HTTPException(400, "q must be a text or a list of texts.")
        if sum(map(len, texts)) > self.max_characters:
            raise HTTPException(413, message)
        return fields, [replace_surrogates(text).replace("\0", "\ufffd") for text in texts]

    def _direction_and_model(
        self, fields: Mapping[str, Any], text: str
    ) -> tuple[Languages, ServedModel, dict[str, Any]]:
        """Return the direction of a request, its model, and the detected language."""
        given, wanted = str(fields.get("source", "auto")), str(fields.get("target"))
        found: list[Languages] = []
        for sources, targets in self._languages:  # language names depend on the model
            target = known_language(wanted, targets)
            some = sources if given == "auto" else [known_language(given, sources)]
            found += [pair for x in some if (pair := (str(x), str(target))) in self.directions]
        detected: dict[str, Any] = {}
        if len(found) > 1 and given == "auto":
            language, confidence = detect(text, [source for source, _ in found])
            found = [pair for pair in found if pair[0] == language]
            detected = {"detectedLanguage": {"language": language, "confidence": confidence}}
        if found:
            return found[0], self.directions[found[0]], detected
        served = " and ".join(f"from {a} to {b}" for a, b in [*self.directions][:2])
        if len(self.directions) > 2:
            served += f" and {len(self.directions) - 2:,} more (GET /languages)"
        text = f"This server translates {served}, got source {given!r} and target {wanted!r}."
        raise HTTPException(400, text)


def _check_lengths(model: ServedModel, sentences: Iterable[str]) -> None:
    for sentence in filter(model.is_too_long, sentences):
        text = f"A sentence is too long for the model: {sentence[:60]!r}... Split it."
        raise HTTPException(413, text)


async def _while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await work, and cancel it if the client disconnects; the body must have been read."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():  # the client has disconnected
            raise HTTPException(400, CLOSED)
        return task.result()
    except QueueFullError as error:
        raise HTTPException(429, BUSY, {"Retry-After": "1"}) from error
    finally:
        gone.cancel()
        task.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _refusal(_: Request, error: Exception) -> JSONResponse:
    """Answer a rejected or failed request; only the log has the reason of a failure."""
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)
    return JSONResponse({"error": "The translation failed."}, 500)


def make_app(service: Service, allow_origins: Sequence[str] = ()) -> Monitor:
    """Make the application of a service; web pages of allow_origins may call it in a browser."""
    routes = [
        Route("/translate", service.translate, methods=["POST"]),
        Route("/translate_file", service.translate_file, methods=["POST"]),
        Route("/download_file/{name}", service.download_file),
        Route("/detect", service.detect, methods=["POST"]),
        Route("/languages", service.languages),
        Route("/frontend/settings", service.settings),
        Route("/health", service.health),
        Route("/metrics", service.metrics),
    ]
    handlers: Any = {HTTPException: _refusal, Exception: _refusal}
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=with_files)
    if allow_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=allow_origins, allow_methods=["*"], allow_headers=["*"]
        )
    return Monitor(app)
