"""Prepare training data once on each machine, for all processes of that machine."""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, concatenate_datasets, config
from datasets.fingerprint import Hasher
from filelock import Timeout
from transformers import PreTrainedTokenizerBase

from ..data.cache import explained_full_disk
from ..data.corpus import COLUMNS, warn_of_overlap
from ..saved.languages import LanguageTags
from ..saved.locks import lock_file
from ..tokenization import BACK_TRANSLATED
from .arguments import RunArguments
from .corpora import Corpus, Mixture, has_several, read_corpora, with_languages
from .data import DataArguments, encode_pairs, load_splits, pair_encoder

logger = logging.getLogger(__name__)

# Returns the tokenizers of source and target, given the training pairs.
GetTokenizers = Callable[[Dataset], tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]]


@dataclass(frozen=True)
class PreparedData:
    """Pairs and their tokenizers, which are one object if the vocabulary is shared.

    Splits are "train" and "validation", both with "input_ids" and "labels", and perhaps "test".
    All except "train" also have the texts and, if there are several directions, the languages.
    """

    splits: dict[str, Any]
    source_tokenizer: PreTrainedTokenizerBase
    target_tokenizer: PreTrainedTokenizerBase


def prepare_data(data: DataArguments, tokenizers: GetTokenizers) -> PreparedData:
    """Read pairs, get the tokenizers for the training pairs, and encode the pairs."""
    if data.corpora is not None:
        return _prepare_corpora(data, tokenizers)
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


def _prepare_corpora(data: DataArguments, tokenizers: GetTokenizers) -> PreparedData:
    parts: dict[str, list[tuple[Corpus, Dataset]]] = {"train": [], "validation": [], "test": []}
    corpora, workers = read_corpora(data), data.preprocessing_num_workers
    is_multilingual = has_several(corpora)
    for corpus in corpora:
        for split, pairs in load_splits(corpus.data).items():
            is_held_out = is_multilingual and split != "train"
            parts[split].append((corpus, with_languages(pairs, corpus) if is_held_out else pairs))
    if not (parts["train"] and parts["validation"]):
        raise ValueError(f"{data.corpora} must have a train_file and a validation_file.")
    trained, texts = zip(*parts["train"], strict=True)
    mixed = Mixture(trained, texts, data.corpora_temperature)
    held_out = {
        split: concatenate_datasets([pairs for _, pairs in parts[split]])
        for split in ("validation", "test")
        if parts[split]
    }
    warn_of_overlap(mixed.rows, held_out)
    source, target = tokenizers(mixed.rows.select(mixed.draw(np.random.default_rng(0))))
    if is_multilingual and (tags := LanguageTags.of(source)):
        for corpus in corpora:
            tags.direction(*corpus.languages)
    back_translated = source.convert_tokens_to_ids(BACK_TRANSLATED)

    def encoded(split: str) -> list[Dataset]:
        is_train = split == "train"
        options = (source, target, data.max_length)
        return [
            encode_pairs(
                pairs,
                *options,
                f"{corpus.name} {split}",
                workers,
                keeps_texts=not is_train,
                languages=corpus.languages if is_multilingual else None,
                first=[back_translated] * (is_train and corpus.back_translated),
            )
            for corpus, pairs in parts[split]
        ]

    mixture = Mixture(trained, encoded("train"), data.corpora_temperature)
    mixture.log_shares()
    validation = concatenate_datasets(encoded("validation"))
    return PreparedData(held_out | {"train": mixture, "validation": validation}, source, target)


def prepare_data_once(
    args: RunArguments, data: DataArguments, tokenizers: GetTokenizers
) -> PreparedData:
    """Prepare data in one process of each machine; the others then find it in the cache.

    They wait for a lock, because a barrier would fail after `args.ddp_timeout` seconds.
    """
    is_first = args.local_process_index == 0
    sources = [[x.data.train_file, x.data.dataset_name] for x in read_corpora(data)]
    names = {f"prepare-{Hasher.hash(source)}.lock" for source in sources if any(source)}
    # Sorted, so that two runs never wait for each other.
    paths = sorted(map(Path(config.HF_DATASETS_CACHE).joinpath, names))
    with explained_full_disk(), ExitStack() as stack:
        if not is_first:  # it would repeat the warnings
            data = replace(data, overwrite_cache=False)
            logging.disable(logging.WARNING)
            stack.callback(logging.disable, logging.NOTSET)
        locks: dict[Path, Any] = {}
        for path in paths if is_first else ():
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                locks[path] = lock_file(path)
            except (BlockingIOError, Timeout):
                logger.info("Another run prepares the same data. Waiting for it.")
                break  # do not hold later locks while waiting for this one
        args.distributed_state.wait_for_everyone()
        for path in paths:
            stack.enter_context(locks.get(path) or lock_file(path, is_waiting=True))
        return prepare_data(data, tokenizers)
