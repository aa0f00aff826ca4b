"""Checkpoints that are written completely or not at all, and verified before they are used.

A checkpoint is written under another name. Then a manifest with the size and hash of each file is
added, everything is flushed to disk, and then the folder is renamed to checkpoint-N.
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
# Holds the state of the run that survives a resume.
RUN_STATE_FILE = "run_state.json"


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint."""

    folder: Path

    def read_state(self) -> dict[str, Any]:
        """Read the run's "settings", and the "states" of its processes."""
        return read_json_object(self.folder / RUN_STATE_FILE)


@contextmanager
def new_checkpoint(output_dir: Path, name: str) -> Iterator[Path]:
    """Yield a folder to write a checkpoint's files into; only the saving process enters it."""
    # The name may be in use: by a stop at the same update, or by a damaged checkpoint.
    with new_folder(output_dir / name, replaces=True) as unfinished:
        try:
            yield unfinished
            write_manifest(unfinished)
        except Exception as error:  # each library has its own error for a full disk
            free = shutil.disk_usage(output_dir).free // 2**20
            raise OSError(
                f"Could not save {name} in {output_dir}, where {free} MiB are free: {error!r}. "
                "Earlier checkpoints are unchanged. Correct this, then resume with --resume auto."
            ) from error


def write_manifest(folder: Path) -> None:
    """Write the sizes and hashes of a folder's files into manifest.json."""
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": _sha256(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    (folder / MANIFEST_FILE).write_text(json.dumps({"files": files}, indent=2) + "\n", "utf-8")


def check_checkpoint(folder: Path) -> Checkpoint:
    """Compare all files of a checkpoint with its manifest."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"No such checkpoint: {folder}. Give the folder of one, or --resume auto."
        )
    try:
        manifest = read_json_object(folder / MANIFEST_FILE)
        files = {name: (file["bytes"], file["sha256"]) for name, file in manifest["files"].items()}
    except FileNotFoundError:
        raise ValueError(f"{folder}: {MANIFEST_FILE} is missing.") from None
    except (ValueError, KeyError) as error:
        raise ValueError(f"{folder}: {MANIFEST_FILE} is damaged ({error!r}).") from error
    for name, (size, checksum) in files.items():
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{folder}: {name} is missing.")
        if path.stat().st_size != size:
            raise ValueError(f"{folder}: {name} has {path.stat().st_size} bytes, not {size}.")
        if _sha256(path) != checksum:
            raise ValueError(f"{folder}: {name} has another checksum than when it was written.")
    return Checkpoint(folder)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def list_checkpoints(output_dir: Path) -> list[Path]:
    """All folders named checkpoint-N, ordered by N, verified or not."""
    pattern = rf"{PREFIX_CHECKPOINT_DIR}-(0|[1-9][0-9]*)"  # N has no leading zeros
    paths = output_dir.glob(f"{PREFIX_CHECKPOINT_DIR}-*")
    folders = (path for path in paths if re.fullmatch(pattern, path.name) and path.is_dir())
    return sorted(folders, key=update_of)


def update_of(folder: Path) -> int:
    """The update after which a checkpoint was saved."""
    return int(folder.name.rpartition("-")[2])


def newest_whole_checkpoint(output_dir: Path) -> Checkpoint | None:
    """The newest intact checkpoint, or None; the log names each skipped checkpoint."""
    for folder in reversed(list_checkpoints(output_dir)):
        try:
            return check_checkpoint(folder)
        except ValueError as error:
            logger.warning("Skipped a damaged checkpoint: %s", error)
    return None


def delete_old_checkpoints(
    output_dir: Path, limit: int | None, written: str, best: str | None
) -> None:
    """Delete the oldest checkpoints beyond limit; None or 0 means no limit.

    Folders without a manifest do not count. The newly written checkpoint and the best one are never
    deleted. Checkpoints of later updates than the new one are deleted first: they must be damaged,
    because the run resumed before them.
    """
    if limit is None or limit <= 0:
        return
    complete = [path for path in list_checkpoints(output_dir) if (path / MANIFEST_FILE).is_file()]
    update = update_of(output_dir / written)
    kept = {written, Path(best or "").name}
    deletable = [path for path in complete if path.name not in kept]
    deletable.sort(key=lambda path: update_of(path) < update)
    for path in deletable[: max(0, len(complete) - limit)]:
        delete_folder(path)


def choose_checkpoint(
    args: TrainingArguments, given: Checkpoint | str | os.PathLike[str] | bool | None = None
) -> Checkpoint | None:
    """The verified checkpoint to resume from, or None to start from the beginning.

    `given` may be a checkpoint or its folder, True for the newest one, or False for none; with
    None, `args.resume` decides. output_dir must have no newer intact checkpoint.
    """
    if isinstance(given, Checkpoint):
        return given
    output_dir = Path(args.output_dir)
    name = args.resume if given is None else given
    if name is True or name == "auto":
        newest = newest_whole_checkpoint(output_dir)
        if newest is None and name is True:
            raise ValueError(f"No intact checkpoint in output_dir {output_dir}.")
        return newest
    resumed = check_checkpoint(Path(name)) if name else None
    newest = newest_whole_checkpoint(output_dir)
    if newest is not None and not (resumed and newest.folder.samefile(resumed.folder)):
        how = f"resume from {resumed.folder}" if resumed else "start from the beginning"
        raise ValueError(
            f"Cannot {how}: the newer checkpoint {newest.folder} lies in the output folder. Resume "
            "it with --resume auto, delete or move it, or give a new --output_dir."
        )
    return resumed
