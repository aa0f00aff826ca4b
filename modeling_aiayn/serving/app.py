"""LibreTranslate's HTTP interface for one model: /translate, /languages and /health.

Source: https://docs.libretranslate.com/api/operations/translate/.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from ..data.parsing import parse_json
from ..documents.document import Document
from ..documents.placement import Attention
from ..translation.whole_texts import SplitText
from .batching import Batcher, QueueFullError

# A body has at most so many bytes for each character of its texts, and for its other fields.
BYTES_PER_CHARACTER = 12
OTHER_BYTES = 10_000
FORM = "application/x-www-form-urlencoded"
# A body that takes longer to arrive is given up.
BODY_SECONDS = 30
CLOSED = "The connection was closed."


@dataclass(frozen=True)
class Service:
    """A translation service.

    Args:
        batcher: Translates sentences.
        source_lang: Source language, an ISO 639 code.
        target_lang: Target language.
        max_characters: Characters of the texts of a request, at most.
        is_too_long: Whether a sentence has more tokens than the model takes.
        attention: Returns the attention of a translation to its source, from which the tags of HTML
            get their places.
        formats: Formats of a text that are accepted. "html" needs a model that gives attention.
    """

    batcher: Batcher
    source_lang: str
    target_lang: str
    max_characters: int
    is_too_long: Callable[[str], bool]
    attention: Attention
    formats: Sequence[str] = ("text", "html")

    async def translate(self, request: Request) -> JSONResponse:
        """Answer POST /translate with "translatedText": a text, or a list if "q" is one."""
        fields = _parsed(await self._body(request), request.headers.get("content-type", ""))
        texts = self._texts(fields)
        split = [self._split(text, fields.get("format", "text")) for text in texts]
        sentences = [sentence for each in split for sentence in each.sentences]
        for sentence in filter(self.is_too_long, sentences):
            text = f"A sentence is too long for the model: {sentence[:60]!r}... Split it."
            raise HTTPException(413, text)
        try:
            translations = await _while_connected(request, self._translated(split, sentences))
        except QueueFullError as error:
            text = "The server is busy. Try again in a moment."
            raise HTTPException(429, text, {"Retry-After": "1"}) from error
        is_list = isinstance(fields["q"], list)
        return JSONResponse({"translatedText": translations if is_list else translations[0]})

    async def _translated(
        self, split: Sequence[SplitText | Document], sentences: Sequence[str]
    ) -> list[str]:
        """The translated texts; sentences are those of all of them."""
        remaining = iter(await self.batcher(sentences))
        return [
            await self._joined(each, [next(remaining) for _ in each.sentences]) for each in split
        ]

    def _split(self, text: str, kind: str) -> SplitText | Document:
        """Split a text or an HTML document into sentences."""
        if kind == "html":
            return Document.of(text, kind, self.source_lang)
        return SplitText.of(text, self.source_lang)

    async def _joined(self, split: SplitText | Document, translations: list[str]) -> str:
        """The text or document with the translations of its sentences."""
        if isinstance(split, SplitText):
            return split.joined(translations)
        return await self.batcher.run(partial(split.translated, translations, self.attention))

    async def languages(self, _: Request) -> JSONResponse:
        """Answer GET /languages."""
        targets = {self.source_lang: [self.target_lang], self.target_lang: []}
        answer = [{"code": code, "name": code, "targets": its} for code, its in targets.items()]
        return JSONResponse(answer)

    async def health(self, _: Request) -> JSONResponse:
        """Answer GET /health."""
        return JSONResponse({"status": "ok"})

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
            raise HTTPException(
                408, f"The request did not arrive within {BODY_SECONDS} seconds."
            ) from None
        except ClientDisconnect:  # nobody reads the answer
            raise HTTPException(400, CLOSED) from None
        return b"".join(parts)

    @property
    def _limit(self) -> str:
        return f"The texts of a request must have at most {self.max_characters:,} characters."

    def _texts(self, fields: Mapping[str, Any]) -> Sequence[str]:
        """The texts of a request, after all fields have been checked."""
        given = fields.get("q")
        texts: list[Any] = given if isinstance(given, list) else [given]
        if not texts or not all(isinstance(text, str) for text in texts):
            raise HTTPException(400, "q must be a text or a list of texts.")
        if sum(map(len, texts)) > self.max_characters:
            raise HTTPException(413, self._limit)
        source, target = fields.get("source", "auto"), fields.get("target")
        if source not in ("auto", self.source_lang) or target != self.target_lang:
            raise HTTPException(
                400,
                f"This server translates from {self.source_lang} to {self.target_lang}, got "
                f"source {source!r} and target {target!r}.",
            )
        if fields.get("format", "text") not in self.formats:
            names = " or ".join(self.formats)
            raise HTTPException(400, f"format must be {names}, got {fields['format']!r}.")
        return texts


def _parsed(body: bytes, content_type: str) -> dict[str, Any]:
    """The fields of a request: JSON, or a form."""
    content_type = content_type.lower()
    if content_type.startswith("multipart/"):
        raise HTTPException(415, f"Send JSON, or a form as {FORM}, got {content_type!r}.")
    try:
        text = body.decode("utf-8")
        if content_type.startswith(FORM):
            values = parse_qs(text, keep_blank_values=True, max_num_fields=1000)
            return {name: each if len(each) > 1 else each[0] for name, each in values.items()}
        fields = parse_json(text, "The request")
    except ValueError as error:
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
    """Return when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _refusal(_: Request, error: Exception) -> JSONResponse:
    """The answer to a request that is refused, or has failed for a reason that stays in the log."""
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)
    return JSONResponse({"error": "The translation failed."}, 500)


def make_app(service: Service) -> Starlette:
    """The application of a service."""
    routes = [
        Route("/translate", service.translate, methods=["POST"]),
        Route("/languages", service.languages, methods=["GET"]),
        Route("/health", service.health, methods=["GET"]),
    ]
    handlers: Any = {HTTPException: _refusal, Exception: _refusal}
    return Starlette(routes=routes, exception_handlers=handlers)
