"""Section 5.1: batches of sentences of similar length."""

from collections.abc import Callable, Iterator

import torch
from torch.utils.data import Sampler
from transformers.trainer_pt_utils import get_length_grouped_indices


class LengthGroups(Sampler[int]):
    """Order sentences so that each batch holds similar lengths, and shuffle the batches.

    The sampler of transformers repeatedly goes from long batches to short ones, and the size of the
    gradients follows. Shuffled batches have no such pattern.

    Args:
        lengths: Lengths in tokens. Or a function that returns the lengths in an epoch, as for
            `TokenBatches`; sentence i in epoch e then has the index e * number of sentences + i.
        batch_size: Sentences in a batch.
        seed: Seed of the order.
    """

    def __init__(
        self, lengths: list[int] | Callable[[int], list[int]], batch_size: int, seed: int
    ) -> None:
        self.lengths = lengths
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0
        self._length = len(lengths(0) if callable(lengths) else lengths)

    def set_epoch(self, epoch: int) -> None:
        """Change the order; the trainer calls this before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        lengths, first = self.lengths, 0
        if callable(lengths):
            lengths = lengths(self.epoch)
            first = self.epoch * len(lengths)
        indices = get_length_grouped_indices(lengths, self.batch_size, generator=generator)
        batches = [
            indices[start : start + self.batch_size]
            for start in range(0, len(indices), self.batch_size)
        ]
        # The last batch stays last: if it is smaller, it would shift the bounds of later batches.
        order = torch.randperm(len(indices) // self.batch_size, generator=generator).tolist()
        order += range(len(order), len(batches))
        for batch in order:
            yield from (first + index for index in batches[batch])
