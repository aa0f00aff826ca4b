"""Section 5.1: batches of sentences of like length, with about as many tokens in each.

A batch's size is its source plus target tokens, padding counted. Sentence pairs are points with two
lengths: a pool of them is halved along its longer spread until each part fits a batch. So the pairs
of a batch have like lengths on both sides, and hardly anything is padding.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count, islice
from typing import Any

import numpy as np
import pyarrow.compute
from datasets import Dataset
from datasets import IterableDataset as StreamedDataset
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, Sampler, get_worker_info

# How full batches are aimed to be: fuller ones must be halved more often, and end up emptier.
FILL = 0.9
# Rows of the library's streams that are read at once.
ROWS = 1000

Lengths = NDArray[np.int64]


def pair_lengths(dataset: Dataset | Iterable[dict[str, list[int]]]) -> Lengths:
    """Source and target lengths of encoded pairs.

    Args:
        dataset: Pairs with "input_ids" and "labels".

    Returns:
        Lengths in tokens, [pairs, 2].
    """
    columns = ("input_ids", "labels")
    if not isinstance(dataset, Dataset):
        return np.array([[len(row[name]) for name in columns] for row in dataset]).reshape(-1, 2)
    tables = dataset.select_columns(columns).with_format("arrow").iter(10_000)
    lengths = [
        np.stack([pyarrow.compute.list_value_length(table[name]) for name in columns], axis=1)
        for table in tables
    ]
    return np.concatenate(lengths).astype(np.int64)


def cut_batches(
    lengths: Lengths, max_tokens: int, generator: np.random.Generator, multiple_of: int = 1
) -> list[NDArray[np.int64]]:
    """Part pairs into batches of at most max_tokens each, in random order.

    How many batches there are, and of which lengths, depends on the lengths alone; which of the
    pairs of equal lengths goes where is drawn.

    Args:
        lengths: Source and target lengths in tokens, as they are padded, [pairs, 2].
        max_tokens: Tokens in a batch at most: source plus target, padding counted.
        generator: Draws the order.
        multiple_of: The number of batches is a multiple of this; batches are halved to make it so.

    Returns:
        Indices of each batch's pairs.

    Raises:
        ValueError: A pair alone is more than max_tokens, or there are fewer pairs than batches.
    """
    longest = int(lengths.sum(1).max())
    if longest > max_tokens:
        raise ValueError(
            f"max_tokens_per_batch={max_tokens} is less than the {longest} tokens, source plus "
            "target, of one pair. Raise it, or leave out long pairs by a smaller --max_length."
        )
    batches, parts = [], [generator.permutation(len(lengths))]
    while parts:
        part = parts.pop()
        if _padded(lengths[part]) <= max_tokens:
            batches.append(part)
        else:
            parts += _halve(part, lengths, max_tokens)
    needed = -(-len(batches) // multiple_of) * multiple_of
    if len(lengths) < needed:
        raise ValueError(
            f"{needed} batches of {max_tokens} tokens at most, {multiple_of} at a time, need as "
            f"many pairs, got {len(lengths)}: raise max_tokens_per_batch, or use fewer processes."
        )
    while len(batches) < needed:
        largest = max(range(len(batches)), key=lambda index: len(batches[index]))
        batches[largest : largest + 1] = _halve(batches[largest], lengths, max_tokens)
    return [batches[index] for index in generator.permutation(len(batches))]


def _padded(lengths: Lengths) -> int:
    return int(lengths.max(0).sum() * len(lengths))


def _halve(
    part: NDArray[np.int64], lengths: Lengths, max_tokens: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cut part in two along the side on which its lengths differ more, between whole batches."""
    its_lengths = lengths[part]
    side = int(its_lengths.std(0).argmax())
    key = its_lengths[:, side] * (its_lengths.max() + 1) + its_lengths[:, 1 - side]
    # In as few bits as will do: 16 are sorted in linear time.
    ordered = part[np.argsort(key.astype(np.min_scalar_type(key.max())), kind="stable")]
    tokens = lengths[ordered].sum(1).cumsum()
    batches = max(2, math.ceil(tokens[-1] / (FILL * max_tokens)))
    middle = np.searchsorted(tokens, tokens[-1] * (batches // 2) / batches)
    middle = int(middle.clip(1, len(part) - 1))
    return ordered[:middle], ordered[middle:]


class TokenBatches(Sampler[list[int]]):
    """One process's batches of a dataset; each epoch in another order.

    All processes have the same number of batches, in each epoch.

    Args:
        lengths: Source and target lengths in tokens, as they are padded, [pairs, 2].
        max_tokens: Tokens in a batch at most: source plus target, padding counted.
        seed: Seed of the order.
        process: This process.
        num_processes: All of them.

    Raises:
        ValueError: See `cut_batches`.
    """

    def __init__(
        self, lengths: Lengths, max_tokens: int, seed: int, process: int = 0, num_processes: int = 1
    ) -> None:
        self.lengths = lengths
        self.max_tokens = max_tokens
        self.seed = seed
        self.process = process
        self.num_processes = num_processes
        self.epoch = 0
        self._length = len(self._batches())

    def set_epoch(self, epoch: int) -> None:
        """Draw another order; the trainer calls this."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[list[int]]:
        return (batch.tolist() for batch in self._batches())

    def _batches(self) -> list[NDArray[np.int64]]:
        generator = np.random.default_rng((self.seed, self.epoch))
        batches = cut_batches(self.lengths, self.max_tokens, generator, self.num_processes)
        return batches[self.process :: self.num_processes]


class StreamedTokenBatches(IterableDataset[Any]):
    """One process's batches of a stream of pairs, which begins anew where it ends, for ever.

    Every process and every worker reads the whole stream and collates its own batches, so that the
    order depends on neither.

    Args:
        stream: Pairs with "input_ids" and "labels"; each iteration gives all of them.
        collate: From pairs to a batch of tensors.
        max_tokens: Tokens in a batch at most: source plus target, padding counted.
        pool_size: Pairs that are read and shuffled together.
        seed: Seed of the order.
        process: This process.
        num_processes: All of them.
        pad_to_multiple_of: What collate pads lengths to a multiple of.

    Raises:
        ValueError: The stream is empty, or see `cut_batches`.
    """

    def __init__(
        self,
        stream: Iterable[dict[str, list[int]]],
        collate: Callable[[list[dict[str, list[int]]]], Any],
        max_tokens: int,
        pool_size: int,
        seed: int,
        process: int = 0,
        num_processes: int = 1,
        pad_to_multiple_of: int | None = None,
    ) -> None:
        self.stream = stream
        self.collate = collate
        self.max_tokens = max_tokens
        self.pool_size = pool_size
        self.seed = seed
        self.process = process
        self.num_processes = num_processes
        self.pad_to_multiple_of = pad_to_multiple_of

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for pairs in islice(self._batches(), first, None, step):
            yield self.collate(pairs)

    def _batches(self) -> Iterator[list[dict[str, list[int]]]]:
        for number, pool in enumerate(self._pools()):
            lengths = padded_lengths(pair_lengths(pool), self.pad_to_multiple_of)
            generator = np.random.default_rng((self.seed, number))
            batches = cut_batches(lengths, self.max_tokens, generator, self.num_processes)
            for batch in batches[self.process :: self.num_processes]:
                yield [pool[index] for index in batch]

    def _pools(self) -> Iterator[list[dict[str, list[int]]]]:
        for epoch in count():
            if hasattr(self.stream, "set_epoch"):
                self.stream.set_epoch(epoch)
            rows = _all_rows(self.stream)
            pool = list(islice(rows, self.pool_size))
            if not pool:
                raise ValueError("The stream of training pairs is empty.")
            while pool:
                following = list(islice(rows, self.pool_size))
                # Too few for every process to have a batch.
                if len(following) < self.num_processes:
                    pool, following = list(chain(pool, following)), []
                yield pool
                pool = following


def _all_rows(stream: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """All of a stream's rows: a worker that iterates over one of the library's has its shards'."""
    if not isinstance(stream, StreamedDataset):
        return iter(stream)
    return (
        dict(zip(columns, row, strict=True))
        for columns in stream.iter(ROWS)
        for row in zip(*columns.values(), strict=True)
    )


def padded_lengths(lengths: Lengths, multiple_of: int | None) -> Lengths:
    """Lengths rounded up to a multiple, if there is one.

    Args:
        lengths: Lengths in tokens, [pairs, 2].
        multiple_of: What batches are padded to a multiple of.

    Returns:
        Lengths as they are in a batch, [pairs, 2].
    """
    return lengths if multiple_of is None else -(-lengths // multiple_of) * multiple_of
