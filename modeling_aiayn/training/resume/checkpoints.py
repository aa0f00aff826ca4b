"""Checkpoints that are written whole or not at all, and verified before they are used.

A checkpoint is written under another name. Then a manifest with the size and hash of each file is
added, everything is forced to disk, and only then does the folder get the name checkpoint-N.
"""

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ...data.parsing import read_json_object
from ...saved.whole_files import delete_folder, new_folder

logger = logging.getLogger(__name__)

MANIFEST_FILE = "manifest.json"
# With less free space than this, a failed write is reported as a full disk.
FULL_DISK_BYTES = 2**24


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint and the settings of its run."""

    folder: Path
    settings: dict[str, Any]


@contextmanager
def new_checkpoint(output_dir: Path, name: str, settings: dict[str, Any]) -> Iterator[Path]:
    """Write a checkpoint's files into the folder that this yields; the saving process enters it.

    Raises:
        OSError: The checkpoint cannot be written; nothing of it is left.
    """
    free = FULL_DISK_BYTES
    try:
        # There may be one of this name: of a stop at the same update, or a damaged one.
        with new_folder(output_dir / name, replaces=True) as unfinished:
            try:
                yield unfinished
                write_manifest(unfinished, settings)
            except Exception:
                free = shutil.disk_usage(output_dir).free  # before the files are deleted
                raise
    except Exception as error:  # each library reports a full disk by a type of its own
        is_full = free < FULL_DISK_BYTES or "No space left" in str(error)
        is_named = isinstance(error, OSError | ValueError)
        cause = str(error) if is_named else f"{type(error).__name__}: {error}"
        cause, remedy = (
            ("No space left on device", "Free some space") if is_full else (cause, "Correct this")
        )
        raise OSError(
            f"Could not save {name} in {output_dir}: {cause}. Its files were deleted, and earlier "
            f"checkpoints are unchanged. {remedy}, then resume with --resume auto."
        ) from error


def write_manifest(folder: Path, settings: dict[str, Any]) -> None:
    """Write the sizes and hashes of a folder's files, and a run's settings, into manifest.json."""
    files = {
        path.relative_to(folder).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": _sha256(path),
        }
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    content = json.dumps({"files": files, "settings": settings}, indent=2)
    (folder / MANIFEST_FILE).write_text(content + "\n", "utf-8")


def check_checkpoint(folder: Path) -> Checkpoint:
    """Compare all files of a checkpoint with its manifest.

    Raises:
        FileNotFoundError: There is no such folder.
        ValueError: The manifest is missing, or a file is missing or was changed.
    """
    if not folder.is_dir():
        raise FileNotFoundError(
            f"No such checkpoint: {folder}. Give the folder of one, or --resume auto."
        )
    try:
        manifest = read_json_object(folder / MANIFEST_FILE)
        files = {name: (each["bytes"], each["sha256"]) for name, each in manifest["files"].items()}
    except FileNotFoundError:
        raise ValueError(
            f"{folder}: {MANIFEST_FILE} is missing, so the checkpoint is incomplete."
        ) from None
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
    return Checkpoint(folder, manifest.get("settings", {}))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def list_checkpoints(output_dir: Path) -> list[Path]:
    """All folders named checkpoint-N, ordered by N, verified or not."""
    pattern = rf"{PREFIX_CHECKPOINT_DIR}-(0|[1-9][0-9]*)"  # as the library writes N, without zeros
    paths = output_dir.glob(f"{PREFIX_CHECKPOINT_DIR}-*")
    folders = (path for path in paths if re.fullmatch(pattern, path.name) and path.is_dir())
    return sorted(folders, key=_update_of)


def _update_of(folder: Path) -> int:
    return int(folder.name.rpartition("-")[2])


def newest_whole_checkpoint(output_dir: Path) -> Checkpoint | None:
    """The newest intact checkpoint, or None; the log names each skipped checkpoint."""
    for folder in reversed(list_checkpoints(output_dir)):
        try:
            return check_checkpoint(folder)
        except ValueError as error:
            logger.warning("Skipped a damaged checkpoint: %s", error)
    return None


def check_nothing_newer(output_dir: Path, resumed: Path | None) -> None:
    """Check that output_dir has no intact checkpoint newer than resumed.

    If resumed is None or lies elsewhere, check that the folder has no checkpoint.
    """
    for folder in reversed(list_checkpoints(output_dir)):
        if resumed is not None and folder.samefile(resumed):
            return
        try:
            check_checkpoint(folder)
        except ValueError:
            continue
        if resumed is None:
            raise ValueError(
                f"Cannot start from the beginning: {output_dir} already holds {folder.name}. "
                "Resume it with --resume auto, delete or move it, or give a new --output_dir."
            )
        raise ValueError(
            f"Cannot resume from {resumed}: the newer checkpoint {folder} lies in the output "
            f"folder. Delete or move it, or give a new --output_dir with --resume {resumed}."
        )


def delete_old_checkpoints(
    output_dir: Path, limit: int | None, written: str, kept: set[str]
) -> None:
    """Delete the oldest checkpoints beyond limit; without a positive limit, none.

    Folders without a manifest do not count. The newly written checkpoint and those named in kept
    are never deleted. Checkpoints of later updates than the new one are deleted first: they must
    be damaged, because the run resumed before them.
    """
    complete = [path for path in list_checkpoints(output_dir) if (path / MANIFEST_FILE).is_file()]
    if limit is None or limit <= 0:
        return
    update = _update_of(output_dir / written)
    deletable = [path for path in complete if path.name not in kept | {written}]
    deletable.sort(key=lambda path: _update_of(path) < update)
    for path in deletable[: max(0, len(complete) - limit)]:
        delete_folder(path)


def choose_checkpoint(
    args: TrainingArguments, given: Checkpoint | str | os.PathLike[str] | bool | None = None
) -> Checkpoint | None:
    """The verified checkpoint to resume from, or None to start from the beginning.

    `given` may be a checkpoint or its folder, True for the newest one, or False for none; with
    None, `args.resume` decides.
    """
    if isinstance(given, Checkpoint):
        return given
    output_dir = Path(args.output_dir)
    name = args.resume if given is None else given
    if name is True or name == "auto":
        newest = newest_whole_checkpoint(output_dir)
        # Earlier versions renamed checkpoints newer than the one that a run resumed from.
        has_renamed = any(output_dir.glob(f"abandoned-*{PREFIX_CHECKPOINT_DIR}-*"))
        if newest is None and (name is True or has_renamed):
            name_it = "Name one of the abandoned-* folders: --resume FOLDER."
            hint = name_it if has_renamed else "Start without resume, or name another folder."
            raise ValueError(f"No intact checkpoint in output_dir {output_dir}. {hint}")
        return newest
    folder = Path(name) if name else None
    checkpoint = None if folder is None else check_checkpoint(folder)
    check_nothing_newer(output_dir, folder)
    return checkpoint
