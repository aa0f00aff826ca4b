"""Section 5.1: batches of sentences of approximately the same length."""

from collections.abc import Iterator

import torch
from torch.utils.data import Sampler
from transformers.trainer_pt_utils import get_length_grouped_indices


class LengthGroups(Sampler[int]):
    """Indices such that each batch has sentences of like length, and batches come in any order.

    The library's own sampler goes from long batches to short ones again and again, and the
    gradients with it.

    Args:
        lengths: Length of each sentence, in tokens.
        batch_size: Sentences in a batch.
        seed: Seed of the order; each epoch has another.
    """

    def __init__(self, lengths: list[int], batch_size: int, seed: int) -> None:
        self.lengths = lengths
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Shuffle anew; the trainer calls this."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        indices = get_length_grouped_indices(self.lengths, self.batch_size, generator=generator)
        batches = [
            indices[start : start + self.batch_size]
            for start in range(0, len(indices), self.batch_size)
        ]
        # The last batch may be smaller, and would shift the bounds of those behind it.
        order = torch.randperm(len(indices) // self.batch_size, generator=generator).tolist()
        order += range(len(order), len(batches))
        for batch in order:
            yield from batches[batch]
