"""Section 5.1: read sentence pairs and encode them."""

import hashlib
import logging
from dataclasses import dataclass
from itertools import compress
from typing import Any

import pyarrow.compute
from datasets import (
    Dataset,
    DatasetDict,
    Features,
    List,
    Value,
    concatenate_datasets,
    get_dataset_split_names,
)
from transformers import PreTrainedConfig, PreTrainedTokenizerBase
from transformers.hf_argparser import HfArg

from ..data.augmentation import NOISES, with_noisy_sources, with_reversed_pairs
from ..data.corpus import embedded_pairs, parse_columns, read_hub, read_pairs, warn_of_overlap
from ..data.suspicious_pairs import report_suspicious
from ..saved.languages import Languages, LanguageTags, choose_languages, languages_of

logger = logging.getLogger(__name__)

EMBEDDED_HELD_OUT_SIZE = 1000
# Files that are read only together with others.
NEEDS = dict.fromkeys(("validation_file", "test_file"), "train_file")
NEEDS["train_file"] = "validation_file"


@dataclass
class DataArguments:
    """Sentence pairs: from files, from a dataset on the Hub, or else from the built-in grammar."""

    source_lang: str | None = HfArg(
        default=None, help="Language to translate from. Default: that of start_from, or en."
    )
    target_lang: str | None = HfArg(
        default=None, help="Language to translate to. Default: that of start_from, or de."
    )
    train_file: list[str] | None = HfArg(
        default=None,
        help="A .tsv or .jsonl file, or the common prefix of two line-aligned files: "
        "data/train for data/train.en and data/train.de; each plain or .gz. Several files are "
        "concatenated.",
    )
    validation_file: list[str] | None = HfArg(
        default=None,
        help="Pairs to evaluate on during training; same formats. Needed with train_file.",
    )
    test_file: list[str] | None = HfArg(
        default=None, help="Pairs to score the trained model on; same formats."
    )
    columns: str | None = HfArg(
        default=None, help="Languages of a .tsv file's columns: en,de. Default: source,target."
    )
    dataset_name: str | None = HfArg(default=None, help="A dataset on the Hub, instead of files.")
    dataset_config: str | None = HfArg(default=None, help="A configuration of that dataset.")
    embedded_train_size: int = HfArg(
        default=20_000, help="Training pairs that the built-in grammar generates."
    )
    clean: bool = HfArg(
        default=False,
        help="Remove training pairs that look wrong: identical sides, very different "
        "lengths, another script than most, repeats. The log gives their numbers.",
    )
    both_directions: bool = HfArg(
        default=False,
        help="Train on each pair in both directions. Then train one direction further, with "
        "--start_from.",
    )
    noisy_sources: float = HfArg(
        default=0.0,
        help="Add a copy of this share of the training pairs with noise in the sources: see "
        "noise_kinds. 0: none.",
    )
    noise_kinds: list[str] = HfArg(
        default_factory=lambda: list(NOISES),
        help="Kinds of noise for noisy_sources.",
        metadata={"choices": list(NOISES)},
    )
    noise_seed: int = HfArg(
        default=0, help="Seed of the noise. Another seed chooses other pairs and other errors."
    )
    max_length: int = HfArg(
        default=256, help="Skip pairs with more tokens on a side; the log says how many."
    )

    def languages(self, start_from: str | None = None, hub: bool = False) -> Languages:
        """The languages. A missing one is that of the model start_from, or en or de."""
        return choose_languages(self.source_lang, self.target_lang, start_from, hub)


def load_splits(data: DataArguments) -> DatasetDict:
    """Read the pairs that data names: "train" and "validation", and "test" if there are any."""
    if data.dataset_name is not None and data.train_file is not None:
        raise ValueError("Give either dataset_name or train_file, not both.")
    for name, needed in NEEDS.items():
        if getattr(data, name) is not None and getattr(data, needed) is None:
            raise ValueError(f"{name} needs {needed}. Pass {needed}, or leave {name} out.")
    languages = data.languages()
    if data.dataset_name is not None:
        splits = _hub_splits(data, data.dataset_name, languages)
    elif data.train_file is not None:
        splits = _file_splits(data, languages)
    else:
        splits = _embedded_splits(data, languages)
    splits["train"] = report_suspicious(splits["train"], data.clean)
    warn_of_overlap(splits["train"], {name: splits[name] for name in splits if name != "train"})
    if data.both_directions:
        splits["train"] = with_reversed_pairs(splits["train"])
    if data.noisy_sources:  # last: a reversed pair would have its noise in the target
        noise = (data.noisy_sources, data.noise_kinds, data.noise_seed)
        splits["train"] = with_noisy_sources(splits["train"], *noise)
    return DatasetDict(splits)


