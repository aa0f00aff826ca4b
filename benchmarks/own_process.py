"""Run what a benchmark measures in a process of its own.

In one process, contenders would share a heap and pools of threads, and some would be slower than
users see them.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch
from tqdm import tqdm

# Idle threads keep a core busy for a moment.
PAUSE_SECONDS = 0.3


class OwnProcess:
    """A function that runs in a process of its own, which ends with this one.

    Args:
        make: Called once in that process, with as many threads of torch as this process has.
            Returns the function. It is pickled, as are the arguments and results of the function.
    """

    def __init__(self, make: Callable[[], Callable[..., Any]]) -> None:
        arguments = (make, torch.get_num_threads())
        self._process = ProcessPoolExecutor(1, get_context("spawn"), _make_function, arguments)
        self._start = self._process.submit(int)

    def __call__(self, *arguments: Any) -> Any:
        """Call the function, and return its result."""
        return self._process.submit(_call_function, *arguments).result()

    def wait(self) -> None:
        """Wait until the function is made; several processes make theirs at the same time."""
        self._start.result()

    def close(self) -> None:
        """End the process, which frees its memory."""
        self._process.shutdown()


_functions: list[Callable[..., Any]] = []


def _make_function(make: Callable[[], Callable[..., Any]], threads: int) -> None:
    torch.set_num_threads(threads)
    _functions.append(make())


def _call_function(*arguments: Any) -> Any:
    return _functions[0](*arguments)


def pause() -> None:
    """Wait until the threads of the last contender sleep."""
    time.sleep(PAUSE_SECONDS)


def translate_in_turn(
    contenders: Mapping[str, Callable[[list[str]], list[str]]], texts: list[str], rounds: int
) -> tuple[dict[str, float], dict[str, list[str]]]:
    """Let all contenders translate the same texts in turn.

    Args:
        contenders: Functions that translate, by name.
        texts: The texts.
        rounds: Measured rounds, after one to warm up.

    Returns:
        The median seconds of each, and its translations.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    translations: dict[str, list[str]] = {}
    for _ in tqdm(range(rounds + 1), unit="round"):
        for name, translate in contenders.items():
            pause()
            start = time.perf_counter()
            translations[name] = translate(texts)
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(each[1:]) for name, each in seconds.items()}, translations
