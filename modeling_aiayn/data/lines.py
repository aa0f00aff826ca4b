r"""Read lines of UTF-8 texts, plain or .gz. Lines end at \n; a \r before it is removed."""

import gzip
import hashlib
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from .parsing import parse_json

logger = logging.getLogger(__name__)

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def open_binary(path: str | Path) -> BinaryIO:
    """Open a file, plain or .gz, for reading bytes."""
    opened: Any = gzip.open if str(path).endswith(".gz") else open
    return opened(path, "rb")


def content_sha256(files: Iterable[Path]) -> str:
    """A hash of the contents of files, in hexadecimal."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def read_lines(path: str | Path) -> list[str]:
    """The lines of a text file, plain or .gz."""
    return [*decoded_lines(path)]


def decoded_lines(path: str | Path) -> Iterator[str]:
    """Read the lines of a text file one at a time; a line that is not UTF-8 is an error."""
    return (_decode_line(line, where) for where, line in _raw_lines(open_binary(path), str(path)))


def read_json_lines(path: str | Path) -> Iterator[tuple[str, Any]]:
    """Yield path:number and the value of each line of a .jsonl file; skip blank lines."""
    for number, line in enumerate(decoded_lines(path), start=1):
        if line.strip():
            yield f"{path}:{number}", parse_json(line, f"{path}:{number}")


def stream_lines(source: str | Path | BinaryIO) -> Iterator[str]:
    """Read lines of a file or an open binary file one at a time, split as in `read_lines`.

    Invalid UTF-8 is replaced with U+FFFD and a warning is logged; other lines are not affected.
    """
    name = "stdin"
    if isinstance(source, (str, Path)):
        name, source = str(source), open_binary(source)
    for where, line in _raw_lines(source, name):
        if b"\0" in line:
            raise ValueError(
                f"{where}: NUL bytes: not a text in UTF-8, but UTF-16 or another format. Convert "
                "it, or name its --format."
            )
        try:
            yield _decode_line(line, where)
        except ValueError as error:
            logger.warning("%s Invalid bytes were replaced with U+FFFD.", error)
            yield line.decode("utf-8", "replace").removesuffix("\r")


def _raw_lines(file: BinaryIO, name: str) -> Iterator[tuple[str, bytes]]:
    """Yield name:number and the bytes of each line; close the file at the end."""
    with file:
        for number, line in enumerate(file, start=1):
            text = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
            yield f"{name}:{number}", text.removesuffix(b"\n")


def _decode_line(line: bytes, where: str) -> str:
    if b"\0" in line:
        raise ValueError(f"{where}: not UTF-8: NUL bytes, as UTF-16 has. Convert it to UTF-8.")
    try:
        return line.decode("utf-8").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{where}: not UTF-8 (byte 0x{line[error.start]:02x} at position {error.start} of the "
            "line). Convert it to UTF-8."
        ) from error
