"""Checkpoints that survive a kill: written aside, sealed by a manifest, and checked before use.

At every instant each folder named checkpoint-N is whole or is known not to be: it is written under
another name, its files' sizes and hashes are put into a manifest, all of it is forced to disk, and
only then does it get its name, in one step.
"""

import hashlib
import itertools
import json
import logging
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from .arguments import AiaynTrainingArguments

logger = logging.getLogger(__name__)

MANIFEST_FILE = "manifest.json"
# Where checkpoints are written, and where those go that are to be deleted.
ASIDE_FOLDER = ".saving"
# What the names of checkpoints begin with that a run went back behind.
ABANDONED = "abandoned-"
# Less than this left, and a write that failed failed for want of room, whatever the library says.
FULL_DISK_BYTES = 2**24


def write_checkpoint(
    output_dir: Path, name: str, write: Callable[[Path], None], facts: dict[str, Any]
) -> None:
    """Write a checkpoint's files and seal them; one process does this.

    Args:
        output_dir: The run's folder.
        name: The checkpoint's, "checkpoint-N".
        write: Writes what is still missing into the folder that is given to it.
        facts: What the manifest says beside the files.

    Raises:
        OSError: It could not be written. What was written of it is gone, all others are as before.
    """
    aside = output_dir / ASIDE_FOLDER / name
    try:
        write(aside)
        seal(aside, facts)
        _rename(aside, output_dir / name)
    except Exception as error:  # each library has a type of its own for a full disk
        raise _saving_failed(error, output_dir, name) from error


def _saving_failed(error: Exception, output_dir: Path, name: str) -> OSError:
    free = shutil.disk_usage(output_dir).free
    is_full = free < FULL_DISK_BYTES or "No space left" in str(error)
    shutil.rmtree(output_dir / ASIDE_FOLDER, ignore_errors=True)
    cause = "No space left on device" if is_full else str(error)
    return OSError(
        f"Could not save {name} in {output_dir}: {cause}. Nothing of it is left, and earlier "
        "checkpoints are as they were. Make room, then go on by --resume auto."
    )


def seal(folder: Path, facts: dict[str, Any]) -> None:
    """Write a folder's manifest, and force all of the folder to disk.

    Args:
        folder: A folder that is written completely.
        facts: What the manifest says beside the files.

    Raises:
        OSError: A file cannot be read or written.
    """
    files = {
        path.relative_to(folder).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": _sha256(path),
        }
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST_FILE
    }
    manifest = folder / MANIFEST_FILE
    manifest.write_text(json.dumps({"files": files, **facts}, indent=2) + "\n", "utf-8")
    for path in (*folder.rglob("*"), folder):
        force_to_disk(path)


