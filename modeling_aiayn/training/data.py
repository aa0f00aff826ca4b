"""Section 5.1: from where a run's arguments say to the ids that it trains on."""

import logging
from itertools import compress
from typing import Any

from datasets import (
    Dataset,
    DatasetDict,
    Features,
    List,
    Value,
    concatenate_datasets,
    get_dataset_split_names,
)
from transformers import PreTrainedTokenizerBase

from ..corpus import embedded_pairs, parse_columns, read_hub, read_pairs, warn_of_repeats
from .arguments import DataArguments

logger = logging.getLogger(__name__)

EMBEDDED_HELD_OUT_SIZE = 1000
# Arguments that say nothing without another one.
NEEDS = {
    "validation_file": "train_file",
    "test_file": "train_file",
    "columns": "train_file",
    "dataset_config": "dataset_name",
}


def load_splits(data: DataArguments) -> DatasetDict:
    """The splits that data names, of files, of a dataset on the Hub, or of the embedded grammar.

    Args:
        data: Where pairs come from.

    Returns:
        Pairs as "train" and "validation", and as "test" where there is one.

    Raises:
        OSError: A file or dataset cannot be had.
        ValueError: It is not what it should be, or the arguments do not fit each other.
    """
    if data.dataset_name is not None and data.train_file is not None:
        raise ValueError("Give either dataset_name or train_file, not both.")
    for name, needs in NEEDS.items():
        if getattr(data, name) is not None and getattr(data, needs) is None:
            raise ValueError(f"{name} is of use with {needs}: give that too.")
    if data.dataset_name is not None:
        splits = _hub_splits(data)
    elif data.train_file is not None:
        splits = _file_splits(data)
    else:
        splits = _embedded_splits(data)
    warn_of_repeats(splits["train"], {name: splits[name] for name in splits if name != "train"})
    return DatasetDict(splits)


def _file_splits(data: DataArguments) -> dict[str, Dataset]:
    if data.validation_file is None:
        raise ValueError(
            "train_file needs a validation_file beside it: what training does is measured on it."
        )
    paths = {"train": data.train_file, "validation": data.validation_file, "test": data.test_file}
    languages = (data.source_lang, data.target_lang, parse_columns(data.columns))
    return {
        name: concatenate_datasets([read_pairs(path, *languages) for path in given])
        for name, given in paths.items()
        if given is not None
    }


def _hub_splits(data: DataArguments) -> dict[str, Dataset]:
    dataset = (str(data.dataset_name), data.dataset_config)
    found = get_dataset_split_names(*dataset)
    for name in ("train", "validation"):
        if name not in found:
            raise ValueError(
                f"{data.dataset_name} must have a split {name!r}, got {', '.join(found)}: put its "
                "pairs into files, and give them as train_file and validation_file."
            )
    return {
        name: read_hub(*dataset, name, data.source_lang, data.target_lang)
        for name in ("train", "validation", "test")
        if name in found
    }


def _embedded_splits(data: DataArguments) -> dict[str, Dataset]:
    sizes = {
        "train": data.embedded_train_size,
        "validation": EMBEDDED_HELD_OUT_SIZE,
        "test": EMBEDDED_HELD_OUT_SIZE,
    }
    return {
        name: embedded_pairs(name, size, data.source_lang, data.target_lang)
        for name, size in sizes.items()
    }


def encode_pairs(
    pairs: Dataset,
    source_tokenizer: PreTrainedTokenizerBase,
    target_tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    name: str,
) -> Dataset:
    """Add the ids of both sides to pairs; leave out pairs that are too long.

    Args:
        pairs: Columns "source" and "target".
        source_tokenizer: Tokenizer of the source.
        target_tokenizer: Tokenizer of the target.
        max_length: Tokens that a side may have, `</s>` counted.
        name: What to call the pairs in messages.

    Returns:
        The pairs with "input_ids" and "labels".

    Raises:
        ValueError: No pair is short enough.
    """

    def encode(batch: dict[str, list[str]]) -> dict[str, list[Any]]:
        batch = {
            **batch,
            "input_ids": source_tokenizer(batch["source"], return_attention_mask=False).input_ids,
            "labels": target_tokenizer(batch["target"], return_attention_mask=False).input_ids,
        }
        is_short = [
            max(map(len, ids)) <= max_length
            for ids in zip(batch["input_ids"], batch["labels"], strict=True)
        ]
        return {column: list(compress(rows, is_short)) for column, rows in batch.items()}

    ids = List(Value("int32"))
    features = Features({**pairs.features, "input_ids": ids, "labels": ids})
    kept = pairs.map(encode, batched=True, features=features, desc=f"Encoding {name}")
    if not kept:
        raise ValueError(
            f"{name}: every pair has a side of more than max_length={max_length} tokens."
        )
    if len(kept) < len(pairs):
        logger.warning(
            "%s: left out %d of %d pairs with a side of more than max_length=%d tokens.",
            name,
            len(pairs) - len(kept),
            len(pairs),
            max_length,
        )
    return kept
