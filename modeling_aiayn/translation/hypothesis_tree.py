"""The cache of a search: hypotheses change places, their keys and values do not."""

import torch
from torch import Tensor

# Steps that there is room for after the tree was last tidied.
ROOM = 16


class HypothesisTree:
    """Keys and values of the target, of all hypotheses of a sentence together.

    Each step adds an entry for each hypothesis, below that of the hypothesis it goes on from. What
    it may look at are its ancestors, and a mask says which those are: where beams change places,
    a row of the mask moves, and no key. The hypotheses of a sentence read its entries side by side,
    as positions do in training. Entries without living descendants go when the room is used up.

    Args:
        num_layers: Layers of the decoder.
        width: Hypotheses of a sentence, k.
        like: Keys of any layer, [N, H, S, K]: their sizes, type and device are the tree's.
    """

    def __init__(self, num_layers: int, width: int, like: Tensor) -> None:
        self.width = width
        # Entries so far; those of the step under way are the last k.
        self.size = 0
        sentences = len(like)
        self.is_ancestor = torch.empty(
            sentences, width, 0, dtype=torch.bool, device=like.device
        )  # [N, k, size]
        self._itself = torch.eye(width, dtype=torch.bool, device=like.device)  # [k, k]
        # Keys and values of each layer, [2, N, H, room, K].
        self.storage = [self._room(sentences, 0, like) for _ in range(num_layers)]

    def grow(self, parents: Tensor) -> None:
        """Make an entry for each hypothesis of the next step; a layer fills in its own.

        Args:
            parents: Which hypothesis of the sentence each goes on from, [N, k].
        """
        if self.width > 1:
            index = parents[..., None].expand(-1, -1, self.size)
            self.is_ancestor = self.is_ancestor.gather(1, index)
        if self.size + self.width > self.storage[0].size(3):
            self._tidy(torch.arange(len(parents), device=parents.device))
        itself = self._itself.expand(len(parents), -1, -1)
        self.is_ancestor = torch.cat((self.is_ancestor, itself), dim=-1)
        self.size += self.width

    def mask(self) -> Tensor | None:
        """What is added to scores, [N * H, k, size]; None where all entries are ancestors."""
        if self.width == 1:
            return None
        like = self.storage[0]
        mask = like.new_zeros(self.is_ancestor.shape)
        mask = mask.masked_fill_(~self.is_ancestor, torch.finfo(like.dtype).min)
        return mask.repeat_interleave(like.size(2), dim=0)

    def keep(self, sentences: Tensor) -> None:
        """Go on with some of the sentences.

        Args:
            sentences: Their indices, [M].
        """
        self.is_ancestor = self.is_ancestor[sentences]
        self._tidy(sentences)

    def _tidy(self, sentences: Tensor) -> None:
        """Move the entries that have descendants to the front, and make room behind them."""
        has_descendants = self.is_ancestor.any(1)  # [N, size]
        size = int(has_descendants.sum(1).max())
        order = has_descendants.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
        order = order[:, :size]
        index = order[:, None].expand(-1, self.width, -1)
        self.is_ancestor = self.is_ancestor.gather(2, index)
        self.size = size
        rows = self._rows(sentences, order)
        for layer, kept in enumerate(self.storage):
            moved = self._room(len(sentences), size, kept[0])
            found = kept.flatten(0, 3).index_select(0, rows.flatten())
            moved[:, :, :, :size] = found.view(*rows.shape, -1)
            self.storage[layer] = moved

    def _rows(self, sentences: Tensor, order: Tensor) -> Tensor:
        """Where entries are in a layer's storage as one matrix of keys and values.

        Rows of a matrix move about twice as fast as slices of a tensor of five dimensions.

        Args:
            sentences: Their indices, [M].
            order: The entries of each, [M, size].

        Returns:
            Rows of keys, then of values, [2, M, H, size].
        """
        _, count, heads, room, _ = self.storage[0].shape
        sides, places = (torch.arange(n, device=order.device) for n in (2, heads))
        blocks = (sides[:, None, None] * count + sentences[:, None]) * heads + places  # [2, M, H]
        return blocks[..., None] * room + order[:, None]

    def _room(self, sentences: int, size: int, like: Tensor) -> Tensor:
        return like.new_empty(2, sentences, like.size(1), size + ROOM * self.width, like.size(3))
