"""Write files and folders whole or not at all, even if the process is killed.

A file or a new folder is written under another name, forced to disk, and then renamed in one step.
`replaced_files` renames several files, the weights last.
"""

import errno
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

# A full disk, a quota and a limit on the size of files.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Errors of a rename onto a mounted file, or onto another user's file in a folder such as /tmp.
NOT_RENAMED = (errno.EACCES, errno.EPERM, errno.EBUSY)
# Holds files and folders that are not complete yet, and folders that are being deleted.
UNFINISHED_FOLDER = ".unfinished"


def write_file(path: Path, content: str) -> None:
    """Write or replace a text file in UTF-8; a kill leaves the file as it was before."""
    with new_file(path) as unfinished:
        unfinished.write_text(content, "utf-8", newline="\n")


@contextmanager
def new_file(path: str | Path, kept: str | None = None) -> Iterator[Path]:
    """Write or replace a file; it changes only once the block has ended without an error.

    Args:
        path: The file. A link is followed; a device or a pipe is written directly.
        kept: Ending of the name under which the file is written, and kept after an error. None:
            a hidden name, which has nothing left after an error.

    Yields:
        The path to write to. Without `kept` it has the same ending.

    Raises:
        OSError: The file cannot be written.
    """
    if Path(path).exists() and not Path(path).is_file():
        yield Path(path)
        return
    path = Path(path).resolve()
    unfinished = path.with_name(f"{path.name}{kept}" if kept else f".unfinished-{path.name}")
    is_whole = False
    try:
        with named_write_errors(path):
            yield unfinished
            if path.exists():
                shutil.copymode(path, unfinished)
            elif path.suffix == ".safetensors":
                _share_weights(path.parent, [unfinished])
            force_to_disk(unfinished)
            is_whole = True
            _put_in_place(unfinished, path)
    finally:
        if kept is None and not is_whole:
            unfinished.unlink(missing_ok=True)


def _put_in_place(unfinished: Path, path: Path) -> None:
    """Give a complete file its name, or else its content to the file of that name."""
    try:
        unfinished.replace(path)
    except OSError as error:
        if error.errno not in NOT_RENAMED or not path.exists():
            reason = f"{error.strerror}; the content is in {unfinished}"
            raise OSError(error.errno, reason) from error
        shutil.copyfile(unfinished, path)
        force_to_disk(path)
        unfinished.unlink()
    force_to_disk(path.parent)


@contextmanager
def named_write_errors(path: Path) -> Iterator[None]:
    """Report a full disk as an OSError that names the path: libraries have types of their own."""
    try:
        yield
    except Exception as error:
        number = getattr(error, "errno", None)
        is_full = number in FULL or "No space left" in str(error)
        if not is_full or getattr(error, "filename", None) is not None:
            raise
        number = number if number in FULL else errno.ENOSPC
        raise OSError(number, os.strerror(number), str(path)) from error


@contextmanager
def new_folder(folder: Path, *, replaces: bool = False) -> Iterator[Path]:
    """Write a new folder; it gets its name only once the block has ended without an error.

    Args:
        folder: The folder.
        replaces: Whether an earlier folder of this name is deleted then.

    Yields:
        An empty folder of the same name to write into, `unfinished_path(folder)`.

    Raises:
        FileExistsError: The folder exists, is not empty, and is not to be replaced.
        OSError: The folder cannot be written. If it is complete and only its name cannot be given,
            the message says where it is.
    """
    folder = folder.resolve()
    if not replaces:
        check_unused(folder)
    unfinished = unfinished_path(folder)
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    is_whole = False
    try:
        with named_write_errors(folder):
            yield unfinished
        _share_weights(unfinished, unfinished.rglob("*.safetensors"))
        for path in (*unfinished.rglob("*"), unfinished):
            force_to_disk(path)
        is_whole = True
        _name_folder(unfinished, folder, replaces=replaces)
    finally:
        if not is_whole:
            shutil.rmtree(unfinished, ignore_errors=True)
        _remove_if_empty(unfinished.parent)


