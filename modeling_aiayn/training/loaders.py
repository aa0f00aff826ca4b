"""Loaders of batches: padding, and batches with at most a number of tokens."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from accelerate.data_loader import DataLoaderShard
from datasets import Dataset
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import (
    DataCollatorForSeq2Seq,
    DataCollatorWithPadding,
    PreTrainedTokenizerBase,
)

from .arguments import AiaynTrainingArguments
from .batches import PAIR, TokenBatches, padded_lengths, token_lengths


def samplers_of(loader: DataLoader[Any]) -> Iterator[Any]:
    """The samplers of a loader, from the outermost to the innermost: accelerate wraps them."""
    sampler: Any = getattr(loader, "batch_sampler", None)  # users may pass other loaders
    while sampler is not None:
        yield sampler
        inner = getattr(sampler, "batch_sampler", None)
        sampler = getattr(sampler, "sampler", None) if inner is None else inner


class TensorCollator:
    """Pads examples into tensors by a collator of the library that pads them into arrays.

    If the library makes tensors itself, number by number from lists, a batch takes twice as long,
    and a GPU waits for it.

    Args:
        collator: A collator with return_tensors="np".
        model: Makes decoder_input_ids of labels, where it can.
    """

    def __init__(self, collator: Any, model: nn.Module | None = None) -> None:
        self.collator, self.model = collator, model
        self.pad_to_multiple_of: int | None = collator.pad_to_multiple_of

    def __call__(self, examples: list[Any]) -> dict[str, Tensor]:
        """Pad examples to the longest one: [B, T] for ids, and [B] for one label of each."""
        batch = {}
        for name, array in self.collator(examples).items():
            if array is None:
                continue
            # Labels of a regression get the type of its logits.
            is_float = array.dtype.kind == "f"
            batch[name] = torch.from_numpy(array.astype(np.float32) if is_float else array)
        make_inputs = getattr(self.model, "prepare_decoder_input_ids_from_labels", None)
        if make_inputs is not None and "labels" in batch:
            batch["decoder_input_ids"] = make_inputs(labels=batch["labels"])
        return batch


def padding_collator(
    tokenizer: PreTrainedTokenizerBase, model: nn.Module, pad_to_multiple_of: int | None
) -> TensorCollator:
    """The collator that pads a batch for a model's task."""
    options: dict[str, Any] = {"pad_to_multiple_of": pad_to_multiple_of, "return_tensors": "np"}
    if getattr(model.config, "is_encoder_decoder", False):
        if tokenizer.padding_side != "right":
            raise ValueError(
                "Labels must be padded on the right: padding on the left would become input of the "
                f"decoder. Set tokenizer.padding_side='right', got {tokenizer.padding_side!r}."
            )
        return TensorCollator(DataCollatorForSeq2Seq(tokenizer, **options), model)
    if hasattr(model, "lm_head"):  # labels of a language model are padded too
        return TensorCollator(DataCollatorForSeq2Seq(tokenizer, **options))
    return TensorCollator(DataCollatorWithPadding(tokenizer, **options))


def check_has_batches(loader: DataLoader[Any]) -> None:
    """Raise a ValueError if a loader has no batch: the run would save an untrained model."""
    if hasattr(loader.dataset, "__len__") and not len(loader):  # streams have no length
        raise ValueError(
            f"There is no batch in the {len(loader.dataset)} training examples. Check the files "
            "and --max_length, or leave dataloader_drop_last out."
        )


def token_batch_loader(
    dataset: Dataset,
    args: AiaynTrainingArguments,
    collate: Callable[[list[Any]], dict[str, Any]],
    pad_to_multiple_of: int | None,
    device: torch.device,
) -> DataLoader[Any]:
    """This process's batches of at most `max_tokens_per_batch` tokens."""
    assert args.max_tokens_per_batch is not None
    lengths = padded_lengths(token_lengths(dataset, PAIR), pad_to_multiple_of)
    order = (args.order_seed, args.process_index, args.world_size)
    # The sampler gives this process its share; accelerate.prepare would divide it once more.
    return DataLoaderShard(
        dataset,
        device=device,
        batch_sampler=TokenBatches(lengths, args.max_tokens_per_batch, *order),
        collate_fn=collate,
        num_workers=args.dataloader_num_workers,
        multiprocessing_context=args.worker_start_method,
        pin_memory=args.dataloader_pin_memory,
        persistent_workers=args.dataloader_persistent_workers,
        prefetch_factor=args.dataloader_prefetch_factor,
    )
