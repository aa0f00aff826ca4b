"""Sentences into batches of like length, from a stream that may never end."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")


def pools(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """The items in lists of size, the last perhaps shorter; no more than one list is in memory."""
    iterator = iter(items)
    while pool := list(islice(iterator, size)):
        yield pool


def batches_by_length(
    lengths: Sequence[int], batch_size: int, max_tokens_per_batch: int
) -> list[list[int]]:
    """Which sentences are translated together: longest first, so what fits is known at the start.

    Args:
        lengths: Source tokens of each sentence.
        batch_size: Sentences of a batch at most.
        max_tokens_per_batch: Source tokens at most, padding counted. A longer sentence has a batch
            to itself.

    Returns:
        Indices of each batch's sentences.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        last = batches[-1] if batches else []
        fits = last and (len(last) + 1) * lengths[last[0]] <= max_tokens_per_batch
        if fits and len(last) < batch_size:
            last.append(index)
        else:
            batches.append([index])
    return batches
