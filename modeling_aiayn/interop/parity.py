"""Compare an imported or exported model with the original."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from ..configuration_aiayn import AiaynConfig
from ..modeling_aiayn import AiaynForConditionalGeneration
from .pickled import read_checkpoint_file

SOURCES = 50
# Lengths in tokens.
LONGEST_SOURCE = 24
LONGEST_OUTPUT = 16
BATCH_SIZE = 10
# Maximum of sources in a batch times vocabulary size: each token has V logits.
LOGITS = 1_000_000
# Maximum difference of logits, relative to the largest logit.
TOLERANCE = 1e-5
# The same for the outputs of the original module, by their type.
EXAMPLE_TOLERANCES = {torch.bfloat16: 5e-2, torch.float16: 1e-2}


@dataclass(frozen=True)
class ImportReport:
    """Agreement between a model and its import on random sources.

    Random sources show that tensors are in their places. They cannot show that the configuration
    describes the original module, unless the reference is the original itself.
    """

    reference: str  # the model that ours was compared with
    sources: int
    right_padded: float  # largest difference of a logit, with sources padded on the right
    left_padded: float  # the same with our sources padded on the left
    largest_logit: float
    greedy: int  # number of equal greedy outputs
    beam: int  # number of equal outputs with four beams
    examples: str | None = None  # comparison with outputs of the original module

    def check(self, tolerance: float = TOLERANCE) -> None:
        """Check that outputs are equal, and that logits differ by at most tolerance (relative)."""
        limit = tolerance * max(1.0, self.largest_logit)
        is_close = self.right_padded <= limit and self.left_padded <= limit  # false for NaN
        if not (is_close and self.greedy == self.beam == self.sources):
            raise ValueError(
                "The model must be the same as the original, but they differ. Nothing was "
                f"written.\n{self}"
            )

    def __str__(self) -> str:
        rows = {
            "compared with": self.reference,
            "random sources": self.sources,
            "largest logit": f"{self.largest_logit:.2f}",
            "difference, right pads": f"{self.right_padded:.1e}",
            "difference, left pads": f"{self.left_padded:.1e}",
            "same greedy output": f"{self.greedy} of {self.sources}",
            "same beam-4 output": f"{self.beam} of {self.sources}",
        }
        if self.examples:
            rows["original's own outputs"] = self.examples
        return "\n".join(f"{title:<24}{value}" for title, value in rows.items())


@dataclass(frozen=True)
class Examples:
    """Inputs of the original module, in evaluation mode, and its outputs.

    Weights do not show fields such as norm_first or the number of heads. Outputs confirm them.
    """

    input_ids: Tensor  # sources, [N, S]
    decoder_input_ids: Tensor  # targets as the decoder reads them, start token first, [N, T]
    logits: Tensor  # the module's outputs, before a softmax, [N, T, V]
    attention_mask: Tensor | None = None  # 1 for real source tokens, 0 for padding, [N, S]

    @classmethod
    def read(cls, path: str | Path) -> "Examples":
        """Read a file that holds a dictionary of these tensors."""
        return cls(**read_checkpoint_file(path))

    @torch.inference_mode()
    def check(self, model: AiaynForConditionalGeneration, assumed: str) -> str:
        """Check that a converted model gives the original's outputs; return the report's line."""
        logits = model(
            self.input_ids,
            attention_mask=self.attention_mask,
            decoder_input_ids=self.decoder_input_ids,
        ).logits
        expected = self.logits.double()
        difference = float((logits - expected).abs().max() / expected.abs().max().clamp(min=1.0))
        if not difference <= EXAMPLE_TOLERANCES.get(self.logits.dtype, 1e-4):  # also for NaN
            raise ValueError(
                f"The outputs of the original module differ by {difference:.1e} of the largest "
                "logit from those of the imported model. Nothing was written. One of these "
                f"assumptions must be wrong: {assumed or 'the system or its version'}. Correct it "
                "with --config."
            )
        return f"{len(self.input_ids)} examples, difference {difference:.1e}"


@contextmanager
def computing_in(dtype: torch.dtype, model: nn.Module) -> Iterator[None]:
    """Let a model compute in a type. Each layer has weights in this type only while it computes.

    A large model may leave too little memory for a copy of all its weights.
    """
    stored: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {}

    def convert(module: nn.Module, _: Any) -> None:
        tensors = filter(Tensor.is_floating_point, (*module.parameters(), *module.buffers()))
        stored[module] = [(tensor, tensor.data) for tensor in tensors]
        for tensor, data in stored[module]:
            tensor.data = data.to(dtype)

    def restore(module: nn.Module, *_: Any) -> None:
        for tensor, data in stored.pop(module):
            tensor.data = data

    hooks = []
    for part in {*_parts(model)}:  # a module may have several names
        hooks += [part.register_forward_pre_hook(convert), part.register_forward_hook(restore)]
    yield
    for hook in hooks:
        hook.remove()


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers of a model, and the modules outside of layers."""
    for child in module.children():
        is_part = isinstance(module, nn.ModuleList) or not any(True for _ in child.children())
        yield from [child] if is_part else _parts(child)


