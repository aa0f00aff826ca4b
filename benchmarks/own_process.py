"""Run what a benchmark measures in a process of its own.

In one process, contenders would share a heap and pools of threads, and some would be slower than
users see them.
"""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch


class OwnProcess:
    """A function that runs in a process of its own, which ends with this one.

    Args:
        make: Called once in that process, with as many threads of torch as this process has.
            Returns the function. It is pickled, as are the arguments and results of the function.
    """

    def __init__(self, make: Callable[[], Callable[..., Any]]) -> None:
        arguments = (make, torch.get_num_threads())
        self._process = ProcessPoolExecutor(1, get_context("spawn"), _make_function, arguments)
        self._process.submit(int).result()  # Wait until the function is ready.

    def __call__(self, *arguments: Any) -> Any:
        """Call the function.

        Args:
            *arguments: Its arguments.

        Returns:
            Its result.
        """
        return self._process.submit(_call_function, *arguments).result()

    def close(self) -> None:
        """End the process, which frees its memory."""
        self._process.shutdown()


_functions: list[Callable[..., Any]] = []


def _make_function(make: Callable[[], Callable[..., Any]], threads: int) -> None:
    torch.set_num_threads(threads)
    _functions.append(make())


def _call_function(*arguments: Any) -> Any:
    return _functions[0](*arguments)