def _name_folder(unfinished: Path, folder: Path, *, replaces: bool) -> None:
    """Give a complete folder its name."""
    try:
        _remove_if_empty(folder)
        earlier = [_set_aside(folder)] if replaces and folder.exists() else []
        unfinished.replace(folder)
    except OSError as error:  # another process may have made a folder of this name
        raise OSError(error.errno, f"{error.strerror}; the files are in {unfinished}") from error
    force_to_disk(folder.parent)
    for each in earlier:
        shutil.rmtree(each, ignore_errors=True)


@contextmanager
def replaced_files(folder: Path, weights: Sequence[Sequence[str]] = ()) -> Iterator[Path]:
    """Write files into a folder, replacing those of the same names after the block has ended.

    Args:
        folder: Created if it is missing.
        weights: Patterns of the names of one model's weight files, for each kind of model. If a
            kind has new files, its old ones are deleted before any new file arrives, and new
            weights arrive last: a kill in between leaves a folder without weights, never one with
            files of two models.

    Yields:
        An empty folder to write into.

    Raises:
        OSError: A file cannot be written; the folder is then as it was before.
    """
    unfinished = folder / UNFINISHED_FOLDER / "files"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    is_replacing = False
    try:
        yield unfinished
        _share_weights(unfinished, unfinished.rglob("*.safetensors"))
        files = [path for path in sorted(unfinished.rglob("*")) if path.is_file()]
        targets = {path: folder / path.relative_to(unfinished) for path in files}
        for path, target in targets.items():
            force_to_disk(path)
            target.parent.mkdir(parents=True, exist_ok=True)
        is_replacing = True
        last = _delete_weights(folder, unfinished, weights)
        for path in sorted(files, key=last.__contains__):
            path.replace(targets[path])
        for parent in {target.parent for target in targets.values()}:
            force_to_disk(parent)
        is_replacing = False
    finally:
        if not is_replacing:  # after an error in between, the new files are kept there
            shutil.rmtree(unfinished, ignore_errors=True)
            _remove_if_empty(unfinished.parent)


def _delete_weights(folder: Path, new: Path, weights: Sequence[Sequence[str]]) -> set[Path]:
    """Delete the weights in folder that those in new replace. Return the new ones."""
    replacing: set[Path] = set()
    for patterns in weights:
        files = {path for pattern in patterns for path in new.glob(pattern)}
        if files:
            for pattern in patterns:
                for earlier in folder.glob(pattern):
                    earlier.unlink()
        replacing |= files
    force_to_disk(folder)
    return replacing


def delete_folder(folder: Path) -> None:
    """Delete a folder; a kill leaves it whole or gone."""
    doomed = _set_aside(folder)
    shutil.rmtree(doomed, ignore_errors=True)
    _remove_if_empty(doomed.parent)


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
    """Check that a folder does not exist, or is empty, no mount point and no current directory."""
    if folder.resolve() == Path.cwd():  # the user's shell would be in a deleted folder
        raise FileExistsError(f"{folder} is the current directory. Give the name of a new folder.")
    if os.path.ismount(folder):  # nothing can be renamed to it
        raise FileExistsError(f"{folder} is a mount point. Give the name of a new folder in it.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} exists and is not empty. Give the name of a new folder.")


def force_to_disk(path: Path) -> None:
    """Wait until a file, or a folder's list of files, is on disk."""
    if os.name == "nt" and path.is_dir():  # Windows opens no folders
        return
    # Windows flushes only files open for writing.
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _share_weights(folder: Path, files: Iterable[Path]) -> None:
    """Make weights readable for everyone who may list the folder: safetensors hides them."""
    mode = folder.stat().st_mode & 0o666
    for path in files:
        path.chmod(mode)


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()
