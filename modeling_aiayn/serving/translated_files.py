"""Translated files, which clients download after the translation, as in LibreTranslate."""

import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

MAX_FILES, MAX_SECONDS = 100, 600


class TranslatedFiles:
    """Keeps files in a folder for some minutes. Their names cannot be guessed."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._files: dict[str, float] = {}  # creation times

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
        """Return the path of a file, or None if it was deleted."""
        return self._folder / name if name in self._files else None


@asynccontextmanager
async def with_files(_: object) -> AsyncGenerator[dict[str, TranslatedFiles]]:
    """Give the requests of an application a folder; delete it when the application ends."""
    with TemporaryDirectory(prefix="aiayn-") as folder:
        yield {"files": TranslatedFiles(folder)}
