"""Compute rows of a corpus once, in several processes, and keep them in the `datasets` cache."""

import ctypes
import errno
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, are_progress_bars_disabled, config

from .lines import content_sha256

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LINES = 30
PR_SET_PDEATHSIG = 1  # of prctl(2)


@cache
def code_sha256() -> str:
    """Hash the code that prepares data, so that a new release does not use old cached results."""
    package = Path(__file__).parents[1]
    files = ("tokenization.py", "saved/languages.py", "training/data.py")
    return content_sha256([*sorted(package.glob("data/*.py")), *map(package.joinpath, files)])


class RowLog:
    """Logs a step. Without a progress bar, also logs the number of rows done every 30 seconds."""

    def __init__(self, step: str, total: int | None = None) -> None:
        self.step = step
        self.total = "" if total is None else f" of {total:,}"
        self.rows = 0
        self._started = self._logged = 0.0
        logger.info(step)

    def add(self, rows: int) -> None:
        """Count rows that are done."""
        now = time.monotonic()
        if not self.rows:
            self._started = self._logged = now
        self.rows += rows
        if are_progress_bars_disabled() and now - self._logged > SECONDS_BETWEEN_LINES:
            self._logged, rate = now, self.rows / (now - self._started)
            logger.info(
                "%s: %s%s rows, %s/s", self.step, f"{self.rows:,}", self.total, f"{rate:,.0f}"
            )


def map_rows(
    rows: Dataset,
    function: Callable[[dict[str, Any]], dict[str, Any]],
    features: Features,
    step: str,
    num_proc: int | None = None,
) -> Dataset:
    """Apply a function to batches of rows, in num_proc processes; return only its columns."""
    log = RowLog(step, len(rows))

    def call(batch: dict[str, Any], rank: int | None, _code: str) -> dict[str, Any]:
        if rank is not None:
            # Otherwise the package tokenizers warns in each forked process.
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
        if not rank:  # all processes are about as fast as the first
            log.add(len(batch["source"]) * (num_proc or 1))
        return function(batch)

    with _mortal_children():
        return rows.map(
            call,
            batched=True,
            with_rank=True,
            fn_kwargs={"_code": code_sha256()},
            remove_columns=rows.column_names,
            features=features,
            num_proc=num_proc,
            desc=step,
        )


@contextmanager
def _mortal_children() -> Iterator[None]:
    """Let Linux end processes that were forked in the block, if this process is killed.

    Otherwise the processes of `datasets` would wait for work forever.
    """
    _mortal.append(True)
    try:
        yield
    finally:
        _mortal.pop()


def _end_with_parent() -> None:
    if _mortal:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


_mortal: list[bool] = []
if sys.platform == "linux":
    _libc = ctypes.CDLL(None)
    os.register_at_fork(after_in_child=_end_with_parent)


def delete_computed(rows: Dataset, patterns: Sequence[str]) -> None:
    """Delete files that match patterns, in the folders of the rows' own cache files."""
    for folder in {Path(file["filename"]).parent for file in rows.cache_files}:
        for path in (path for pattern in patterns for path in folder.glob(pattern)):
            path.unlink()


@contextmanager
def explained_full_disk() -> Iterator[None]:
    """If the disk is full, raise an OSError that names the cache's folder."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise OSError(
            f"No space left for prepared data in {config.HF_DATASETS_CACHE}. Free some, or set "
            "HF_HOME to a folder on a larger disk, and start again."
        ) from error
