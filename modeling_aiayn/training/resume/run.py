"""The life of a training run: its folder, the checkpoint that it resumes from, and its end."""

import errno
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows, which forks no workers
    fcntl = None  # type: ignore[assignment]

from filelock import FileLock, Timeout
from transformers import PreTrainedConfig, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import ADAPTER_CONFIG_NAME, CONFIG_NAME

from ...data.parsing import read_json_object
from ...saved.whole_files import UNFINISHED_FOLDER, write_file
from .checkpoints import Checkpoint, choose_checkpoint, list_checkpoints
from .settings import (
    LENGTH,
    check_model_settings,
    check_same_flags,
    is_more_patient,
    run_flags,
)

logger = logging.getLogger(__name__)

LOCK_FILE = ".lock"
PID_FILE = ".pid"
FINISHED_FILE = "finished.json"
# Files that a run writes at its end, and that others may have written.
REPORTS = ("README.md", "scores.json")
PATIENCE = "early_stopping_patience"

# The system releases a lock when its process ends, however that happens.
_held: dict[Path, Any] = {}


class Run:
    """A training run in `args.output_dir`.

        run = Run(args, data, model_arguments)
        if run.is_finished:
            return
        run.check_model(config)
        trainer.train(run.checkpoint)
        run.finish()

    `flags` are the dataclasses of the run's other flags. A finished run with other flags is an
    error.

    Raises:
        OSError: output_dir is not a writable folder, another process uses it, or the checkpoint to
            resume from does not exist.
        ValueError: output_dir already holds a run and `args.resume` is None, the run is finished
            and had other flags or has no checkpoint to continue from, or the checkpoint to resume
            from is damaged or has newer ones beside it.
    """

    def __init__(self, args: TrainingArguments, *flags: Any) -> None:
        self.args = args
        self._flags = run_flags(args, *flags)  # now: data may be replaced while the run goes on
        self.checkpoint: Checkpoint | None = None
        check_not_a_file(args.output_dir)
        if args.resume is not None:
            check_no_other_model(Path(args.output_dir))
        if args.should_save:
            claim_folder(args.output_dir)
        self.is_finished = self._is_finished()
        if not self.is_finished:
            self.checkpoint = self._find_checkpoint()

    def _is_finished(self) -> bool:
        """Whether `--resume auto` finds a finished run that the arguments do not make longer."""
        path = Path(self.args.output_dir) / FINISHED_FILE
        if self.args.resume != "auto" or not path.is_file():
            return False
        then, now = read_json_object(path), _length(self.args)
        flags = then.pop("flags", {})
        lengths = [then.get(name, 0 if name == PATIENCE else None) for name in LENGTH]
        if not (isinstance(flags, dict) and all(isinstance(each, int | float) for each in lengths)):
            raise ValueError(f"{path} is damaged. Restore it, or delete it and resume the run.")
        if is_more_patient(now[PATIENCE], then.pop(PATIENCE, 0)):
            return False
        if _is_longer(then, now):
            return False
        check_same_flags(flags, self._flags)
        return True

    def _find_checkpoint(self) -> Checkpoint | None:
        folder = Path(self.args.output_dir)
        if self.args.resume is None and (list_checkpoints(folder) or has_model(folder)):
            raise ValueError(
                f"output_dir {folder} already holds a run. Resume it with --resume auto, or give a "
                "new --output_dir."
            )
        for name in REPORTS:
            if self.args.resume is None and (folder / name).exists():
                raise ValueError(
                    f"output_dir {folder} holds {name}, which the run would overwrite. Give a new "
                    "--output_dir."
                )
        checkpoint = choose_checkpoint(self.args)
        if checkpoint is not None:
            check_same_run(checkpoint, folder)
            logger.info("Resuming from %s.", checkpoint.folder)
        elif self.args.resume is not None and (folder / FINISHED_FILE).exists():
            raise ValueError(
                f"output_dir {folder} holds a finished run without checkpoints, so it cannot be "
                "made longer. Give a new --output_dir. Translators and classifiers can start from "
                f"its model, with --start_from {folder}."
            )
        elif self.args.resume is not None:
            logger.info("No checkpoint in %s: the run starts from the beginning.", folder)
        return checkpoint

    def check_model(self, config: PreTrainedConfig) -> None:
        """Check that the model to build is the checkpoint's, before its vocabulary is known."""
        if self.checkpoint is not None:
            check_model_settings(self.checkpoint.settings, config)

    def finish(self) -> None:
        """Record that the run is finished; call this after everything else has been written."""
        content = _length(self.args) | {"flags": self._flags}
        text = json.dumps(content, indent=2) + "\n"
        write_file(Path(self.args.output_dir) / FINISHED_FILE, text)


