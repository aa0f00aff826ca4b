"""Shorten paths for published model cards, which must not show private folders."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path


def without_folders(command: Sequence[str]) -> str:
    """Shorten absolute paths in a command to the last folder and the name; hide home folders."""
    words = []
    for word in command:
        flag, equals, value = word.rpartition("=")
        path = Path(os.path.expanduser(value))
        if _is_home(path):
            value = "~"
        elif path.is_absolute():
            value = "/".join(path.parts[-2:] if _has_public_folder(path) else path.parts[-1:])
        words.append(flag + equals + value)
    return shlex.join(words)


def corpus_name(file: str) -> str:
    """The name of a corpus: the folder of its file, or the file if the folder is private."""
    path = Path(file).resolve()
    return path.parent.name if _has_public_folder(path) else path.name


def _has_public_folder(path: Path) -> bool:
    return path.parent != Path("/") and not _is_home(path.parent)


def _is_home(path: Path) -> bool:
    return path == Path(os.path.expanduser("~")) or path.parent in map(Path, ("/home", "/Users"))
