"""One thread for all computation of a server."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class ModelThread:
    """Runs functions one after another in a thread of its own.

    torch keeps workers for each thread that computes, and is several times slower if there are more
    of them than cores. Web servers answer each request in another thread.
    """

    def __init__(self) -> None:
        self.executor = ThreadPoolExecutor(max_workers=1)

    def __call__(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Run a function in the thread, and return its result or raise its error."""
        return self.executor.submit(function, *arguments, **options).result()
