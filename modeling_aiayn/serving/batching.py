"""The thread in which a server's models compute, and batches of concurrent requests."""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class ModelThread(ThreadPoolExecutor):
    """Runs functions one after another in one thread.

    torch keeps workers for each thread that computes, and is several times slower if there are more
    workers than cores.
    """

    def __init__(self) -> None:
        super().__init__(max_workers=1)

    def __call__(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Run a function in the thread, and return its result or raise its error."""
        return self.submit(function, *arguments, **options).result()


class QueueFullError(Exception):
    """More sentences would wait than max_waiting allows."""


class Batcher:
    """Translates the waiting sentences of all requests, one batch after another.

    While thread translates a batch of at most batch_size sentences, other requests arrive. The next
    batch takes one sentence of each request in turn, so no request waits for a batch to fill. A
    batch is short if, in the last ten seconds, a request of at most half a short batch joined
    others. It has the sentences that take shared_seconds, or two of each request. So small requests
    do not wait long for large ones. At most max_waiting sentences may wait; a request counts as at
    most one batch, and is always accepted if no other waits.
    """

    def __init__(
        self,
        translate: Callable[[list[Any]], list[str]],
        batch_size: int,
        max_waiting: int,
        thread: ModelThread,
        shared_seconds: float = math.inf,
    ) -> None:
        self.translate, self.shared_seconds = translate, shared_seconds
        self.batch_size, self.max_waiting = batch_size, max_waiting
        self._short = math.inf  # number of sentences that take shared_seconds
        self._short_until = -math.inf
        self._requests: deque[deque[tuple[Any, asyncio.Future[str]]]] = deque()
        self.thread = thread
        self._free = asyncio.Semaphore(max_waiting)  # for functions of `run`
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, sentences: Sequence[Any]) -> list[str]:
        """Translate the sentences of a request.

        Raises:
            QueueFullError: More than max_waiting sentences would wait.
        """
        counts = [min(len(each), self.batch_size) for each in (*self._requests, sentences)]
        if any(counts[:-1]) and sum(counts) > self.max_waiting:
            raise QueueFullError
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[str]] = [loop.create_future() for _ in sentences]
        waiting = deque(zip(sentences, futures, strict=True))
        self._requests.append(waiting)
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._work())
        elif 2 * len(sentences) <= self._short:
            self._short_until = loop.time() + 10
        try:
            return list(await asyncio.gather(*futures))
        finally:
            waiting.clear()  # the request has failed, or its client disconnected
            for future in futures:
                future.cancel()

    @property
    def waiting(self) -> int:
        """The number of waiting sentences."""
        return sum(map(len, self._requests))

    def _next_batch(self, is_short: bool) -> list[tuple[Any, asyncio.Future[str]]]:
        batch: list[tuple[Any, asyncio.Future[str]]] = []
        short = max(self._short, 2 * len(self._requests)) if is_short else math.inf
        while self._requests and len(batch) < min(short, self.batch_size):
            waiting = self._requests.popleft()
            if waiting:
                batch.append(waiting.popleft())
            if waiting:
                self._requests.append(waiting)
        return batch

    async def run(self, function: Callable[[], T]) -> T:
        """Run a function that uses the model, between two batches; at most max_waiting may wait."""
        if self._free.locked():
            raise QueueFullError
        async with self._free:
            return await asyncio.get_running_loop().run_in_executor(self.thread, function)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while batch := self._next_batch(loop.time() < self._short_until):
            started = loop.time()
            sentences = [sentence for sentence, _ in batch]
            try:
                translations = await loop.run_in_executor(self.thread, self.translate, sentences)
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # each request reports it; a panic is not an Exception
                failure = error if isinstance(error, Exception) else RuntimeError(str(error))
                for _, future in batch:
                    if not future.done():
                        future.set_exception(failure)
                continue
            self._short = self.shared_seconds * len(batch) / max(loop.time() - started, 1e-6)
            for (_, future), translation in zip(batch, translations, strict=True):
                if not future.done():
                    future.set_result(translation)
