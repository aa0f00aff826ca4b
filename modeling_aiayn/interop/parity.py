"""The proof that an imported model is the model it came from."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from ..configuration_aiayn import AiaynConfig
from ..modeling_aiayn import AiaynForConditionalGeneration
from .reference import ReferenceModel

SOURCES = 50
# In tokens.
LONGEST_SOURCE = 24
LONGEST_OUTPUT = 16
BATCH_SIZE = 10
# Logits may differ by this share of the largest.
TOLERANCE = 1e-5


@dataclass(frozen=True)
class ImportReport:
    """How far a model and its import agree about random sources.

    Args:
        reference: What ours was compared with.
        sources: How many there were.
        right_padded: Largest difference of a logit, sources padded on the right.
        left_padded: The same with ours padded on the left, and the reference as before.
        largest_logit: The largest logit's size, which differences are to be seen against.
        greedy: How many greedy outputs are the same.
        beam: How many outputs of beam search with four beams are.
    """

    reference: str
    sources: int
    right_padded: float
    left_padded: float
    largest_logit: float
    greedy: int
    beam: int

    def is_within(self, tolerance: float = TOLERANCE) -> bool:
        """Whether the models are one.

        Args:
            tolerance: By how much of the largest logit logits may differ.

        Returns:
            Whether they differ by no more, and all outputs are the same.
        """
        difference = max(self.right_padded, self.left_padded)
        is_close = difference <= tolerance * max(1.0, self.largest_logit)
        return is_close and self.greedy == self.beam == self.sources

    def __str__(self) -> str:
        return "\n".join(
            (
                f"compared with           {self.reference}",
                f"random sources          {self.sources}",
                f"largest logit           {self.largest_logit:.2f}",
                f"difference, right pads  {self.right_padded:.1e}",
                f"difference, left pads   {self.left_padded:.1e}",
                f"same greedy output      {self.greedy} of {self.sources}",
                f"same beam-4 output      {self.beam} of {self.sources}",
            )
        )


@torch.inference_mode()
def compare_models(
    ours: AiaynForConditionalGeneration,
    reference: PreTrainedModel,
    name: str,
    sources: int = SOURCES,
    show_progress: bool = False,
    positions: int = LONGEST_SOURCE,
) -> ImportReport:
    """Compare logits on random batches, and what greedy and beam search find.

    Args:
        ours: The imported model, in float32.
        reference: The model that it came from.
        name: What to call that.
        sources: How many random sources.
        show_progress: Whether to show a bar on stderr.
        positions: Tokens of the longest text that both take.

    Returns:
        The report.

    Raises:
        ValueError: There are no sources.
    """
    if sources < 1:
        raise ValueError(f"sources must be at least 1, got {sources}.")
    texts = random_sources(ours.config, sources, min(positions, LONGEST_SOURCE))
    differences: list[tuple[float, float, float]] = []
    same = {1: 0, 4: 0}
    starts = range(0, sources, BATCH_SIZE)
    for start in tqdm(starts, desc="Comparing", unit="batch", disable=not show_progress):
        batch = texts[start : start + BATCH_SIZE]
        differences.append(_differences(ours, reference, batch))
        for beams in same:
            longest = min(positions, LONGEST_OUTPUT)
            same[beams] += _same_outputs(ours, reference, batch, beams, longest)
    right, left, largest = (max(column) for column in zip(*differences, strict=True))
    return ImportReport(name, sources, right, left, largest, same[1], same[4])


def random_sources(
    config: AiaynConfig, count: int, longest: int = LONGEST_SOURCE, seed: int = 0
) -> list[Tensor]:
    """Random ids of many lengths, without special ones, and an end behind them.

    Args:
        config: The model's.
        count: How many.
        longest: Tokens of the longest, its end counted.
        seed: Where chance starts from.

    Returns:
        Ids, [S] each.
    """
    chance = torch.Generator().manual_seed(seed)
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    special = {config.bos_token_id, config.pad_token_id, config.decoder_start_token_id, *ends}
    size = min(config.vocab_size, config.decoder_vocab_size or config.vocab_size)
    words = torch.tensor([token for token in range(size) if token not in special])
    end = torch.tensor(ends[:1])
    found = []
    for _ in range(count):
        length = int(torch.randint(1, max(2, longest), (), generator=chance))
        picked = words[torch.randint(len(words), (length,), generator=chance)]
        found.append(torch.cat((picked, end)))
    return found


def _padded(rows: Sequence[Tensor], pad_token_id: int, side: str) -> tuple[Tensor, Tensor]:
    """Ids and their mask, [N, S] both."""
    ids = pad_sequence(list(rows), True, pad_token_id, padding_side=side)
    mask = pad_sequence([torch.ones_like(row) for row in rows], True, 0, padding_side=side)
    return ids, mask


def _differences(
    ours: AiaynForConditionalGeneration, reference: PreTrainedModel, batch: Sequence[Tensor]
) -> tuple[float, float, float]:
    """Largest differences of logits with ours padded right and left, and the largest logit."""
    config = ours.config
    start = torch.full((len(batch), 1), config.decoder_start_token_id)
    # Any text is a target: the next source is at hand, without its end.
    targets = [row[:-1] for row in (*batch[1:], batch[0])]
    padded, is_real = _padded(targets, config.pad_token_id, "right")
    decoder_input_ids = torch.cat((start, padded), dim=1)
    is_real = torch.cat((torch.ones_like(start), is_real), dim=1).bool()
    ids, mask = _padded(batch, config.pad_token_id, "right")
    expected = reference(
        input_ids=ids, attention_mask=mask, decoder_input_ids=decoder_input_ids, use_cache=False
    ).logits[is_real]
    found = []
    for side in ("right", "left"):
        ids, mask = _padded(batch, config.pad_token_id, side)
        logits = ours(ids, attention_mask=mask, decoder_input_ids=decoder_input_ids).logits[is_real]
        found.append(float((logits - expected).abs().max()))
    return found[0], found[1], float(expected.abs().max())


def _same_outputs(
    ours: AiaynForConditionalGeneration,
    reference: PreTrainedModel,
    batch: Sequence[Tensor],
    beams: int,
    longest: int,
) -> int:
    """How many sources of a batch both models turn into the same ids."""
    ids, mask = _padded(batch, ours.config.pad_token_id, "right")
    decoding = copy.deepcopy(ours.generation_config)
    decoding.update(num_beams=beams, max_length=longest)
    # Random weights would emit padding, which some classes take for no token at all.
    decoding.suppress_tokens = [ours.config.pad_token_id]
    mine = ours.generate(ids, attention_mask=mask, generation_config=decoding)
    decoding.use_cache = not isinstance(reference, ReferenceModel)  # torch's layers have none
    other = reference.generate(ids, attention_mask=mask, generation_config=decoding)
    length = max(mine.size(1), other.size(1))
    pad = ours.config.pad_token_id
    mine, other = (
        torch.nn.functional.pad(rows, (0, length - rows.size(1)), value=pad)
        for rows in (mine, other)
    )
    return int((mine == other).all(1).sum())
