"""Greedy search by onnxruntime, and its comparison with `generate()`."""

import copy
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from tqdm.auto import tqdm
from transformers import GenerationConfig

from ..translation import Translator
from .onnx_export import DECODER, ENCODER, FOLDER, SUFFIXES

# Sentences decoded at a time.
BATCH_SIZE = 50
# Maximum length of an output, in tokens.
LONGEST = 128

Ids = NDArray[np.int64]


class OnnxModel:
    """The graphs of an exported folder, run by onnxruntime on the CPU.

    Args:
        folder: The exported folder.
        config: How to begin and end a translation, with max_length.
        dtype: Type of the weights, one of those exported.
    """

    def __init__(self, folder: str | Path, config: GenerationConfig, dtype: str) -> None:
        paths = (
            Path(folder, FOLDER, f"{name}{SUFFIXES[dtype]}.onnx") for name in (ENCODER, DECODER)
        )
        self.encoder, self.decoder = (
            onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
            for path in paths
        )
        self.config = config

    def greedy(self, input_ids: Ids, attention_mask: Ids) -> list[list[int]]:
        """The ids of greedy search, up to the first end, for sources, [B, S]."""
        source = {"input_ids": input_ids, "attention_mask": attention_mask}
        (states,) = self.encoder.run(None, source)
        fixed = {"encoder_attention_mask": attention_mask, "encoder_hidden_states": states}
        size = len(input_ids)
        past = self._empty_cache(size)
        tokens = np.full((size, 1), self.config.decoder_start_token_id, np.int64)
        columns: list[Ids] = []
        ends = end_ids(self.config)
        is_done = np.zeros(size, bool)
        while not is_done.all() and len(columns) < self.config.max_length - 1:
            inputs = {**fixed, **past, "input_ids": tokens}
            logits, *present = self.decoder.run(None, inputs)
            past = dict(zip(past, present, strict=True))
            tokens = np.where(is_done, self.config.pad_token_id, logits[:, -1].argmax(-1))[:, None]
            columns.append(tokens[:, 0])
            is_done |= np.isin(tokens[:, 0], ends)
        return [_until(row, ends) for row in np.stack(columns, 1).tolist()]

    def _empty_cache(self, size: int) -> dict[str, NDArray[np.float32]]:
        caches = [each for each in self.decoder.get_inputs() if each.name.startswith("past")]
        return {
            each.name: np.zeros((size, each.shape[1], 0, each.shape[3]), np.float32)
            for each in caches
        }


def count_equal(
    translator: Translator,
    folder: str | Path,
    texts: Sequence[str],
    dtype: str,
    show_progress: bool = False,
) -> int:
    """Count the texts for which onnxruntime and `generate()` write the same ids, both greedy."""
    ours, own = copy.deepcopy(translator.model).float().cpu(), translator.model.generation_config
    config = GenerationConfig(
        num_beams=1,
        max_length=min(LONGEST, ours.model.decoder.embed_positions.max_length or LONGEST),
        **{
            name: getattr(own, name)
            for name in ("decoder_start_token_id", "eos_token_id", "pad_token_id")
        },
    )
    ours.generation_config = config  # generate() takes unset fields from the model's own rules
    model = OnnxModel(folder, config, dtype)
    equal = 0
    starts = tqdm(range(0, len(texts), BATCH_SIZE), f"Comparing {dtype}", disable=not show_progress)
    for start in starts:
        encoded = [translator.encode(text) for text in texts[start : start + BATCH_SIZE]]  # cut
        batch = translator.source_tokenizer.pad({"input_ids": encoded}, return_tensors="pt")
        ids, mask = batch.input_ids, batch.attention_mask
        with torch.inference_mode():
            rows = ours.generate(ids, attention_mask=mask, generation_config=config)
        expected = [_until(row[1:], end_ids(config)) for row in rows.tolist()]
        given = model.greedy(ids.numpy(), mask.numpy())
        equal += sum(a == b for a, b in zip(expected, given, strict=True))
    return equal


def end_ids(config: GenerationConfig) -> list[int]:
    """The ids that end a translation; a configuration may hold one id or a list."""
    ends = config.eos_token_id
    return ends if isinstance(ends, list) else [ends]


def _until(row: list[int], ends: Sequence[int]) -> list[int]:
    """A row up to and with the first of the ids that end it."""
    last = next((index for index, token in enumerate(row) if token in ends), len(row))
    return row[: last + 1]
