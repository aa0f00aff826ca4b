"""Loaders of training batches with at most a number of tokens."""

from collections.abc import Callable
from typing import Any

import torch
from accelerate.data_loader import DataLoaderShard
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import TrainingArguments

from .batches import TokenBatches, padded_lengths, pair_lengths


def token_batch_loader(
    dataset: Dataset,
    args: TrainingArguments,
    collate: Callable[[list[Any]], dict[str, Any]],
    pad_to_multiple_of: int | None,
    device: torch.device,
) -> DataLoader[Any]:
    """This process's batches of at most `args.max_tokens_per_batch` tokens.

    Raises:
        ValueError: The dataset is a stream, or see `cut_batches`.
    """
    if not hasattr(dataset, "__len__"):
        raise ValueError(
            "max_tokens_per_batch needs a dataset with a length, got a stream. Load the data, or "
            "set per_device_train_batch_size instead."
        )
    lengths = padded_lengths(pair_lengths(dataset), pad_to_multiple_of)
    place = (args.order_seed, args.process_index, args.world_size)
    # The sampler gives this process its share; accelerate.prepare would divide it once more.
    return DataLoaderShard(
        dataset,
        device=device,
        batch_sampler=TokenBatches(lengths, args.max_tokens_per_batch, *place),
        collate_fn=collate,
        num_workers=args.dataloader_num_workers,
        pin_memory=args.dataloader_pin_memory,
        persistent_workers=args.dataloader_persistent_workers,
        prefetch_factor=args.dataloader_prefetch_factor,
    )
