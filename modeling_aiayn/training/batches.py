"""Section 5.1: batches of sentence pairs of similar length, with about equally many tokens.

The size of a batch is its source plus target tokens, including padding. A pair is a point with two
coordinates, its two lengths. The set of all pairs is halved along the coordinate that varies more,
until each part fits into a batch. So a batch holds pairs of similar lengths on both sides, and
little padding.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute
import torch
from datasets import Dataset
from numpy.typing import NDArray
from torch.utils.data import Sampler
from transformers.trainer_pt_utils import get_length_grouped_indices

# Target share of max_tokens in a batch. With a higher target more parts turn out too large and are
# halved once more, so that batches are emptier on average.
FILL = 0.9

Lengths = NDArray[np.int32]
# The columns of ids of a sentence pair, and of a text.
PAIR = ("input_ids", "labels")
TEXT = ("input_ids",)


def token_lengths(
    dataset: Dataset | Sequence[dict[str, list[int]]], columns: Sequence[str]
) -> Lengths:
    """Lengths of the columns of ids, in tokens, [examples, columns]."""
    if not isinstance(dataset, Dataset):
        rows = (dataset[index] for index in range(len(dataset)))
        counts = [[len(row[name]) for name in columns] for row in rows]
        return np.array(counts, np.int32).reshape(-1, len(columns))
    tables = dataset.select_columns([*columns]).with_format("arrow").iter(10_000)
    lengths = [
        np.stack([pyarrow.compute.list_value_length(table[name]) for name in columns], axis=1)
        for table in tables
    ]
    return np.concatenate([np.zeros((0, len(columns)), np.int32), *lengths])


def cut_batches(
    lengths: Lengths,
    max_tokens: int,
    generator: np.random.Generator,
    num_processes: int = 1,
    count: int | None = None,
) -> list[NDArray[np.int64]]:
    """Divide the indices of pairs into batches of at most max_tokens, in random order.

    The number of batches and their sizes depend only on the lengths, [pairs, 2] in tokens with
    padding. The generator only decides which of the pairs with equal lengths go into which batch,
    and the order of the batches. Some batches are halved to make their number a multiple of
    num_processes, or count if given; if there are more than count, random ones are left out.
    """
    longest = int(lengths.sum(1).max(initial=0))
    if longest > max_tokens:
        raise ValueError(
            f"max_tokens_per_batch={max_tokens} is less than the {longest} tokens, source plus "
            "target, of one pair. Raise it, or skip long pairs with a smaller --max_length."
        )
    batches, parts = [], [generator.permutation(len(lengths))] if len(lengths) else []
    while parts:
        part = parts.pop()
        padded_size = lengths[part].max(0).sum() * len(part)
        if padded_size <= max_tokens:
            batches.append(part)
        else:
            parts += _halve(part, lengths, max_tokens)
    needed = count or -(-max(len(batches), 1) // num_processes) * num_processes
    if len(lengths) < needed:
        raise ValueError(
            f"Training needs at least {needed} pairs, one for each batch of at most {max_tokens} "
            f"tokens of {num_processes} processes, got {len(lengths)}. Raise max_tokens_per_batch, "
            "or use fewer processes or more pairs."
        )
    while len(batches) < needed:
        largest = max(range(len(batches)), key=lambda index: len(batches[index]))
        batches[largest : largest + 1] = _halve(batches[largest], lengths, max_tokens)
    return [batches[index] for index in generator.permutation(len(batches))[:needed]]


def _halve(
    part: NDArray[np.int64], lengths: Lengths, max_tokens: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Halve a part along the side whose lengths vary more, at a multiple of the batch size."""
    part_lengths = lengths[part]
    side = int(part_lengths.std(0).argmax())
    key = part_lengths[:, side] * (part_lengths.max() + 1) + part_lengths[:, 1 - side]
    # numpy sorts integers of 16 bits in linear time.
    ordered = part[np.argsort(key.astype(np.min_scalar_type(key.max())), kind="stable")]
    tokens = lengths[ordered].sum(1).cumsum()
    batches = max(2, math.ceil(tokens[-1] / (FILL * max_tokens)))
    middle = np.searchsorted(tokens, tokens[-1] * (batches // 2) / batches)
    middle = int(middle.clip(1, len(part) - 1))
    return ordered[:middle], ordered[middle:]


@dataclass(eq=False)
class TokenBatches(Sampler[list[int]]):
    """The batches of one process, in a different order in each epoch; see `cut_batches`.

    All processes and all epochs have the same number of batches. draw returns the indices of an
    epoch's pairs; None: all pairs.
    """

    lengths: Lengths
    max_tokens: int
    seed: int
    process: int = 0
    num_processes: int = 1
    draw: Callable[[np.random.Generator], NDArray[np.int64]] | None = None

    def __post_init__(self) -> None:
        self.epoch = 0
        self._count: int | None = None
        self._kept: tuple[int, list[NDArray[np.int64]]] = (0, self._batches())

    def set_epoch(self, epoch: int) -> None:
        """Change the order; the trainer calls this before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._kept[1])

    def __iter__(self) -> Iterator[list[int]]:
        if self._kept[0] != self.epoch:
            self._kept = self.epoch, self._batches()
        return (batch.tolist() for batch in self._kept[1])

    def _batches(self) -> list[NDArray[np.int64]]:
        generator = np.random.default_rng((self.seed, self.epoch))
        rows = None if self.draw is None else self.draw(generator)
        lengths = self.lengths if rows is None else self.lengths[rows]
        options = (self.max_tokens, generator, self.num_processes, self._count)
        batches = cut_batches(lengths, *options)
        self._count = len(batches)
        own = batches[self.process :: self.num_processes]
        return own if rows is None else [rows[batch] for batch in own]


class LengthGroups(Sampler[int]):
    """Order examples so that each batch holds similar lengths, and shuffle the batches.

    The sampler of transformers repeatedly goes from long batches to short ones, and the size of the
    gradients follows. Shuffled batches have no such pattern. lengths are [examples, columns]; an
    example's longest column counts.
    """

    def __init__(self, lengths: Lengths, batch_size: int, seed: int) -> None:
        self.lengths: list[int] = lengths.max(1).tolist()
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Change the order; the trainer calls this before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        indices = get_length_grouped_indices(self.lengths, self.batch_size, generator=generator)
        size = self.batch_size
        batches = [indices[start : start + size] for start in range(0, len(indices), size)]
        # The last batch stays last: if it is smaller, it would shift the bounds of later batches.
        order = torch.randperm(len(indices) // size, generator=generator).tolist()
        for batch in (*order, *range(len(order), len(batches))):
            yield from batches[batch]


def padded_lengths(lengths: Lengths, pad_to_multiple_of: int | None) -> Lengths:
    """Round lengths up to a multiple of pad_to_multiple_of tokens. None: do not round."""
    if pad_to_multiple_of is None:
        return lengths
    return -(-lengths // pad_to_multiple_of) * pad_to_multiple_of