def has_model(folder: Path) -> bool:
    """Whether a folder holds a model or an adapter."""
    return any((folder / name).exists() for name in (CONFIG_NAME, ADAPTER_CONFIG_NAME))


def check_no_other_model(folder: Path) -> None:
    """Check that a model in the folder of a run to resume is of a run, which has left its pid."""
    traces = [folder / name for name in (PID_FILE, FINISHED_FILE)] + list_checkpoints(folder)
    if has_model(folder) and not any(trace.exists() for trace in traces):
        raise ValueError(
            f"output_dir {folder} holds a model, but no run to resume. Give a new --output_dir."
        )


def check_same_run(checkpoint: Checkpoint, output_dir: Path) -> None:
    """Check that a checkpoint of another folder does not replace a model in output_dir."""
    if has_model(output_dir) and checkpoint.folder.parent.resolve() != output_dir.resolve():
        raise ValueError(
            f"output_dir {output_dir} holds a model of another run, and {checkpoint.folder} is not "
            "in it. Give a new --output_dir."
        )


def check_not_a_file(output_dir: str | Path) -> None:
    """Check that output_dir is a folder, or can become one."""
    if not str(output_dir):
        raise ValueError("output_dir is empty. Give the folder of the run.")
    if Path(output_dir).exists() and not Path(output_dir).is_dir():
        raise NotADirectoryError(
            f"output_dir is not a directory: {output_dir}. Give another --output_dir."
        )


def claim_folder(output_dir: str | Path) -> None:
    """Lock output_dir until this process ends, and delete checkpoints that were left unfinished."""
    check_not_a_file(output_dir)
    folder = Path(os.path.realpath(output_dir))  # resolve() raises an error for a loop of links
    if folder in _held:
        return
    pid_file = folder / PID_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _held[folder] = _lock(folder / LOCK_FILE)
        pid_file.write_text(f"{os.getpid()}\n", "utf-8")
    except (BlockingIOError, Timeout):
        owner = pid_file.read_text("utf-8").strip() if pid_file.is_file() else "unknown"
        raise OSError(
            f"output_dir is in use by pid {owner}: {output_dir}. Wait until that process has "
            "ended, or give another --output_dir."
        ) from None
    except OSError as error:
        raise OSError(
            f"output_dir is not writable: {output_dir} ({error.strerror}). Give another one."
        ) from error
    # ".saving" is the name that earlier versions used.
    left = [folder / ".saving"]
    left += (folder / UNFINISHED_FOLDER).glob(f"*{PREFIX_CHECKPOINT_DIR}-*")
    for path in left:
        shutil.rmtree(path, ignore_errors=True)


def _lock(path: Path) -> Any:
    """Lock a file for this process; a BlockingIOError or Timeout says that another one has it.

    Unlike the lock of the package filelock, this one is not inherited by workers that are forked:
    they outlive a killed trainer by some seconds.
    """
    if fcntl is None:
        lock = FileLock(path)
        lock.acquire(timeout=0)
        return lock
    file = path.open("a")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        is_taken = error.errno in (errno.EACCES, errno.EAGAIN)
        raise BlockingIOError(error.errno, error.strerror) if is_taken else error from error
    return file


def forget_finish(args: TrainingArguments) -> None:
    """Delete the record that the run is finished."""
    (Path(args.output_dir) / FINISHED_FILE).unlink(missing_ok=True)


def _is_longer(then: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether a run is longer than the finished one; max_steps overrides num_train_epochs.

    A run whose length is given in the other unit counts as longer.
    """
    before, after = then["max_steps"], now["max_steps"]
    if max(before, after) <= 0:
        return bool(now["num_train_epochs"] > then["num_train_epochs"])
    return bool(min(before, after) <= 0 or after > before)


def _length(args: TrainingArguments) -> dict[str, Any]:
    return {name: getattr(args, name) for name in LENGTH}
