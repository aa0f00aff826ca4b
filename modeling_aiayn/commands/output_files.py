"""The files that a command writes: checked before any work, and never one that it reads."""

import logging
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from ..saved.folders import model_files
from ..saved.loading import find_model

logger = logging.getLogger(__name__)

PARTIAL = ".partial"
# Files of a model for CTranslate2.
EXPORTED_FILES = ("model.bin", "*vocabulary.json", "*/tokenizer*.json")


def check_outputs(
    outputs: Mapping[str, str | None],
    inputs: Mapping[str, Iterable[Path]],
    stdout: IO[Any] | None = None,
) -> None:
    """Check that each output can be written, is no input, and is not another output.

    Args:
        outputs: File to write by flag, as in --output; None if the flag was not given.
        inputs: Files to read by flag, or under "stdin".
        stdout: The stream that results go to; None if they go to a file.

    Raises:
        OSError: An output or its folder cannot be written, or there is no such folder.
        ValueError: An output is one of the inputs, also under another name, or two are the same.
    """
    read = {
        _identity(path.stat()): (flag, path)
        for flag, paths in inputs.items()
        for path in paths
        if path.is_file()
    }
    taken: dict[Path, str] = {}
    for flag, output in outputs.items():
        if output is None:
            continue
        _check_can_be_written(flag, Path(output))
        path = Path(output).resolve()
        if path.exists() and (source := read.get(_identity(path.stat()))) is not None:
            raise ValueError(f"{flag} would overwrite {source[0]}, {source[1]}. Pass another file.")
        if path in taken:
            raise ValueError(f"{flag} and {taken[path]} are the same file, {output}.")
        taken[path] = flag
    written = stdout and status_of(stdout)
    if written and (source := read.get(_identity(written))) is not None:
        raise ValueError(f"stdout would overwrite {source[0]}, {source[1]}. Write to another file.")


def _check_can_be_written(flag: str, output: Path) -> None:
    """Check a file, and its folder: the file is written there under another name, then renamed."""
    if output.is_dir():
        raise IsADirectoryError(f"{flag} must be a file, got the folder {output}.")
    if output.exists() and not output.is_file():  # a device or a pipe
        folder = output
    else:
        folder = output.resolve().parent
        if not folder.is_dir():
            raise FileNotFoundError(
                f"{flag} {output}: there is no folder {output.parent}. Create it first."
            )
    for path in (output, folder):
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(
                f"{flag} {output}: {path} cannot be written. Pass a file in another folder."
            )


def partial_path(output: str | None) -> str | None:
    """The file that holds an output until it is complete; None if it is written directly."""
    if output is None or (Path(output).exists() and not Path(output).is_file()):
        return None
    return f"{Path(output).resolve()}{PARTIAL}"


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Lock a file, so that no other process writes it; Windows has no such lock.

    Unlike the lock of a training run, it survives if this process opens and closes the file again.

    Raises:
        OSError: Another process has locked it.
    """
    if fcntl is None:
        yield
        return
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OSError(
                f"{path} is being written by another process. Wait until it has ended, or give "
                "another --output."
            ) from error
        except OSError as error:  # some network file systems have no locks
            reason = error.strerror
            logger.warning("%s cannot be locked (%s). Start only one job for it.", path, reason)
        yield


def keep_whole_lines(path: Path) -> int:
    """Cut an unfinished last line off a file, and count the lines that stay."""
    lines, end = 0, 0
    with path.open("rb+") as file:
        for line in file:
            if line.endswith(b"\n"):
                lines, end = lines + 1, end + len(line)
        file.truncate(end)
    return lines


def files_of_models(models: Iterable[str]) -> list[Path]:
    """The files that are read when models are loaded from their folders."""
    folders = [Path(find_model(model)) for model in models]
    exported = [path for folder in folders for name in EXPORTED_FILES for path in folder.glob(name)]
    return [*exported, *(path for folder in folders for path in model_files(folder))]


def status_of(stream: IO[Any]) -> os.stat_result | None:
    """The status of the file behind stdin or stdout; None for a terminal or a pipe."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):  # replaced by an object without a descriptor
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _identity(status: os.stat_result) -> tuple[int, int]:
    """Device and inode, which are equal for all names of one file, hard links included."""
    return status.st_dev, status.st_ino
