"""Windows on a text: at random to train on, one behind the other to score."""

import hashlib

import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..losses import IGNORED_LABEL


class Windows(Dataset[dict[str, Tensor]]):
    """Pieces of one length of a text, in the form that causal models take.

    Args:
        ids: The text, [N].
        size: Tokens of a piece, W; the first of them is looked at and never predicted.
        starts: Where the pieces begin, [pieces].
        predicted_from: For each piece the first of its tokens that is predicted in it, [pieces].
    """

    def __init__(self, ids: Tensor, size: int, starts: Tensor, predicted_from: Tensor) -> None:
        self.ids = ids
        self.size = size
        self.starts = starts
        self.predicted_from = predicted_from

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """A piece: "input_ids" and "labels", [W] both."""
        start = int(self.starts[index])
        input_ids = self.ids[start : start + self.size].long()
        labels = input_ids.clone()
        labels[: self.predicted_from[index]] = IGNORED_LABEL
        return {"input_ids": input_ids, "labels": labels}

    def data_sha256(self) -> str:
        """A hash of the text and of the windows' size; the seed is the run's own."""
        digest = hashlib.sha256(f"{self.size} ".encode())
        digest.update(self.ids.numpy().tobytes())
        return digest.hexdigest()


def random_windows(ids: Tensor, size: int, count: int, seed: int) -> Windows:
    """Windows that begin anywhere, each by itself.

    Args:
        ids: The text, [N].
        size: Tokens of a window, W, at most N.
        count: How many.
        seed: Draws where.

    Returns:
        The windows, drawn already: each can be had again, in any order.
    """
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(ids) - size + 1, (count,), generator=generator)
    return Windows(ids, size, starts, torch.ones_like(starts))


def covering_windows(ids: Tensor, size: int, step: int) -> Windows:
    """Windows that slide over a text, so that each token but the first is predicted once.

    With step = size - 1 a token looks back on anything between one token and the whole window, as
    in training; with a smaller step on size - step tokens at least, from the second window on.

    Args:
        ids: The text, [N].
        size: Tokens of a window, W, at most N.
        step: By how many tokens the window slides, in [1, W).

    Returns:
        The windows; the last one ends where the text ends.
    """
    last = len(ids) - size
    starts = torch.tensor([*range(0, last, step), last])
    ends = torch.cat((torch.ones(1, dtype=torch.long), starts[:-1] + size))
    return Windows(ids, size, starts, ends - starts)
