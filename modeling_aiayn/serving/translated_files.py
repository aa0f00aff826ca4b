"""Translated files, which clients fetch after the translation, as LibreTranslate has it."""

import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

MAX_FILES, MAX_SECONDS = 100, 600


class TranslatedFiles:
    """Keeps files in a folder for some minutes. Nobody can guess their names."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._files: dict[str, float] = {}  # the time of each

    def add(self, content: bytes, ending: str) -> str:
        """Keep a file; return its name."""
        name = f"{secrets.token_urlsafe(24)}{ending}"
        (self._folder / name).write_bytes(content)
        self._files[name] = time.monotonic()
        for old, added in [*self._files.items()]:
            if len(self._files) > MAX_FILES or time.monotonic() - added > MAX_SECONDS:
                del self._files[old]
                (self._folder / old).unlink()
        return name

    def path(self, name: str) -> Path | None:
        """The place of a file, if it is still here."""
        return self._folder / name if name in self._files else None


@asynccontextmanager
async def with_files(_: object) -> AsyncGenerator[dict[str, TranslatedFiles]]:
    """Give the requests of an application a folder, which is deleted at its end."""
    with TemporaryDirectory(prefix="aiayn-") as folder:
        yield {"files": TranslatedFiles(folder)}
