"""Flags of the jobs that translate a stream of texts into a file."""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from itertools import tee
from pathlib import Path
from typing import Any

import torch
from transformers.hf_argparser import HfArg

from ..translation.options import SearchOptions
from ..translation.pools import POOL_SIZE, SourceText, read_pools
from ..translation.processes import stream_in_processes
from ..translation.progress import TranslationBar
from ..translation.translator import Translation, Translator
from .shares import Share
from .translation_output import TranslationOutput
from .translator_flags import TranslatorFlags
from .unfinished_settings import check_other_settings, content_settings

logger = logging.getLogger(__name__)

MAX_PROCESSES = 1024  # and threads
# Flags that a resumed run may change. Its lines depend on all others.
INCIDENTAL = frozenset(
    ["output", "resume", "threads", "processes", "device", "batch_size", "max_tokens_per_batch"]
)


@dataclass(kw_only=True)
class StreamFlags(TranslatorFlags):
    """The file to write, and the processes that translate."""

    output: str | None = HfArg(
        default=None,
        help="File to write, plain or .gz; first as OUTPUT.partial. Default: stdout.",
    )
    threads: int | None = HfArg(
        default=None,
        help="Threads of each process, for the engine torch. Default: all cores in equal parts.",
    )
    processes: int = HfArg(
        default=1, help="Processes that translate, each with its own model in memory."
    )
    resume: bool = HfArg(
        default=False,
        help="Resume a stopped run of the same command after the lines of OUTPUT.partial.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("threads", "processes"):
            if (number := getattr(self, name)) is not None and not 1 <= number <= MAX_PROCESSES:
                raise ValueError(f"{name} must be in [1, {MAX_PROCESSES}], got {number}.")
        if self.threads is not None and self.engine != "torch":
            raise ValueError("--threads is for the engine torch. Leave it out.")
        _ = self.destination

    @cached_property
    def destination(self) -> TranslationOutput:
        """Where this process writes."""
        return TranslationOutput(self.output, self.resume, Share.of_this_process())

    @property
    def input_files(self) -> list[Path]:
        """The files that the lines depend on."""
        return []

    @property
    def is_dialogue(self) -> bool:
        """Whether a person types sentences and waits for each translation."""
        return False

    def check_one_line_for_each(self, nbest: int) -> None:
        """Check that each text gets one line, so that lines tell which texts are translated."""
        if nbest > 1 and (self.resume or self.destination.is_shared):
            needs = "--resume needs" if self.resume else "Several launched processes need"
            raise ValueError(f"{needs} --nbest 1: one line for each text.")

    def check_earlier_lines(self, options: SearchOptions) -> None:
        """Check that this run does not delete the lines of a stopped run of the same command."""
        part = self.destination.overwritten_part()
        if part is not None and part.is_file() and part.stat().st_size:
            check_other_settings(part, self._settings(options))

    def load(self, **options: Any) -> Translator:
        """Set the number of threads, and load the translator."""
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        return super().load(**options)

    def write(
        self,
        translator: Translator,
        texts: Iterable[SourceText],
        options: SearchOptions,
        format_lines: Callable[[SourceText, list[Translation]], Iterable[str]],
    ) -> None:
        """Translate texts, and write the lines of each."""
        output = self.destination
        own = output.share.of(texts)
        settings = self._settings(options)
        skipped = output.skip_translated(own, settings)
        own, sources = tee(own)
        is_first = output.share.rank == 0
        with output.open(settings) as file:
            with TranslationBar(is_shown=is_first and not self.is_dialogue) as bar:
                results = self._translations(translator, own, options, bar.report)
                for translations in results:
                    for line in format_lines(next(sources), translations):
                        file.write(f"{line}\n".encode())
                    if not output.is_compressed:  # flushing would make compression useless
                        file.flush()
            if is_first and not (bar.sentences or skipped):
                logger.warning("There is nothing to translate.")

    def _settings(self, options: SearchOptions) -> dict[str, Any]:
        """The flags and options that decide which lines are written."""
        names = {each.name for each in fields(self)} - INCIDENTAL
        settings = {name: getattr(self, name) for name in sorted(names)} | asdict(options)
        if self.output is not None:  # only a file is resumed
            settings |= content_settings(self.input_files)
        return settings

    def _translations(
        self,
        translator: Translator,
        texts: Iterator[SourceText],
        options: SearchOptions,
        report: Callable[[int, int], object],
    ) -> Iterator[list[Translation]]:
        """Translate texts in this process, or in several others."""
        if self.processes > 1 and not self.is_dialogue:
            threads = self.threads or max(1, torch.get_num_threads() // self.processes)
            yield from stream_in_processes(
                self.load,
                texts,
                options,
                processes=self.processes,
                threads=threads,
                pool_size=POOL_SIZE,
                report=report,
                **self.batch_options,
            )
            return
        for pool in read_pools(texts, 1 if self.is_dialogue else POOL_SIZE):
            yield from translator.translate_pool(pool, options, **self.batch_options, report=report)