@torch.no_grad()
def compare_models(
    ours: AiaynForConditionalGeneration,
    reference: PreTrainedModel,
    name: str,
    sources: int = SOURCES,
    show_progress: bool = False,
    positions: int = LONGEST_SOURCE,
    dtype: torch.dtype = torch.float32,
) -> ImportReport:
    """Compare two models' logits, greedy outputs and beam-search outputs on random sources.

    Both compute in `dtype`; the type of their weights does not change. The report calls the other
    model `name`. `positions` is the longest text that both models accept, in tokens.
    """
    texts = _random_sources(ours.config, sources, min(positions, LONGEST_SOURCE))
    differences = []
    same = {1: 0, 4: 0}
    size = max(1, min(BATCH_SIZE, LOGITS // ours.config.vocab_size))
    starts = range(0, sources, size)
    longest = min(positions, LONGEST_OUTPUT)
    with computing_in(dtype, ours), computing_in(dtype, reference):
        for start in tqdm(starts, "Comparing", unit="batch", disable=not show_progress):
            batch = texts[start : start + size]
            differences.append(_logit_differences(ours, reference, batch))
            for beams in same:
                same[beams] += _count_same_outputs(ours, reference, batch, beams, longest)
    right, left, largest = torch.tensor(differences, dtype=torch.float64).amax(0).tolist()
    return ImportReport(name, sources, right, left, largest, same[1], same[4])


def _random_sources(config: AiaynConfig, count: int, longest: int) -> list[Tensor]:
    """Draw random sources, [S], of up to `longest` ids; only the last id, `</s>`, is special."""
    generator = torch.Generator().manual_seed(0)
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    special = {config.bos_token_id, config.pad_token_id, config.decoder_start_token_id, *ends}
    size = min(config.vocab_size, config.decoder_vocab_size or config.vocab_size)
    ordinary = torch.tensor([token for token in range(size) if token not in special])
    drawn = []
    for _ in range(count):
        length = int(torch.randint(1, max(2, longest), (), generator=generator))
        picked = ordinary[torch.randint(len(ordinary), (length,), generator=generator)]
        drawn.append(torch.cat((picked, torch.tensor(ends[:1]))))
    return drawn


def _padded_batch(rows: Sequence[Tensor], pad_token_id: int, side: str) -> tuple[Tensor, Tensor]:
    """Pad ids to one length and make their mask, [N, S] both."""
    ids = pad_sequence(list(rows), True, pad_token_id, padding_side=side)
    mask = pad_sequence([torch.ones_like(row) for row in rows], True, 0, padding_side=side)
    return ids, mask


def _logit_differences(
    ours: AiaynForConditionalGeneration, reference: PreTrainedModel, batch: Sequence[Tensor]
) -> tuple[float, float, float]:
    """Return the largest differences, with ours padded right and left, and the largest logit."""
    config = ours.config
    start = torch.full((len(batch), 1), config.decoder_start_token_id)
    # Any ids can be a target: each source's target is the next source without its end.
    targets = [row[:-1] for row in (*batch[1:], batch[0])]
    padded, is_real = _padded_batch(targets, config.pad_token_id, "right")
    decoder_input_ids = torch.cat((start, padded), dim=1)
    is_real = torch.cat((torch.ones_like(start), is_real), dim=1).bool()
    ids, mask = _padded_batch(batch, config.pad_token_id, "right")
    expected = reference(
        input_ids=ids, attention_mask=mask, decoder_input_ids=decoder_input_ids, use_cache=False
    ).logits[is_real]
    differences = []
    for side in ("right", "left"):
        ids, mask = _padded_batch(batch, config.pad_token_id, side)
        logits = ours(ids, attention_mask=mask, decoder_input_ids=decoder_input_ids).logits[is_real]
        differences.append(float(logits.sub_(expected).abs_().max()))  # in place: V logits per row
    return differences[0], differences[1], float(expected.abs().max())


def _count_same_outputs(
    ours: PreTrainedModel,
    reference: PreTrainedModel,
    batch: Sequence[Tensor],
    beams: int,
    longest: int,
) -> int:
    """Count the sources of a batch for which both models generate the same ids."""
    pad_token_id = ours.config.pad_token_id
    ids, mask = _padded_batch(batch, pad_token_id, "right")
    options = copy.deepcopy(ours.generation_config)
    options.update(num_beams=beams, max_length=longest, do_sample=False, num_return_sequences=1)
    # Random weights may generate padding, which some classes skip.
    options.suppress_tokens = [pad_token_id]
    options.use_cache = True  # FSMT generates other tokens without a cache
    rows = [
        row
        for model in (ours, reference)
        for row in model.generate(ids, attention_mask=mask, generation_config=options)
    ]
    mine, theirs = pad_sequence(rows, True, pad_token_id).chunk(2)
    return int((mine == theirs).all(1).sum())
