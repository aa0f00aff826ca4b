"""The fields of a request: JSON, a form with or without a file, or a query."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

BODY_SECONDS = 30  # maximum time for receiving a body
MAX_FIELDS = 1000
FORM, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
CLOSED = "The connection was closed."


async def read_fields(request: Request, limit: int, message: str) -> dict[str, Any]:
    """Read the fields of a request; repeated fields of a form or a query become a list.

    A file becomes an `Upload`. A body of more than limit bytes is rejected with message.
    """
    kind = request.headers.get("content-type", "").lower()
    body = _body(request, limit, message)
    fields = _merged(request.query_params.multi_items())
    try:
        if kind.startswith(MULTIPART):
            sizes = {"max_files": 1, "max_fields": MAX_FIELDS, "max_part_size": limit}
            form = await MultiPartParser(request.headers, body, **sizes).parse()
            return fields | _merged([(n, await _value(x)) for n, x in form.multi_items()])
        text = b"".join([part async for part in body]).decode("utf-8")
        if kind.startswith(FORM):
            pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS)
            return fields | _merged(pairs)
        found = json.loads(text) if text or not fields else {}
    except (ValueError, RecursionError, MultiPartException) as error:
        reason = getattr(error, "message", error)
        text = f"The request must be JSON or a form in UTF-8: {reason}"
        raise HTTPException(400, text) from error
    if not isinstance(found, dict):
        raise HTTPException(400, 'The request must be a JSON object, as in {"q": "A text."}.')
    return fields | found


class Upload(NamedTuple):
    """A file of a form."""

    name: str
    content: bytes


async def _value(value: UploadFile | str) -> Upload | str:
    if isinstance(value, str):
        return value
    content = await value.read()
    await value.close()
    return Upload(value.filename or "", content)


def _merged(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, list[Any]] = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return {name: values if len(values) > 1 else values[0] for name, values in fields.items()}


async def _body(request: Request, limit: int, message: str) -> AsyncGenerator[bytes, None]:
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise HTTPException(413, message)
                yield part
    except TimeoutError:
        text = f"The request did not arrive within {BODY_SECONDS} seconds."
        raise HTTPException(408, text) from None
    except ClientDisconnect:  # the client cannot read this answer
        raise HTTPException(400, CLOSED) from None
