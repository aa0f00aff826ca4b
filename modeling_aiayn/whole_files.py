"""Write files and folders whole or not at all, even if the process is killed.

Everything is written under another name first, forced to disk, and renamed in one step.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

# Holds files and folders that are not complete yet, and folders that are being deleted.
UNFINISHED_FOLDER = ".unfinished"


def write_file(path: Path, content: str) -> None:
    """Write or replace a text file in UTF-8; a kill leaves the file as it was before."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(content, "utf-8")
    force_to_disk(unfinished)
    unfinished.replace(path)
    force_to_disk(path.parent)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Write a new folder; it gets its name only once the block has ended without an error.

    Yields:
        An empty folder of the same name to write into, `unfinished_path(folder)`.

    Raises:
        FileExistsError: The folder exists and is not empty.
        OSError: The folder cannot be written.
    """
    check_unused(folder)
    unfinished = unfinished_path(folder)
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        _share_weights(unfinished)
        for path in (*unfinished.rglob("*"), unfinished):
            force_to_disk(path)
        unfinished.replace(folder)
        force_to_disk(folder.parent)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        _remove_if_empty(unfinished.parent)


@contextmanager
def replaced_files(folder: Path, weights: Sequence[str] = ()) -> Iterator[Path]:
    """Write files into a folder, replacing those of the same names after the block has ended.

    Args:
        folder: Created if it is missing.
        weights: Patterns of the names of weight files. If a pattern has new files, its old ones
            are deleted before any new file arrives, and new weights arrive last: a kill in between
            leaves a folder without weights, never one with files of two models.

    Yields:
        An empty folder to write into.

    Raises:
        OSError: A file cannot be written; the folder is then as it was before.
    """
    unfinished = folder / UNFINISHED_FOLDER / "files"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        _share_weights(unfinished)
        files = [path for path in sorted(unfinished.rglob("*")) if path.is_file()]
        for path in files:
            force_to_disk(path)
        last = [new for pattern in weights for new in unfinished.glob(pattern)]
        for pattern in weights:
            if any(unfinished.glob(pattern)):
                for earlier in folder.glob(pattern):
                    earlier.unlink()
        force_to_disk(folder)
        for path in sorted(files, key=last.__contains__):
            target = folder / path.relative_to(unfinished)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
        force_to_disk(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        _remove_if_empty(unfinished.parent)


def delete_folder(folder: Path) -> None:
    """Delete a folder; a kill leaves it whole or gone."""
    doomed = unfinished_path(folder.with_name(f"deleted-{folder.name}"))
    shutil.rmtree(doomed, ignore_errors=True)
    doomed.parent.mkdir(exist_ok=True)
    folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)
    _remove_if_empty(doomed.parent)


def unfinished_path(folder: Path) -> Path:
    """The path at which `new_folder` writes a folder until it is complete."""
    return folder.parent / UNFINISHED_FOLDER / folder.name


def check_unused(folder: Path) -> None:
    """Check that a folder does not exist, or is empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} exists and is not empty. Give the name of a new folder.")


def force_to_disk(path: Path) -> None:
    """Wait until a file, or a folder's list of files, is on disk."""
    if os.name == "nt" and path.is_dir():  # Windows opens no folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _share_weights(folder: Path) -> None:
    """Make weights readable for everyone who may list the folder: safetensors hides them."""
    mode = folder.stat().st_mode & 0o666
    for path in folder.rglob("*.safetensors"):
        path.chmod(mode)


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()
