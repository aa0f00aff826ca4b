"""A run's folder: one process writes to it, and it says when the run is over."""

import atexit
import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import IO, Any

from .arguments import AiaynTrainingArguments
from .checkpoints import ASIDE_FOLDER, force_to_disk
from .settings import is_more_patient

LOCK_FILE = ".lock"
FINISHED_FILE = "finished.json"
PATIENCE = "early_stopping_patience"

# Held open: the lock goes with the file, and with the process, however that ends.
_held: dict[Path, IO[str]] = {}


def claim_folder(output_dir: str | Path) -> None:
    """Make output_dir this process's own until it ends, and clear what a killed run left aside.

    Args:
        output_dir: The run's folder; made if it is missing.

    Raises:
        OSError: It is no folder, cannot be written to, or another process is at work in it.
    """
    folder = Path(output_dir).resolve()
    if folder in _held:
        return
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"output_dir is not a directory: {output_dir}.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK_FILE).open("a+", encoding="utf-8")
    except OSError as error:
        raise OSError(
            f"output_dir is not writable: {output_dir} ({error.strerror}). Give another one."
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.seek(0)
        owner = lock.read().strip() or "unknown"
        lock.close()
        raise OSError(
            f"output_dir is in use by pid {owner}: {output_dir}. Wait for it, or give another one."
        ) from error
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    atexit.register(lock.close)
    _held[folder] = lock
    shutil.rmtree(folder / ASIDE_FOLDER, ignore_errors=True)


def mark_finished(args: AiaynTrainingArguments) -> None:
    """Say in a file that the run is over, after all else has been written.

    The file has its name only once it is whole: a kill in between leaves a run that is not over.

    Args:
        args: The run's arguments.

    Raises:
        OSError: It cannot be written.
    """
    path = Path(args.output_dir) / FINISHED_FILE
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(_length(args)) + "\n", "utf-8")
    force_to_disk(unfinished)
    unfinished.replace(path)
    force_to_disk(path.parent)


def forget_end(args: AiaynTrainingArguments) -> None:
    """Take back that the run is over.

    Args:
        args: The run's arguments.
    """
    (Path(args.output_dir) / FINISHED_FILE).unlink(missing_ok=True)


def is_finished(args: AiaynTrainingArguments) -> bool:
    """Whether a run is to go on that is over, and is not to be any longer than it was.

    Args:
        args: The run's arguments.

    Returns:
        Whether nothing is left to do.
    """
    path = Path(args.output_dir) / FINISHED_FILE
    # Whoever names a checkpoint wants to go on from there.
    if args.resume != "auto" or not path.is_file():
        return False
    then, now = json.loads(path.read_text("utf-8")), _length(args)
    if is_more_patient(now[PATIENCE], then.pop(PATIENCE, 0)):
        return False
    return all(now[name] == value for name, value in then.items())


def _length(args: AiaynTrainingArguments) -> dict[str, Any]:
    return {name: getattr(args, name) for name in ("max_steps", "num_train_epochs", PATIENCE)}
