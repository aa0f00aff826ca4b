"""Batches of examples: lengths, padding, and batches with at most a number of tokens."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from accelerate.data_loader import DataLoaderShard
from datasets import Dataset
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import (
    DataCollatorForSeq2Seq,
    DataCollatorWithPadding,
    PreTrainedTokenizerBase,
    TrainingArguments,
)

from .batches import PAIR, TEXT, Lengths, TokenBatches, padded_lengths, token_lengths
from .bpe_dropout import ResegmentedExamples


def samplers_of(loader: DataLoader[Any]) -> Iterator[Any]:
    """The samplers of a loader, from the outermost to the innermost: accelerate wraps them."""
    sampler: Any = getattr(loader, "batch_sampler", None)  # users may have loaders of their own
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
        """Pad examples to the longest one: [B, T] for ids, and [B] for one label of each.

        Raises:
            ValueError: A column holds no numbers, or lists of several lengths that are not padded.
        """
        arrays = self.collator(examples).items()
        batch = {name: _tensor(name, each) for name, each in arrays if each is not None}
        make_inputs = getattr(self.model, "prepare_decoder_input_ids_from_labels", None)
        if make_inputs is not None and "labels" in batch:
            batch["decoder_input_ids"] = make_inputs(labels=batch["labels"])
        return batch


def _tensor(name: str, array: NDArray[Any]) -> Tensor:
    if array.dtype.kind not in "biuf":
        raise ValueError(
            f"The column {name!r} must hold numbers, or lists that are padded, to be part of a "
            "batch. Remove it from the dataset, or leave out remove_unused_columns=False."
        )
    # Labels of a regression, in the type of its logits.
    return torch.from_numpy(array.astype(np.float32) if array.dtype.kind == "f" else array)


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


def example_lengths(
    dataset: Dataset | ResegmentedExamples, has_target: bool
) -> list[int] | Callable[[int], list[int]]:
    """The length of each example in tokens, of the longer side where there is a target.

    A function of the epoch, where lengths change between epochs.
    """
    if isinstance(dataset, ResegmentedExamples):
        return lambda epoch: dataset.lengths(epoch).max(1).tolist()
    return token_lengths(dataset, PAIR if has_target else TEXT).max(1).tolist()


def check_has_examples(dataset: Any) -> None:
    """Raise a ValueError if a training dataset is empty; the length of a stream is not known."""
    if hasattr(dataset, "__len__") and not len(dataset):
        raise ValueError("The training data has no examples. Check the files and --max_length.")


def check_has_batches(loader: DataLoader[Any]) -> None:
    """Raise a ValueError if a loader of training batches is empty; streams have no length."""
    if hasattr(loader.dataset, "__len__") and not len(loader):
        raise ValueError(
            f"dataloader_drop_last leaves no batch of the {len(loader.dataset)} training examples. "
            "Leave it out, or give a smaller per_device_train_batch_size."
        )


def token_batch_loader(
    dataset: Dataset | ResegmentedExamples,
    args: TrainingArguments,
    collate: Callable[[list[Any]], dict[str, Any]],
    pad_to_multiple_of: int | None,
    device: torch.device,
) -> DataLoader[Any]:
    """This process's batches of at most `max_tokens_per_batch` tokens; a stream is rejected."""
    if not hasattr(dataset, "__len__"):
        raise ValueError(
            "max_tokens_per_batch needs a dataset with a length, got a stream. Load the data, or "
            "set per_device_train_batch_size instead."
        )
    lengths: Lengths | Callable[[int], Lengths]
    if isinstance(dataset, ResegmentedExamples):
        lengths = partial(_lengths_in_epoch, dataset, pad_to_multiple_of)
    else:
        lengths = padded_lengths(token_lengths(dataset, PAIR), pad_to_multiple_of)
    order = (args.order_seed, args.process_index, args.world_size)
    # The sampler gives this process its share; accelerate.prepare would divide it once more.
    return DataLoaderShard(
        dataset,
        device=device,
        batch_sampler=TokenBatches(lengths, args.max_tokens_per_batch, *order),
        collate_fn=collate,
        num_workers=args.dataloader_num_workers,
        multiprocessing_context=getattr(args, "dataloader_multiprocessing_context", None),
        pin_memory=args.dataloader_pin_memory,
        persistent_workers=args.dataloader_persistent_workers,
        prefetch_factor=args.dataloader_prefetch_factor,
    )


def _lengths_in_epoch(
    dataset: ResegmentedExamples, pad_to_multiple_of: int | None, epoch: int
) -> Lengths:
    return padded_lengths(dataset.lengths(epoch), pad_to_multiple_of)
