"""The cache of a beam search: reordering beams does not copy their keys and values."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# Number of steps between two checks for unused entries.
CHECK_STEPS = 8
# Removing unused entries copies the others. So it is done only if this share is unused.
UNUSED_SHARE = 0.25
# Number of steps that fit into new memory if no hypothesis ends and no entry is removed.
FIRST_STEPS = 32


class Entries(NamedTuple):
    """A layer's keys, [N * H, K, size], and values, [N * H, size, K], of a batch's N sentences.

    newest, [2, N, H, k, K], is the memory for the keys and values of the current step.
    """

    newest: Tensor
    keys: Tensor
    values: Tensor


class HypothesisTree:
    """Target keys and values, shared by all hypotheses of a sentence.

    Each step adds one entry per hypothesis, as a child of the entry that it continues. A hypothesis
    attends to the ancestors of its entry; a mask marks them. Reordering beams moves only rows of
    the mask. Entries without descendants are removed from time to time. The others move forward in
    the same memory: on a CPU, new memory takes longer than this copy.

    The models of an ensemble share the tree; each has its own keys and values, of the sizes, dtype
    and device of its tensor in `likes`, [L, N, H, S, K]. A sentence has at most width hypotheses.
    """

    def __init__(self, width: int, likes: Sequence[Tensor]) -> None:
        self.width = width
        # Entries so far; the last k of them belong to the current step.
        self.size = 0
        first = likes[0]
        self.is_ancestor = torch.empty(
            first.size(1), 1, 0, dtype=torch.bool, device=first.device
        )  # [N, k, size], with k = 1 at the start
        self._identity = torch.eye(width, dtype=torch.bool, device=first.device)  # [k, k]
        # Size at which to check for unused entries, and the size that fits into memory.
        self._next_check = CHECK_STEPS * width
        self._room = FIRST_STEPS * width
        # For each model, keys and values of all layers, [L, N, H, 2, room, K].
        self._storage = [self._memory(like.size(1), like) for like in likes]

    def grow(self, parents: Tensor) -> None:
        """Add an entry for each hypothesis of the next step, as a child of its parent, [N, k]."""
        sentences, width = parents.shape
        if self.width > 1:
            index = parents[..., None].expand(-1, -1, self.size)
            self.is_ancestor = self.is_ancestor.gather(1, index)
        if self.size + width > self._next_check:
            self._tidy()
        itself = self._identity[:width, :width].expand(sentences, -1, -1)
        self.is_ancestor = torch.cat((self.is_ancestor, itself), dim=-1)
        self.size += width

    def entries(self, model: int) -> list[Entries]:
        """Return the keys and values of each layer of a model."""
        kept = self._storage[model][..., : self.size, :]
        newest = kept[..., -self.is_ancestor.size(1) :, :].permute(0, 3, 1, 2, 4, 5)
        keys, values = kept.flatten(1, 2).unbind(2)  # [L, N * H, size, K] each
        return list(map(Entries, newest, keys.transpose(2, 3), values))

    def mask(self, model: int) -> Tensor:
        """Make a mask to add to scores, [N * H, k, size]; a single 0 if all are ancestors."""
        like = self._storage[model]
        if self.width == 1:
            return like.new_zeros(1, 1, 1)
        mask = like.new_zeros(self.is_ancestor.shape)
        mask = mask.masked_fill_(~self.is_ancestor, torch.finfo(like.dtype).min)
        return mask.repeat_interleave(like.size(2), dim=0)

    def keep(self, sentences: Tensor) -> None:
        """Keep the sentences at given indices, [M], and remove the others."""
        self.is_ancestor = self.is_ancestor[sentences]
        self._move(sentences)

    def _tidy(self) -> None:
        """Remove entries without descendants if there are many, or if memory is full."""
        living = int(self.is_ancestor.any(1).sum(1).max())
        self._next_check = self.size + CHECK_STEPS * self.width
        if self._next_check > self._room or living <= (1 - UNUSED_SHARE) * self.size:
            self._move(torch.arange(len(self.is_ancestor), device=self.is_ancestor.device))

    def _move(self, sentences: Tensor) -> None:
        has_descendants = self.is_ancestor.any(1)  # [N, size]
        size = int(has_descendants.sum(1).max())
        order = has_descendants.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
        order = order[:, :size]
        index = order[:, None].expand(-1, self.is_ancestor.size(1), -1)
        self.is_ancestor = self.is_ancestor.gather(2, index)
        self.size = size
        self._next_check = size + CHECK_STEPS * self.width
        is_full = self._next_check > self._room
        if is_full:
            self._room = 2 * self._next_check
        for model, kept in enumerate(self._storage):
            rows = self._rows(kept[0], sentences, order)
            moved = kept[:, : len(sentences)]
            if is_full:
                moved = self._memory(len(sentences), kept[:, :, :, 0])
            for source, destination in zip(kept, moved, strict=True):
                selected = source.flatten(0, 3).index_select(0, rows.flatten())
                destination[:, :, :, :size] = selected.view(*rows.shape, -1)
            self._storage[model] = moved

    def _rows(self, kept: Tensor, sentences: Tensor, order: Tensor) -> Tensor:
        """Return row numbers, [M, H, 2, size], of kept entries, [M, size], in a layer's storage.

        Moving rows of a matrix is faster than moving slices of a tensor with five dimensions.
        """
        _, heads, sides, room, _ = kept.shape
        blocks = torch.arange(heads * sides, device=order.device).view(heads, sides)
        blocks = sentences[:, None, None] * heads * sides + blocks  # [M, H, 2]
        return blocks[..., None] * room + order[:, None, None]

    def _memory(self, sentences: int, like: Tensor) -> Tensor:
        layers, _, heads, _, head_dim = like.shape
        return like.new_empty(layers, sentences, heads, 2, self._room, head_dim)
