"""Batches of a stream of pairs, which is read during training, one window after another."""

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import numpy as np
from datasets import IterableDataset
from torch.utils import data

from .batches import PAIR, cut_batches, padded_lengths, token_lengths

WINDOW = 100_000  # pairs
# Key of a batch: its worker's position in the stream, as JSON.
POSITION = "stream_position"

Batch = tuple[list[dict[str, Any]], dict[str, Any]]  # pairs, and the worker's position


@dataclass(eq=False)
class TokenStream(data.IterableDataset[Batch]):
    """Batches of at most max_tokens from an endless stream of encoded pairs; see `cut_batches`.

    While the batches of a window are taken, the next window is filled. For each worker, `positions`
    has the position of the last batch that was trained on. Iteration continues there.
    """

    pairs: IterableDataset
    max_tokens: int
    seed: int
    pad_to_multiple_of: int | None
    positions: dict[str, Any]

    def __iter__(self) -> Iterator[Batch]:
        info = data.get_worker_info()
        worker, workers = (0, 0) if info is None else (info.id, info.num_workers)
        start: dict[str, Any] = {"worker": worker, "workers": workers}
        start |= {"window": 0, "taken": 0, "stream": None}
        start |= self.positions.get(str(worker), {})
        if start["workers"] != workers:
            raise ValueError(
                f"The stream was read by dataloader_num_workers={start['workers']}, got {workers}. "
                "Resume with the earlier number: each worker continues where it was."
            )
        # A copy for each worker: copies that `datasets` makes share the number of the epoch.
        stream, state, taken = copy.deepcopy(self.pairs), start["stream"], start["taken"]
        rows = _rows(stream, state)
        window = [*islice(rows, WINDOW)]
        if not window and not worker:
            raise ValueError("The training stream holds no pair. Check its files and languages.")
        for number in count(start["window"]):
            following: list[dict[str, Any]] = []
            next_state = stream.state_dict()
            for position, batch in enumerate(self._cut(window, number), start=1):
                if position > taken:
                    here = {"window": number, "taken": position, "stream": state}
                    pairs = [{name: window[i][name].tolist() for name in PAIR} for i in batch]
                    yield pairs, start | here
                following += islice(rows, len(batch))
            window, state, taken = following, next_state, 0
            if not window:
                return

    def _cut(self, window: list[dict[str, Any]], number: int) -> Any:
        lengths = padded_lengths(token_lengths(window, PAIR), self.pad_to_multiple_of)
        generator = np.random.default_rng((self.seed, number))
        return cut_batches(lengths, self.max_tokens, generator) if window else []


def _rows(pairs: IterableDataset, state: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yield the pairs of one epoch after another; the first epoch continues from the state."""
    first = 0 if state is None else state["epoch"]
    if state is not None:
        pairs.load_state_dict(state)
    for epoch in count(first):
        pairs.set_epoch(epoch)
        is_empty = True
        for row in pairs:
            is_empty = False
            yield {name: np.array(row[name], np.int32) for name in PAIR}
        if is_empty and epoch > first:  # a worker without a file
            return


class StreamPositions:
    """The position of each loader worker in its stream; a part of the run's state."""

    def __init__(self) -> None:
        self.positions: dict[str, Any] = {}

    def note(self, batch: dict[str, Any]) -> None:
        """Remove the position from a batch that is trained on, and remember it."""
        if POSITION in batch:
            position = json.loads(batch.pop(POSITION))
            self.positions[str(position["worker"])] = position

    def state_dict(self) -> dict[str, Any]:
        """The positions so far."""
        return dict(self.positions)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from positions that `state_dict` returned."""
        self.positions.clear()
        self.positions.update(state)


def padded_with_position(
    batch: Batch, collate: Callable[[list[Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Pad the pairs of a `TokenStream`, and add their position."""
    pairs, position = batch
    return {**collate(pairs), POSITION: json.dumps(position)}
