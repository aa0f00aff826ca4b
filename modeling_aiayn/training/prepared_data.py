"""Prepare training data once on each machine, for all processes of that machine."""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from datasets import Dataset, config
from datasets.fingerprint import Hasher
from filelock import Timeout
from transformers import PreTrainedTokenizerBase

from ..data.cache import explained_full_disk
from ..data.corpus import COLUMNS
from ..saved.locks import lock_file
from .arguments import RunArguments
from .data import DataArguments, encode_pairs, load_splits, pair_encoder

logger = logging.getLogger(__name__)

# Returns the tokenizers of source and target, given the training pairs.
GetTokenizers = Callable[[Dataset], tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]]


@dataclass(frozen=True)
class PreparedData:
    """Pairs and their tokenizers, which are one object if the vocabulary is shared.

    Splits are "train" and "validation", both with "input_ids" and "labels", and perhaps "test".
    All but "train" have their texts, too.
    """

    splits: dict[str, Any]
    source_tokenizer: PreTrainedTokenizerBase
    target_tokenizer: PreTrainedTokenizerBase


def prepare_data(data: DataArguments, tokenizers: GetTokenizers) -> PreparedData:
    """Read pairs, get the tokenizers for the training pairs, and encode the pairs."""
    splits = load_splits(data)
    train = splits["train"]
    source, target = tokenizers(train)
    options = (source, target, data.max_length)
    if data.streaming:
        encode = pair_encoder(*options, keeps_texts=False)
        splits["train"] = train.map(encode, batched=True, remove_columns=COLUMNS)
    else:
        num_proc = data.preprocessing_num_workers
        splits["train"] = encode_pairs(train, *options, "train", num_proc, keeps_texts=False)
    splits["validation"] = encode_pairs(splits["validation"], *options, "validation")
    return PreparedData(splits, source, target)


def prepare_data_once(
    args: RunArguments, data: DataArguments, tokenizers: GetTokenizers
) -> PreparedData:
    """Prepare data in one process of each machine; the others then find it in the cache.

    They wait for a lock. At a barrier they would give up after `args.ddp_timeout` seconds.
    """
    is_first = args.local_process_index == 0
    corpus = [data.train_file, data.dataset_name]
    path = Path(config.HF_DATASETS_CACHE, f"prepare-{Hasher.hash(corpus)}.lock")
    with explained_full_disk(), ExitStack() as stack:
        if not is_first:  # it would repeat the warnings
            data = replace(data, overwrite_cache=False)
            logging.disable(logging.WARNING)
            stack.callback(logging.disable, logging.NOTSET)
        if any(corpus):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = None
            if is_first:
                try:
                    lock = lock_file(path)
                except (BlockingIOError, Timeout):
                    logger.info("Another run prepares the same data. Waiting for it.")
            args.distributed_state.wait_for_everyone()
            stack.enter_context(lock or lock_file(path, is_waiting=True))
        return prepare_data(data, tokenizers)
