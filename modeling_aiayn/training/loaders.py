"""Data loaders: padding, and batches with a maximum number of tokens."""

import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from accelerate.data_loader import DataLoaderShard
from datasets import Dataset, IterableDataset
from datasets.distributed import split_dataset_by_node
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import DataCollatorForSeq2Seq, DataCollatorWithPadding, PreTrainedTokenizerBase

from .arguments import RunArguments
from .batches import PAIR, TokenBatches, padded_lengths, token_lengths
from .corpora import Mixture
from .resume.interruption import SIGNALS
from .streams import StreamPositions, TokenStream, padded_with_position


def set_epoch(loader: DataLoader[Any], epoch: int) -> None:
    """Tell a loader's samplers their epoch.

    Old releases of transformers do not do this in the epoch in which a run resumes.
    """
    sampler: Any = getattr(loader, "batch_sampler", None)  # users may pass other loaders
    while sampler is not None:  # accelerate wraps them
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        inner = getattr(sampler, "batch_sampler", None)
        sampler = getattr(sampler, "sampler", None) if inner is None else inner


def separate_workers(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Start a loader's workers in process groups of their own, and return the loader.

    torchrun and terminals send a signal to the trainer's whole group. It would end the workers, but
    the trainer needs their batches to finish the update before it saves. Workers in groups of their
    own end when the trainer ends.
    """
    inner = getattr(loader, "base_dataloader", loader)  # accelerate wraps the loader
    inner.worker_init_fn = partial(_leave_group, then=inner.worker_init_fn)
    if inner.persistent_workers:
        # The workers' seed is drawn once, and again when a run resumes. Their own generator keeps
        # these draws from changing the random state of the run.
        inner.generator = torch.Generator().manual_seed(torch.initial_seed())
    return loader


def _leave_group(worker: int, then: Callable[[int], object] | None = None) -> None:
    if hasattr(os, "setpgrp"):  # not on Windows
        os.setpgrp()
    # Some schedulers signal every process of a job. SIGTERM stays: trainers end workers with it.
    for number in set(SIGNALS) - {signal.SIGTERM}:
        signal.signal(number, signal.SIG_IGN)
    if then is not None:
        then(worker)


class TensorCollator:
    """Pads examples into tensors with a collator of transformers that has return_tensors="np".

    If transformers makes tensors itself, number by number from lists, a batch takes twice as long,
    and a GPU waits for it. decoder_input_ids are added if the model can make them from labels.
    """

    def __init__(self, collator: Any, model: nn.Module | None = None) -> None:
        self.collator, self.model = collator, model
        self.pad_to_multiple_of: int | None = collator.pad_to_multiple_of

    def __call__(self, examples: list[Any]) -> dict[str, Tensor]:
        """Pad examples to the longest one: [B, T] for ids, [B] if each example has one label."""
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
    """Return the collator that pads batches for a model's task."""
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
    dataset: Dataset | IterableDataset | Mixture,
    args: RunArguments,
    max_tokens: int,
    collate: Callable[[list[Any]], dict[str, Any]],
    pad_to_multiple_of: int | None,
    device: torch.device,
    positions: StreamPositions,
) -> DataLoader[Any]:
    """This process's batches of at most max_tokens tokens."""
    options: dict[str, Any]
    if isinstance(dataset, IterableDataset):
        share = split_dataset_by_node(dataset, args.process_index, args.world_size)
        order = (args.order_seed, pad_to_multiple_of, positions.positions)
        stream = TokenStream(share, max_tokens, *order)
        padded = partial(padded_with_position, collate=collate)
        options = {"dataset": stream, "batch_size": None, "collate_fn": padded}
    else:
        draw = None
        if isinstance(dataset, Mixture):
            dataset, draw = dataset.rows, dataset.draw
        lengths = padded_lengths(token_lengths(dataset, PAIR), pad_to_multiple_of)
        processes = (args.order_seed, args.process_index, args.world_size)
        # The sampler gives this process its share; accelerate.prepare would divide it again.
        batches = TokenBatches(lengths, max_tokens, *processes, draw)
        options = {"dataset": dataset, "batch_sampler": batches, "collate_fn": collate}
    return DataLoaderShard(
        device=device,
        num_workers=args.dataloader_num_workers,
        # transformers 5.4 has no such argument.
        multiprocessing_context=getattr(args, "dataloader_multiprocessing_context", None),
        pin_memory=args.dataloader_pin_memory,
        persistent_workers=args.dataloader_persistent_workers,
        prefetch_factor=args.dataloader_prefetch_factor,
        **options,
    )
