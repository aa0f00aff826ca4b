"""The standard streams of a command."""

import io
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

STREAMS = {1: "stdout", 2: "stderr"}


class StandardStream(io.FileIO):
    """stdout or stderr. If a log cannot be written, drop it and warn on the other stream."""

    def __init__(self, number: int, is_log: bool) -> None:
        super().__init__(number, "wb", closefd=False)
        self._number = number
        self.is_log = is_log

    def write(self, data: "Buffer") -> int:
        """Write bytes; return how many were written."""
        try:
            return super().write(data)
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._number)
            os.close(nowhere)
            name, other = STREAMS[self._number], 3 - self._number
            if not self.is_log:
                raise OSError(error.errno, error.strerror, name) from error
            warning = f"WARNING {name} cannot be written ({error.strerror}). The job continues.\n"
            with suppress(OSError):
                os.write(other, warning.encode())
            return memoryview(data).nbytes


def protect_streams(is_stdout_log: bool) -> None:
    """Make stdout (in UTF-8) and stderr `StandardStream`s, unless a caller replaced them."""
    for number, name in STREAMS.items():
        stream = getattr(sys, name)
        is_windows_console = os.name == "nt" and stream.isatty()  # it does not accept bytes
        if stream is not getattr(sys, f"__{name}__") or is_windows_console:
            continue
        raw = StandardStream(number, is_log=number == 2 or is_stdout_log)
        wrapped = io.TextIOWrapper(
            io.BufferedWriter(raw),
            "utf-8" if number == 1 else stream.encoding,
            stream.errors,
            line_buffering=raw.is_log or stream.isatty(),
            write_through=stream.write_through,
        )
        setattr(sys, name, wrapped)
