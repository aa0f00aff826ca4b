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
        num_sentences: Sentences, N.
        width: Hypotheses of each, k.
        device: Where the tensors are.
    """

    def __init__(
        self, num_layers: int, num_sentences: int, width: int, device: torch.device
    ) -> None:
        self.width = width
        self.size = 0
        self.is_ancestor = torch.empty(
            num_sentences, width, 0, dtype=torch.bool, device=device
        )  # [N, k, size]
        self._itself = torch.eye(width, dtype=torch.bool, device=device)  # [k, k]
        # Of each layer, [2, N, H, room, K].
        self._storage = [torch.empty(0)] * num_layers

    def grow(self, parents: Tensor) -> None:
        """Make an entry for each hypothesis of the next step; `update` fills it in.

        Args:
            parents: Which hypothesis of the sentence each goes on from, [N, k].
        """
        if self.width > 1:
            index = parents[..., None].expand(-1, -1, self.size)
            self.is_ancestor = self.is_ancestor.gather(1, index)
        storage = self._storage[0]
        if storage.dim() > 1 and self.size + self.width > storage.size(3):
            self._tidy(torch.arange(len(parents), device=parents.device))
        itself = self._itself.expand(len(parents), -1, -1)
        self.is_ancestor = torch.cat((self.is_ancestor, itself), dim=-1)
        self.size += self.width

    def mask(self, dtype: torch.dtype, heads: int) -> Tensor | None:
        """What is added to scores, [N * H, k, size]; None where all entries are ancestors."""
        if self.width == 1:
            return None
        mask = torch.zeros(self.is_ancestor.shape, dtype=dtype, device=self.is_ancestor.device)
        mask = mask.masked_fill_(~self.is_ancestor, torch.finfo(dtype).min)
        return mask.repeat_interleave(heads, dim=0)

    def update(self, layer: int, keys_values: Tensor) -> Tensor:
        """Fill in one layer's newest entries.

        Args:
            layer: The layer.
            keys_values: Their keys and values, [2, N, H, k, K].

        Returns:
            Those of all entries, [2, N * H, size, K].
        """
        storage = self._storage[layer]
        if storage.dim() == 1:
            storage = self._storage[layer] = self._room_for(keys_values, 0)
        storage[:, :, :, self.size - self.width : self.size] = keys_values
        return storage[:, :, :, : self.size].flatten(1, 2)

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
        for layer, kept in enumerate(self._storage):
            if kept.dim() > 1:
                moved = self._room_for(kept[:, : len(sentences)], size)
                for side in range(2):
                    # Indices around a slice come first: [N, size, H, K].
                    found = kept[side][sentences[:, None], :, order]
                    moved[side, :, :, :size] = found.transpose(1, 2)
                self._storage[layer] = moved

    def _room_for(self, like: Tensor, size: int) -> Tensor:
        shape = list(like.shape)
        shape[3] = size + ROOM * self.width
        return like.new_empty(shape)