def force_to_disk(path: Path) -> None:
    """Wait until a file or a folder's list of files is on disk.

    Args:
        path: The file or folder.

    Raises:
        OSError: It cannot be done.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_manifest(folder: Path) -> dict[str, Any]:
    """A checkpoint's manifest, once all files have been compared with it.

    Args:
        folder: A checkpoint.

    Returns:
        The manifest.

    Raises:
        ValueError: There is no manifest, or a file is missing or not as it was written.
    """
    try:
        manifest = json.loads((folder / MANIFEST_FILE).read_text("utf-8"))
        files = {name: (each["bytes"], each["sha256"]) for name, each in manifest["files"].items()}
    except FileNotFoundError:
        raise ValueError(f"{folder}: no {MANIFEST_FILE}; it was never completed.") from None
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise ValueError(f"{folder}: {MANIFEST_FILE} is damaged ({error!r}).") from error
    for name, (size, checksum) in files.items():
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{folder}: {name} is missing.")
        if path.stat().st_size != size:
            raise ValueError(f"{folder}: {name} has {path.stat().st_size} bytes, not {size}.")
        if _sha256(path) != checksum:
            raise ValueError(f"{folder}: {name} has another checksum than when it was written.")
    return dict(manifest)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def list_checkpoints(output_dir: Path) -> list[Path]:
    """Folders named checkpoint-N, whole or not.

    Args:
        output_dir: A run's folder.

    Returns:
        The folders, by N.
    """
    pattern = rf"{PREFIX_CHECKPOINT_DIR}-\d+"
    found = output_dir.glob(f"{PREFIX_CHECKPOINT_DIR}-*")
    folders = (path for path in found if re.fullmatch(pattern, path.name) and path.is_dir())
    return sorted(folders, key=_update_of)


def _update_of(folder: Path) -> int:
    return int(folder.name.rpartition("-")[2])


def newest_whole_checkpoint(output_dir: Path) -> Path | None:
    """The newest checkpoint that is as it was written; those passed over are named in the log.

    Args:
        output_dir: A run's folder.

    Returns:
        The checkpoint, or None if there is none.
    """
    for folder in reversed(list_checkpoints(output_dir)):
        try:
            read_manifest(folder)
        except ValueError as error:
            logger.warning("Passed over a damaged checkpoint: %s", error)
        else:
            return folder
    return None


def set_other_branches_aside(
    output_dir: Path, folder: Path | None, update: int
) -> dict[Path, Path]:
    """Rename whole checkpoints that do not lie on the way to one that a run goes on from.

    Those of earlier updates do, if that one lies beside them under its own name. Else the newest of
    them would be gone on from next, and outlive those that now come.

    Args:
        output_dir: The run's folder.
        folder: The checkpoint that it goes on from, there or elsewhere. None: it begins.
        update: That checkpoint's update.

    Returns:
        Where they are now, by their resolved names before; all have the same number.
    """
    checkpoints = list_checkpoints(output_dir)
    place = None if folder is None else folder.resolve()
    is_there = place in [each.resolve() for each in checkpoints]
    numbers = (f"{ABANDONED}{number}-" for number in itertools.count(1))
    prefix = next(each for each in numbers if not any(output_dir.glob(f"{each}*")))
    renamed = {}
    for other in checkpoints:
        is_on_the_way = _update_of(other) < update or other.resolve() == place
        if (is_there and is_on_the_way) or not _is_whole(other):
            continue
        target = output_dir / f"{prefix}{other.name}"
        renamed[other.resolve()] = target
        other.rename(target)
        force_to_disk(output_dir)
        logger.warning("%s is not on the way of this run: it is %s now.", other, target.name)
    return renamed


def where_best_is(folder: Path, noted: Path, renamed: dict[Path, Path]) -> Path | None:
    """The best checkpoint of the branch that a checkpoint ends.

    Args:
        folder: The checkpoint.
        noted: Where it says that the best one is.
        renamed: As `set_other_branches_aside` gave them.

    Returns:
        Where that is now, beside the checkpoint if it is there; None: nowhere.
    """
    branch = re.sub(rf"{PREFIX_CHECKPOINT_DIR}-\d+$", "", folder.name)
    beside = folder.with_name(f"{branch}{noted.name}")
    moved = renamed.get(noted.resolve(), noted)
    return next((each for each in (beside, moved) if each.is_dir()), None)


def _is_whole(folder: Path) -> bool:
    try:
        read_manifest(folder)
    except ValueError:
        return False
    return True


def delete_old_checkpoints(
    output_dir: Path, limit: int | None, written: str, kept: set[str]
) -> None:
    """Delete the oldest checkpoints beyond limit. Folders that never were complete do not count.

    Args:
        output_dir: The run's folder.
        limit: How many to keep. None, 0 or less: all.
        written: Name of the checkpoint that was just written, which stays; those of later updates
            are damaged, and go first.
        kept: Names of others that stay.
    """
    complete = [path for path in list_checkpoints(output_dir) if (path / MANIFEST_FILE).is_file()]
    if limit is None or limit <= 0:
        return
    update = _update_of(output_dir / written)
    deletable = [path for path in complete if path.name not in kept | {written}]
    deletable.sort(key=lambda path: _update_of(path) < update)
    for path in deletable[: max(0, len(complete) - limit)]:
        _delete(path)


def _rename(source: Path, target: Path) -> None:
    if target.exists():
        # A damaged one, passed over when the run went on from an older one.
        _delete(target)
    source.rename(target)
    force_to_disk(target.parent)


def _delete(folder: Path) -> None:
    """Take a folder out of the list in one step; a kill in what follows leaves no half of it."""
    aside = folder.parent / ASIDE_FOLDER / f"deleted-{folder.name}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.parent.mkdir(exist_ok=True)
    folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def checkpoint_to_resume(args: AiaynTrainingArguments) -> str | None:
    """The checkpoint that args.resume names, or None to start afresh.

    Args:
        args: The run's arguments.

    Returns:
        A checkpoint's folder, or None.

    Raises:
        OSError: There is no such checkpoint, or output_dir is no folder.
        ValueError: output_dir holds another run, and args does not say to resume; or the checkpoint
            that it names is damaged.
    """
    output_dir = Path(args.output_dir)
    if output_dir.exists() and not output_dir.is_dir():
        raise NotADirectoryError(f"output_dir is not a directory: {output_dir}.")
    if args.resume is None:
        if list_checkpoints(output_dir) or (output_dir / "config.json").exists():
            raise ValueError(
                f"output_dir {output_dir} holds another run. Go on with it by --resume auto, or "
                "give a new --output_dir."
            )
        return None
    if args.resume == "auto":
        newest = newest_whole_checkpoint(output_dir)
        abandoned = sorted(output_dir.glob(f"{ABANDONED}*"))
        if newest is None and abandoned:
            raise ValueError(
                f"output_dir {output_dir} has no checkpoint to go on from but {abandoned[0].name}, "
                "which the run went back behind: name one, by --resume FOLDER."
            )
        if newest is None:
            logger.info("No checkpoint in %s: the run starts from the beginning.", output_dir)
            return None
        logger.info("Going on from %s.", newest)
        return str(newest)
    if not Path(args.resume).is_dir():
        raise FileNotFoundError(f"No such checkpoint: {args.resume}.")
    read_manifest(Path(args.resume))
    return args.resume