def check_max_length(data: DataArguments, config: PreTrainedConfig) -> None:
    """Check that a model with a table of positions has one for each token of the longest pair."""
    is_learned = getattr(config, "position_type", "learned") == "learned"
    limit = getattr(config, "max_position_embeddings", None) if is_learned else None
    if limit is not None and data.max_length > limit:
        raise ValueError(
            f"max_length={data.max_length} is more than the model's max_position_embeddings, "
            f"{limit}. Pass --max_length {limit}: longer pairs are then skipped."
        )


def _file_splits(data: DataArguments, languages: Languages) -> dict[str, Dataset]:
    paths = {"train": data.train_file, "validation": data.validation_file, "test": data.test_file}
    columns = parse_columns(data.columns)
    return {
        split: concatenate_datasets([read_pairs(path, *languages, columns) for path in files])
        for split, files in paths.items()
        if files is not None
    }


def _hub_splits(data: DataArguments, name: str, languages: Languages) -> dict[str, Dataset]:
    available = get_dataset_split_names(name, data.dataset_config)
    return {
        split: read_hub(name, data.dataset_config, split, *languages)
        for split in ("train", "validation", "test")
        if split != "test" or split in available
    }


def _embedded_splits(data: DataArguments, languages: Languages) -> dict[str, Dataset]:
    logger.info("No train_file and no dataset_name: training on the built-in grammar.")
    sizes = {
        "train": data.embedded_train_size,
        "validation": EMBEDDED_HELD_OUT_SIZE,
        "test": EMBEDDED_HELD_OUT_SIZE,
    }
    return {split: embedded_pairs(split, size, *languages) for split, size in sizes.items()}


def encode_pairs(
    pairs: Dataset,
    source_tokenizer: PreTrainedTokenizerBase,
    target_tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    name: str,
) -> Dataset:
    """Add the ids of "source" and "target" as columns "input_ids" and "labels"; drop long pairs.

    A tokenizer of many languages adds the tags of those in its settings.
    At most max_length tokens are allowed on each side, including `</s>`. Messages contain `name`.
    """
    tags = LanguageTags.needed_by(source_tokenizer)
    languages: Any = languages_of(source_tokenizer)

    def encode(batch: dict[str, list[str]]) -> dict[str, list[Any]]:
        if tags:
            ids = tags.encode(batch["source"], *languages)
            labels = tags.encode_target(batch["target"], languages[1])
        else:
            ids = source_tokenizer(batch["source"], return_attention_mask=False).input_ids
            labels = target_tokenizer(batch["target"], return_attention_mask=False).input_ids
        columns: dict[str, list[Any]] = {**batch, "input_ids": ids, "labels": labels}
        is_short = [max(map(len, pair)) <= max_length for pair in zip(ids, labels, strict=True)]
        return {name: list(compress(rows, is_short)) for name, rows in columns.items()}

    ids = List(Value("int32"))
    features = Features({**pairs.features, "input_ids": ids, "labels": ids})
    kept = pairs.map(encode, batched=True, features=features, desc=f"Encoding {name}")
    if len(kept) < len(pairs):
        logger.warning(
            "%s: skipped %d of %d pairs with a side of more than max_length=%d tokens.",
            *(name, len(pairs) - len(kept), len(pairs), max_length),
        )
    return kept


def data_sha256(dataset: Any) -> str | None:
    """A hash of a dataset's "input_ids" and "labels" in their order; None for a stream.

    A dataset may have its own method `data_sha256`.
    """
    if hasattr(dataset, "data_sha256"):
        return dataset.data_sha256()
    columns = ["input_ids", "labels"]
    if not isinstance(dataset, Dataset) or not {*columns} <= {*dataset.column_names}:
        return None
    digest = hashlib.sha256()
    for table in dataset.select_columns(columns).with_format("arrow").iter(10_000):
        for column in map(table.column, columns):
            is_list = hasattr(column.type, "value_type")
            parts = (pyarrow.compute.list_value_length, pyarrow.compute.list_flatten)
            for part in [part(column) for part in parts] if is_list else [column]:
                values = part.to_numpy()
                is_float = values.dtype.kind == "f"
                digest.update(values.astype("float64" if is_float else "int64").tobytes())
    return digest.hexdigest()
