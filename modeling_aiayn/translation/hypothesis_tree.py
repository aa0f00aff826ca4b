"""The cache of a search: hypotheses change places, their keys and values do not."""

import torch
from torch import Tensor
from transformers import Cache

# Steps that there is room for after the tree was last tidied.
ROOM = 16


class HypothesisTree(Cache):
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
        super().__init__(layers=[])
        self.width = width
        self.size = 0
        self.is_ancestor = torch.empty(
            num_sentences, width, 0, dtype=torch.bool, device=device
        )  # [N, k, size]
        self._itself = torch.eye(width, dtype=torch.bool, device=device)  # [k, k]
        self._storage: list[tuple[Tensor, Tensor] | None] = [None] * num_layers

    def grow(self, parents: Tensor) -> None:
        """Make an entry for each hypothesis of the next step; `update` fills it in.

        Args:
            parents: Which hypothesis of the sentence each goes on from, [N, k].
        """
        index = parents[..., None].expand(-1, -1, self.size)
        self.is_ancestor = self.is_ancestor.gather(1, index)
        storage = self._storage[0]
        if storage is not None and self.size + self.width > storage[0].size(2):
            self._tidy()
        itself = self._itself.expand(len(parents), -1, -1)
        self.is_ancestor = torch.cat((self.is_ancestor, itself), dim=-1)
        self.size += self.width

    def mask(self, dtype: torch.dtype) -> Tensor | None:
        """What is added to scores, [N, 1, k, size]; None where all entries are ancestors."""
        if self.width == 1:
            return None
        mask = torch.zeros(self.is_ancestor.shape, dtype=dtype, device=self.is_ancestor.device)
        return mask.masked_fill(~self.is_ancestor, torch.finfo(dtype).min)[:, None]

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: object,  # noqa: ARG002 (the library's signature)
        **kwargs: object,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """Fill in one layer's newest entries.

        Args:
            key_states: Their keys, [N, H, k, K].
            value_states: Their values, [N, H, k, K].
            layer_idx: The layer.
            *args: Nothing here.
            **kwargs: Nothing here.

        Returns:
            Keys and values of all entries, [N, H, size, K] each.
        """
        storage = self._storage[layer_idx]
        if storage is None:
            storage = (self._room_for(key_states, 0), self._room_for(value_states, 0))
            self._storage[layer_idx] = storage
        for kept, states in zip(storage, (key_states, value_states), strict=True):
            kept[:, :, self.size - self.width : self.size] = states
        keys, values = storage
        return keys[:, :, : self.size], values[:, :, : self.size]

    def keep(self, sentences: Tensor) -> None:
        """Go on with some of the sentences.

        Args:
            sentences: Their indices, [M].
        """
        self.is_ancestor = self.is_ancestor[sentences]
        self._tidy(sentences)

    def _tidy(self, sentences: Tensor | None = None) -> None:
        """Move the entries that have descendants to the front, and make room behind them."""
        has_descendants = self.is_ancestor.any(1)  # [N, size]
        size = int(has_descendants.sum(1).max())
        order = has_descendants.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[
            :, :size
        ]
        self.is_ancestor = self.is_ancestor.gather(
            2, order[:, None].expand(-1, self.width, -1)
        )  # [N, k, size]
        self.size = size
        rows = torch.arange(len(order), device=order.device) if sentences is None else sentences
        for layer, storage in enumerate(self._storage):
            if storage is not None:
                keys, values = (self._moved(kept, rows, order) for kept in storage)
                self._storage[layer] = (keys, values)

    def _moved(self, kept: Tensor, rows: Tensor, order: Tensor) -> Tensor:
        moved = self._room_for(kept[: len(rows)], order.size(1))
        # Indices around a slice come first: [N, size, H, K].
        moved[:, :, : order.size(1)] = kept[rows[:, None], :, order].transpose(1, 2)
        return moved

    def _room_for(self, like: Tensor, size: int) -> Tensor:
        shape = (like.size(0), like.size(1), size + ROOM * self.width, like.size(3))
        return like.new_empty(shape)
