r"""Read the lines of UTF-8 texts, plain or .gz.

Lines end at \n only; a \r before it and a byte-order mark are removed. Error messages name the file
and the line.
"""

import gzip
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from .parsing import parse_json

logger = logging.getLogger(__name__)

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def open_binary(path: str | Path) -> BinaryIO:
    """Open a file, plain or .gz, for reading bytes."""
    opened: Any = gzip.open if str(path).endswith(".gz") else open
    file: BinaryIO = opened(path, "rb")
    return file


def read_lines(path: str | Path) -> list[str]:
    """Read the lines of a text file, plain or .gz.

    Raises:
        OSError: The file cannot be read.
        ValueError: A line is not UTF-8.
    """
    return [_decode_line(line, where) for where, line in _raw_lines(open_binary(path), str(path))]


def read_json_lines(path: str | Path) -> Iterator[tuple[str, Any]]:
    """Read a .jsonl file: the place of each line, as path:number, and its JSON value.

    Blank lines are skipped.

    Raises:
        OSError: The file cannot be read.
        ValueError: A line is not UTF-8 or not JSON.
    """
    for number, line in enumerate(read_lines(path), start=1):
        where = f"{path}:{number}"
        if line.strip():
            yield where, parse_json(line, where)


def stream_lines(source: str | Path | BinaryIO) -> Iterator[str]:
    """Read lines one at a time, split as in `read_lines`.

    Invalid UTF-8 is replaced with U+FFFD and a warning is logged; other lines are not affected.

    Args:
        source: A text file, plain or .gz, or an open binary file.

    Raises:
        OSError: The file cannot be read.
    """
    name = "stdin"
    if isinstance(source, (str, Path)):
        name, source = str(source), open_binary(source)
    for where, line in _raw_lines(source, name):
        try:
            yield _decode_line(line, where)
        except ValueError as error:
            logger.warning("%s Invalid bytes were replaced with U+FFFD.", error)
            yield line.decode("utf-8", "replace").replace("\0", "\ufffd").removesuffix("\r")


def _raw_lines(file: BinaryIO, name: str) -> Iterator[tuple[str, bytes]]:
    """The place of each line, as name:number, and its bytes; closes the file at the end."""
    with file:
        for number, line in enumerate(file, start=1):
            text = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
            yield f"{name}:{number}", text.removesuffix(b"\n")


def _decode_line(line: bytes, where: str) -> str:
    if b"\0" in line:
        raise ValueError(
            f"{where}: not UTF-8: the line has NUL bytes, as UTF-16 has. Convert it to UTF-8."
        )
    try:
        return line.decode("utf-8").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{where}: not UTF-8 (byte 0x{line[error.start]:02x} at position {error.start} of the "
            "line). Convert it to UTF-8."
        ) from error
