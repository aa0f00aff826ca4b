"""Windows of a text: random ones for training, consecutive ones for scoring."""

import hashlib

import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..losses import IGNORED_LABEL


class Windows(Dataset[dict[str, Tensor]]):
    """Windows of size tokens of a text, [N], in the form that causal language models take.

    starts, [windows]: positions in ids; predicted_from, [windows]: tokens before the first target.
    """

    def __init__(self, ids: Tensor, size: int, starts: Tensor, predicted_from: Tensor) -> None:
        self.ids = ids
        self.size = size
        self.starts = starts
        self.predicted_from = predicted_from

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """A window: "input_ids" and "labels", both [W]."""
        start = int(self.starts[index])
        input_ids = self.ids[start : start + self.size].long()
        labels = input_ids.clone()
        labels[: self.predicted_from[index]] = IGNORED_LABEL
        return {"input_ids": input_ids, "labels": labels}

    def data_sha256(self) -> str:
        """A hash of the text and the window size, but not of the random positions."""
        digest = hashlib.sha256(f"{self.size} ".encode())
        digest.update(self.ids.numpy().tobytes())
        return digest.hexdigest()


def random_windows(ids: Tensor, size: int, count: int, seed: int) -> Windows:
    """Draw windows of size tokens at random positions of ids, [N]; size is at most N."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(ids) - size + 1, (count,), generator=generator)
    return Windows(ids, size, starts, torch.ones_like(starts))


def covering_windows(ids: Tensor, size: int, step: int) -> Windows:
    """Slide a window over a text so that each token except the first is predicted once.

    With step = size - 1, a prediction depends on one to size - 1 previous tokens, as in training.
    With a smaller step it depends on at least size - step, from the second window on. The last
    window ends where the text ends. ids are [N], size is at most N, step is in [1, size).
    """
    last = len(ids) - size
    starts = torch.tensor([*range(0, last, step), last])
    ends = torch.cat((torch.ones(1, dtype=torch.long), starts[:-1] + size))
    return Windows(ids, size, starts, ends - starts)
