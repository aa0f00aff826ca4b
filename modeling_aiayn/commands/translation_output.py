"""The file that translations are written to, line by line: it can be resumed and shared."""

import gzip
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from ..saved.whole_files import new_file
from ..translation.pools import SourceText
from .output_files import PARTIAL, claimed, keep_whole_lines, partial_path
from .shares import Share, merge
from .unfinished_settings import check_same_settings, recorded_settings

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TranslationOutput:
    """Where a job writes translations.

    Until they are complete, they are in OUTPUT.partial, or in a file for each process that a
    launcher has started.

    Args:
        path: The file, plain or .gz. None: stdout.
        resume: Whether to continue after the lines that an earlier run has left.
        share: The share of this process.

    Raises:
        ValueError: path is stdout, a device or a pipe, which cannot be resumed or shared, or a .gz,
            which cannot be resumed.
    """

    path: str | None
    resume: bool
    share: Share

    def __post_init__(self) -> None:
        if self.resume and (self._partial is None or self.is_compressed):
            raise ValueError("--resume needs an --output that is a file, and not a .gz.")
        if self.is_shared and self._partial is None:
            raise ValueError(
                f"{self.share.processes} processes were launched. They need an --output that is a "
                "file which all of them can write to."
            )

    @property
    def is_compressed(self) -> bool:
        """Whether the file is a .gz."""
        return self.path is not None and self.path.endswith(".gz")

    @property
    def is_shared(self) -> bool:
        """Whether a launcher has started several processes."""
        return self.share.processes > 1

    @property
    def _partial(self) -> str | None:
        return partial_path(self.path)

    def _unfinished(self) -> Path:
        """The file of this process until all are complete."""
        partial = str(self._partial)
        return self.share.parts(partial)[self.share.rank] if self.is_shared else Path(partial)

    def skip_translated(self, texts: Iterator[SourceText], settings: Mapping[str, Any]) -> int:
        """Skip the texts that an earlier run has translated, and return their number.

        settings are values that JSON can hold, on which the lines depend.

        Raises:
            OSError: The earlier run is still running.
            ValueError: The earlier run had other settings, texts or processes.
        """
        if not self.resume:
            return 0
        self.share.check_parts(str(self._partial))
        unfinished = self._unfinished()
        first = 0
        if unfinished.is_file():
            with claimed(unfinished):
                first = keep_whole_lines(unfinished)
        if sum(1 for _ in islice(texts, first)) < first:
            raise ValueError(
                f"{unfinished} has {first} lines, more than there are texts. It is of another "
                "command: delete it, or give another --output."
            )
        if first:
            check_same_settings(unfinished, settings)
            logger.info("Continuing after %d lines.", first)
        return first

    def overwritten_part(self) -> Path | None:
        """The unfinished file that this run would overwrite, which may not exist; or None."""
        return None if self.resume or self._partial is None else self._unfinished()

    @contextmanager
    def open(self, settings: Mapping[str, Any]) -> Iterator[BinaryIO]:
        """Open the file that this process writes; it becomes the output at the end.

        With several processes, this waits for all of them, and the first one merges their files.
        settings are those of `skip_translated`.

        Raises:
            OSError: Another process writes this output.
        """
        if self.path is None:
            yield sys.stdout.buffer
            return
        claim = nullcontext() if self._partial is None else claimed(self._unfinished())
        with claim, self._recorded(settings), self._opened(self.path) as file:
            yield file

    def _recorded(self, settings: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Keep settings beside the unfinished file, for a run that resumes it."""
        if self._partial is None or self.is_compressed:
            return nullcontext()
        if not self.resume:  # lines of an older run must not get these settings
            self._unfinished().write_bytes(b"")
        return recorded_settings(self._unfinished(), settings)

    @contextmanager
    def _opened(self, output: str) -> Iterator[BinaryIO]:
        mode: Any = "ab" if self.resume else "wb"
        opened: Any = gzip.open if self.is_compressed else open
        try:
            if self.is_shared:
                with self._unfinished().open(mode) as file:
                    yield file
            else:
                with new_file(output, kept=PARTIAL) as path, opened(path, mode) as file:
                    yield file
        except BaseException:
            if self._partial and self._unfinished().is_file():
                logger.warning("The lines written so far are in %s.", self._unfinished())
            raise
        if not self.is_shared:
            return
        self.share.wait()
        if self.share.rank == 0:
            parts = self.share.parts(str(self._partial))
            with new_file(output) as path, opened(path, "wb") as file:
                merge(parts, file)
            for part in parts:
                part.unlink()
