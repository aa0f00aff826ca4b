"""Translate one stream of texts in several processes, and keep the order of the texts."""

import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache, partial
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from .options import SearchOptions
from .pools import SourceText
from .translator import Translation, Translator

Pool = list[list[Translation]]


def default_device(device: str | None, process: int = 0) -> str:
    """Return the given device, else a GPU, else the CPU; processes get GPUs in turn."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and torch.cuda.is_available():
        return f"cuda:{process % torch.cuda.device_count()}"
    try:
        return str(torch.empty(0, device=device).device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA raises an AssertionError
        message = "device must be a device of torch that this machine has, such as cpu"
        raise ValueError(f"{message}, got {device!r}.") from error


def translate_in_processes(
    load: Callable[[int], Translator],
    processes: int,
    threads: int,
    pools: Iterable[list[SourceText]],
    options: SearchOptions,
    report: Callable[[int, int], object],
    **batch_sizes: int,
) -> Iterator[list[Translation]]:
    """Translate pools with a translator in each process, in the order of their texts.

    Only a few pools are in memory. load is pickled and gets the process number; each process has
    `threads` threads. A killed process, for example for lack of memory, raises an OSError.
    """
    context = multiprocessing.get_context("spawn")
    started = context.Value("i", 0)
    executor = ProcessPoolExecutor(processes, context, _start, (load, threads, started))
    running: deque[Future[Pool]] = deque()
    others = set(multiprocessing.active_children())
    try:
        for pool in pools:
            running.append(executor.submit(_translate, pool, options, batch_sizes))
            if len(running) > processes:  # the next pool waits while all processes work
                yield from _reported(running, report)
        while running:
            yield from _reported(running, report)
    except BrokenProcessPool as error:
        raise OSError(
            "A translation process was killed, probably because memory ran out. Use fewer "
            "--processes, or a smaller --batch_size or --max_tokens_per_batch."
        ) from error
    finally:
        if running:  # an error, or the caller stops early: do not wait for the running pools
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
        executor.shutdown(cancel_futures=True)


def _reported(running: deque[Future[Pool]], report: Callable[[int, int], object]) -> Pool:
    pool = running[0].result()
    running.popleft()
    report(len(pool), sum(len(best.token_ids) for best, *_ in pool))
    return pool


def _start(load: Callable[[int], Translator], threads: int, started: Any) -> None:
    """Set up a process; started counts the processes that have started before it."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    disable_progress_bar()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, which ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    with started.get_lock():
        number, started.value = started.value, started.value + 1
    _loader.append(cache(partial(load, number)))


def _end_with_parent() -> None:
    parent: Any = multiprocessing.parent_process()
    parent.join()
    os._exit(1)


_loader: list[Callable[[], Translator]] = []  # returns the translator of this process


def _translate(pool: list[SourceText], options: SearchOptions, batches: dict[str, Any]) -> Pool:
    return _loader[0]().translate_pool(pool, options, **batches)
