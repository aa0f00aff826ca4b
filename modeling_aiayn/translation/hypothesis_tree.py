"""The cache of a search: hypotheses change places, their keys and values do not."""

import torch
from torch import Tensor

# Steps after which the tree is tidied.
STEPS = 16


class HypothesisTree:
    """Keys and values of the target, of all hypotheses of a sentence together.

    Each step adds an entry for each hypothesis, below that of the hypothesis it goes on from. What
    it may look at are its ancestors, and a mask says which those are: where beams change places,
    a row of the mask moves, and no key. The hypotheses of a sentence read its entries side by side,
    as positions do in training. Entries without living descendants go from time to time, and what
    stays moves up in the same memory: memory that is new costs a CPU more than what is done in it.

    Args:
        num_layers: Layers of the decoder.
        width: Hypotheses of a sentence at most.
        like: Keys of any layer, [N, H, S, K]: their sizes, type and device are the tree's.
    """

    def __init__(self, num_layers: int, width: int, like: Tensor) -> None:
        self.width = width
        # Entries so far; those of the step under way are the last k.
        self.size = 0
        sentences = len(like)
        self.is_ancestor = torch.empty(
            sentences, 1, 0, dtype=torch.bool, device=like.device
        )  # [N, k, size], with k = 1 at the start
        self._itself = torch.eye(width, dtype=torch.bool, device=like.device)  # [k, k]
        self._tidy_size = STEPS * width
        # Keys and values of each layer, [N, H, 2, room, K].
        self.storage = [self._room(sentences, like) for _ in range(num_layers)]

    def grow(self, parents: Tensor) -> None:
        """Make an entry for each hypothesis of the next step; a layer fills in its own.

        Args:
            parents: Which hypothesis of the sentence each goes on from, [N, k].
        """
        sentences, width = parents.shape
        if self.width > 1:
            index = parents[..., None].expand(-1, -1, self.size)
            self.is_ancestor = self.is_ancestor.gather(1, index)
        if self.size + width > self._tidy_size:
            self._tidy(torch.arange(sentences, device=parents.device))
        itself = self._itself[:width, :width].expand(sentences, -1, -1)
        self.is_ancestor = torch.cat((self.is_ancestor, itself), dim=-1)
        self.size += width

    def mask(self) -> Tensor:
        """What is added to scores, [N * H, k, size]; a single 0 where all entries are ancestors."""
        like = self.storage[0]
        if self.width == 1:
            return like.new_zeros(1, 1, 1)
        mask = like.new_zeros(self.is_ancestor.shape)
        mask = mask.masked_fill_(~self.is_ancestor, torch.finfo(like.dtype).min)
        return mask.repeat_interleave(like.size(1), dim=0)

    def keep(self, sentences: Tensor) -> None:
        """Go on with some of the sentences.

        Args:
            sentences: Their indices, [M].
        """
        self.is_ancestor = self.is_ancestor[sentences]
        self._tidy(sentences)

    def _tidy(self, sentences: Tensor) -> None:
        """Move the entries that have descendants to the front."""
        has_descendants = self.is_ancestor.any(1)  # [N, size]
        size = int(has_descendants.sum(1).max())
        order = has_descendants.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
        order = order[:, :size]
        index = order[:, None].expand(-1, self.is_ancestor.size(1), -1)
        self.is_ancestor = self.is_ancestor.gather(2, index)
        self.size = size
        self._tidy_size = size + STEPS * self.width
        rows = self._rows(sentences, order)
        for layer, kept in enumerate(self.storage):
            found = kept.flatten(0, 3).index_select(0, rows.flatten())
            is_full = self._tidy_size > kept.size(3)
            moved = self._room(len(sentences), kept[:, :, 0]) if is_full else kept[: len(sentences)]
            moved[:, :, :, :size] = found.view(*rows.shape, -1)
            self.storage[layer] = moved

    def _rows(self, sentences: Tensor, order: Tensor) -> Tensor:
        """Where entries are in a layer's storage as one matrix of keys and values.

        Rows of a matrix move about twice as fast as slices of a tensor of five dimensions.

        Args:
            sentences: Their indices, [M].
            order: The entries of each, [M, size].

        Returns:
            Rows of each head's keys, then of its values, [M, H, 2, size].
        """
        _, heads, sides, room, _ = self.storage[0].shape
        blocks = torch.arange(heads * sides, device=order.device).view(heads, sides)
        blocks = sentences[:, None, None] * heads * sides + blocks  # [M, H, 2]
        return blocks[..., None] * room + order[:, None, None]

    def _room(self, sentences: int, like: Tensor) -> Tensor:
        """Twice what is needed until entries are tidied next, so that it seldom is too small."""
        return like.new_empty(sentences, like.size(1), 2, 2 * self._tidy_size, like.size(3))
