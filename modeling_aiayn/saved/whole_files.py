"""Write files and folders atomically: under another name, flushed to disk, then renamed."""

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

# Holds files and folders that are not complete yet, and folders that are being deleted.
UNFINISHED_FOLDER = ".unfinished"


def write_file(path: Path, content: str) -> None:
    """Write or replace a text file in UTF-8; if the process is killed, the old file stays."""
    with new_file(path) as unfinished:
        unfinished.write_text(content, "utf-8", newline="\n")


@contextmanager
def new_file(path: str | Path, kept: str | None = None) -> Iterator[Path]:
    """Write or replace a file, but only after the block has ended without an error.

    Yields the path to write to: a hidden file with the same ending, which is deleted after an
    error. With `kept`, it is the path plus this ending, and stays after an error. A complete file
    that cannot be renamed also stays. Links are followed; devices and pipes are written directly.
    """
    if Path(path).exists() and not Path(path).is_file():
        yield Path(path)
        return
    path = Path(path).resolve()
    unfinished = path.with_name(f"{path.name}{kept}" if kept else f".unfinished-{path.name}")
    if kept is None:  # it may be a link that somebody else made
        unfinished.unlink(missing_ok=True)
    try:
        yield unfinished
        if path.exists():
            shutil.copymode(path, unfinished)
        elif path.suffix == ".safetensors":
            _share_weights(path.parent, [unfinished])
        force_to_disk(unfinished)
    except BaseException:
        if kept is None:
            unfinished.unlink(missing_ok=True)
        raise
    unfinished.replace(path)
    force_to_disk(path.parent)


@contextmanager
def new_folder(folder: Path, *, replaces: bool = False) -> Iterator[Path]:
    """Write a new folder, which gets its name only after the block has ended without an error.

    Yields `unfinished_path(folder)`, an empty folder, which stays if it is complete but cannot be
    renamed. An existing folder of this name is an error, or, with replaces, is deleted at the end.
    """
    folder = folder.resolve()
    if not replaces:
        check_unused(folder)
    unfinished = unfinished_path(folder)
    with _forced_to_disk(unfinished):
        yield unfinished
    with suppress(OSError):  # it is empty
        folder.rmdir()
    earlier = _set_aside(folder) if replaces and folder.exists() else None
    unfinished.replace(folder)
    force_to_disk(folder.parent)
    _remove(earlier or unfinished)


@contextmanager
def replaced_files(folder: Path, weights: Sequence[Sequence[str]] = ()) -> Iterator[Path]:
    """Write files into a folder; after the block, they replace files of the same names.

    Yields an empty folder to write into. An error in the block changes nothing. After an error
    while files are moved, the other new files stay in it. For each kind of model, weights has the
    name patterns of its weight files. If a kind has new weight files, its old ones are deleted
    first, and the new ones are moved last. So a killed process may leave a folder without weights,
    but never one with files of two models.
    """
    unfinished = folder / UNFINISHED_FOLDER / "files"
    with _forced_to_disk(unfinished):
        yield unfinished
    last: set[Path] = set()
    for patterns in weights:
        new, earlier = (
            {path for pattern in patterns for path in place.glob(pattern)}
            for place in (unfinished, folder)
        )
        last |= new
        for path in earlier if new else ():
            path.unlink()
    force_to_disk(folder)
    files = [path for path in unfinished.rglob("*") if path.is_file()]
    for path in sorted(files, key=last.__contains__):
        target = folder / path.relative_to(unfinished)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)
        force_to_disk(target.parent)
    _remove(unfinished)


@contextmanager
def _forced_to_disk(folder: Path) -> Iterator[None]:
    """Empty a folder, run the block, and flush the folder to disk; an error deletes it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield
        _share_weights(folder, folder.rglob("*.safetensors"))
        for path in (*folder.rglob("*"), folder):
            force_to_disk(path)
    except BaseException:
        _remove(folder)
        raise


def delete_folder(folder: Path) -> None:
    """Delete a folder; if the process is killed, the folder is either complete or gone."""
    _remove(_set_aside(folder))


def _set_aside(folder: Path) -> Path:
    """Rename a folder that is to be deleted, and return its new path."""
    doomed = unfinished_path(folder.with_name(f"deleted-{folder.name}"))
    shutil.rmtree(doomed, ignore_errors=True)
    doomed.parent.mkdir(exist_ok=True)
    return folder.rename(doomed)


def unfinished_path(folder: Path) -> Path:
    """The path at which `new_folder` writes a folder until it is complete."""
    return folder.parent / UNFINISHED_FOLDER / folder.name


def check_unused(folder: Path) -> None:
    """Check that a folder is missing or empty, and not a mount point, which cannot be replaced."""
    is_used = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if is_used or os.path.ismount(folder):
        raise FileExistsError(
            f"{folder} exists and is not empty, or is a mount point. Give the name of a new folder."
        )


def force_to_disk(path: Path) -> None:
    """Wait until a file, or a folder's list of files, is on disk."""
    if os.name == "nt" and path.is_dir():  # Windows cannot open folders
        return
    # Windows flushes only files open for writing.
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _share_weights(folder: Path, files: Iterable[Path]) -> None:
    """Give weights the folder's read and write permissions; safetensors makes them private."""
    mode = folder.stat().st_mode & 0o666
    for path in files:
        path.chmod(mode)


def _remove(folder: Path) -> None:
    """Delete a folder, and its parent folder if that is then empty."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        folder.parent.rmdir()
