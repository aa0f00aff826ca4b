"""A training run: its folder, the checkpoint that it resumes from, and the record of its end."""

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object
from filelock import Timeout
from transformers import PreTrainedConfig, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import ADAPTER_CONFIG_NAME, CONFIG_NAME

from ...data.parsing import read_json_object
from ...saved.locks import lock_file
from ...saved.whole_files import UNFINISHED_FOLDER, write_file
from .checkpoints import Checkpoint, choose_checkpoint, list_checkpoints
from .settings import (
    argument_values,
    check_model_settings,
    check_same_run,
    flag_values,
    model_settings,
)

logger = logging.getLogger(__name__)

LOCK_FILE = ".lock"
PID_FILE = ".pid"
FINISHED_FILE = "finished.json"
# Files that a run writes at its end, so that it would overwrite existing ones.
RESULTS = (CONFIG_NAME, ADAPTER_CONFIG_NAME, "README.md", "scores.json")
# Fields of a configuration that are known only after a vocabulary has been built.
OF_VOCABULARY = ("vocab_size", "decoder_vocab_size", "vocabulary_sha256")

# Locked folders. The system releases a lock when its process ends, even if it is killed.
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
    """

    def __init__(self, args: TrainingArguments, *flags: Any) -> None:
        self.args = args
        # Read now: data may be replaced during the run.
        self._settings = {"arguments": argument_values(args), "flags": flag_values(flags)}
        if args.resume is not None:
            check_no_other_model(Path(args.output_dir))
        if args.should_save:
            claim_folder(args.output_dir)
        self.is_finished = self._is_finished()
        self.checkpoint = None if self.is_finished else self._find_checkpoint()
        start = "a finished run" if self.is_finished else "no checkpoint"
        start = self.checkpoint.folder.name if self.checkpoint else start
        if len(starts := {*gather_object([start])}) > 1:
            raise OSError(
                "output_dir must be on a disk that all machines share. The processes found "
                f"{' and '.join(sorted(starts))} in {args.output_dir}."
            )

    def _is_finished(self) -> bool:
        path = Path(self.args.output_dir) / FINISHED_FILE
        if self.args.resume != "auto" or not path.is_file():
            return False
        before = read_json_object(path)
        if is_longer(before["arguments"], self._settings["arguments"]):
            return False
        check_same_run(before, self._settings)
        return True

    def _find_checkpoint(self) -> Checkpoint | None:
        folder = Path(self.args.output_dir)
        kept = [*list_checkpoints(folder), *(folder / name for name in RESULTS)]
        for path in kept if self.args.resume is None else []:
            if path.exists():
                raise ValueError(
                    f"output_dir {folder} already holds a run, or a file that a run would "
                    f"overwrite, {path.name}. Resume the run with --resume auto, or give a new "
                    "--output_dir."
                )
        checkpoint = choose_checkpoint(self.args)
        if checkpoint is not None:
            check_same_folder(checkpoint, folder)
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
        """Check that a model's config fits the checkpoint, before the vocabulary is known."""
        if self.checkpoint is not None:
            settings = model_settings(config)
            for name in OF_VOCABULARY:
                settings.pop(name, None)
            check_model_settings(self.checkpoint.read_state()["settings"], settings)

    def finish(self) -> None:
        """Record that the run is finished; call this after everything else has been written."""
        text = json.dumps(self._settings, indent=2) + "\n"
        write_file(Path(self.args.output_dir) / FINISHED_FILE, text)


def is_longer(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether a run has more updates or patience than the finished one.

    max_steps overrides num_train_epochs. A run with its length in the other unit is longer.
    """
    patience, steps = "early_stopping_patience", "max_steps"
    if before[patience] and not 0 < now[patience] <= before[patience]:
        return True
    if max(before[steps], now[steps]) <= 0:
        return bool(now["num_train_epochs"] > before["num_train_epochs"])
    return bool(min(before[steps], now[steps]) <= 0 or now[steps] > before[steps])


def has_model(folder: Path) -> bool:
    """Whether a folder holds a model or an adapter."""
    return any((folder / name).exists() for name in (CONFIG_NAME, ADAPTER_CONFIG_NAME))


def check_no_other_model(folder: Path) -> None:
    """Check that a model in a folder to resume comes from a run, which leaves other files, too."""
    traces = [folder / name for name in (PID_FILE, FINISHED_FILE)] + list_checkpoints(folder)
    if has_model(folder) and not any(trace.exists() for trace in traces):
        raise ValueError(
            f"output_dir {folder} holds a model, but no run to resume. Give a new --output_dir."
        )


def check_same_folder(checkpoint: Checkpoint, output_dir: Path) -> None:
    """Check that resuming from another folder's checkpoint overwrites no model in output_dir."""
    if has_model(output_dir) and checkpoint.folder.parent.resolve() != output_dir.resolve():
        raise ValueError(
            f"output_dir {output_dir} holds a model of another run, and {checkpoint.folder} is not "
            "in it. Give a new --output_dir."
        )


def claim_folder(output_dir: str | Path) -> None:
    """Lock output_dir until this process ends, and delete checkpoints that were left unfinished."""
    folder = Path(output_dir).resolve()
    if folder in _held:
        return
    pid_file = folder / PID_FILE
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _held[folder] = lock_file(folder / LOCK_FILE)
    except (BlockingIOError, Timeout):
        owner = pid_file.read_text("utf-8").strip() if pid_file.is_file() else "unknown"
        raise OSError(
            f"output_dir is in use by pid {owner}: {output_dir}. Wait until that process has "
            "ended, or give another --output_dir."
        ) from None
    pid_file.write_text(f"{os.getpid()}\n", "utf-8")
    for path in (folder / UNFINISHED_FOLDER).glob(f"*{PREFIX_CHECKPOINT_DIR}-*"):
        shutil.rmtree(path, ignore_errors=True)
