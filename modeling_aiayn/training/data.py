"""Section 5.1: read sentence pairs and encode them."""

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import pyarrow.compute
from datasets import (
    Dataset,
    Features,
    List,
    Value,
    get_dataset_split_names,
    load_dataset,
)
from transformers import PreTrainedConfig, PreTrainedTokenizerBase
from transformers.hf_argparser import HfArg

from ..data.augmentation import NOISES, with_noisy_sources, with_reversed_pairs
from ..data.cache import delete_computed, map_rows
from ..data.corpus import (
    FEATURES,
    cached_rows,
    embedded_pairs,
    hub_rows,
    parse_columns,
    shuffled_rows,
    skip_empty,
    streamed_rows,
    warn_of_overlap,
)
from ..data.suspicious_pairs import report_suspicious
from ..saved.languages import Languages, LanguageTags, choose_languages, iso_639, languages_of
from ..tokenization import text_encoder
from .batches import PAIR

logger = logging.getLogger(__name__)

EMBEDDED_HELD_OUT_SIZE = 1000
# Flags that need another flag, and that other flag.
NEEDS = dict.fromkeys(("validation_file", "test_file"), "train_file")
NEEDS["train_file"] = "validation_file"


# Patterns of files in the cache: unfinished ones of killed processes, and results from the pairs.
UNFINISHED = ("tmp*",)
COMPUTED = ("cache-*.arrow", "vocabulary-*.json")


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
        help="A .tsv, .jsonl, .tmx, .csv, .json or .parquet file, or the common prefix of two "
        "line-aligned files: data/train for data/train.en and data/train.de; each plain or .gz. "
        "Several files are concatenated.",
    )
    validation_file: list[str] | None = HfArg(
        default=None,
        help="Pairs to evaluate on during training; same formats. Needed with train_file.",
    )
    test_file: list[str] | None = HfArg(
        default=None, help="Pairs to score the trained model on; same formats."
    )
    corpora: str | None = HfArg(
        default=None,
        help="A YAML list of corpora, of one direction or several: flags such as train_file, "
        "source_lang and target_lang for each. See docs/training.md.",
    )
    corpora_temperature: float = HfArg(
        default=5.0,
        help="A corpus of n pairs is drawn with weight * n ** (1 / corpora_temperature). 1: each "
        "pair equally often; higher: small corpora more often.",
    )
    columns: str | None = HfArg(
        default=None, help="Columns of a .tsv file: en,de, or score,en,de. Default: source,target."
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
    check_languages: bool = HfArg(
        default=False,
        help="Training pairs in another language than source_lang and target_lang look wrong, too. "
        "Needs the package py3langid (the extra 'langid').",
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
    streaming: bool = HfArg(
        default=False,
        help="Read the training pairs while training, and keep none on disk. Needs max_steps and "
        "max_tokens_per_batch. With several files, each of dataloader_num_workers reads its own.",
    )
    preprocessing_num_workers: int | None = HfArg(
        default=None, help="Processes that check and encode the training pairs. Default: one."
    )
    overwrite_cache: bool = HfArg(
        default=False, help="Prepare the data again, although the cache of datasets holds it."
    )

    def languages(self, start_from: str | None = None, hub: bool = False) -> Languages:
        """Source and target language; missing ones come from start_from, or are en and de."""
        return choose_languages(self.source_lang, self.target_lang, start_from, hub)


def load_splits(data: DataArguments) -> dict[str, Any]:
    """Read the pairs that data names: "train" and "validation", and perhaps "test".

    One of several corpora may lack any of them. "train" is a `Dataset`, or with streaming an
    `IterableDataset`, shuffled by a buffer.
    """
    check_sources(data)
    languages = data.languages()
    if data.dataset_name is not None:
        splits = _hub_splits(data, data.dataset_name, languages)
    elif data.train_file or data.validation_file or data.test_file:
        splits = _file_splits(data, languages)
    else:
        splits = _embedded_splits(data, languages)
    if data.streaming:
        return splits
    if data.train_file is not None:  # other programs use the cache of a dataset on the Hub
        delete_computed(splits["train"], UNFINISHED)
    for split in splits.values() if data.overwrite_cache else ():
        delete_computed(split, COMPUTED)
    return _augmented(splits, data) if "train" in splits else splits


def _augmented(splits: dict[str, Any], data: DataArguments) -> dict[str, Any]:
    """Clean the training pairs and add to them, as the flags say."""
    workers = data.preprocessing_num_workers
    languages = data.languages() if data.check_languages else ()
    codes = [iso_639(language, is_macro=True) for language in languages]
    splits["train"] = report_suspicious(splits["train"], data.clean, workers, codes)
    if data.corpora is None:
        warn_of_overlap(splits["train"], {name: splits[name] for name in splits if name != "train"})
    if data.both_directions:
        splits["train"] = with_reversed_pairs(splits["train"])
    if data.noisy_sources:  # last: a reversed pair would have its noise in the target
        noise = (data.noisy_sources, data.noise_kinds, data.noise_seed)
        splits["train"] = with_noisy_sources(splits["train"], *noise)
    return splits


def check_sources(data: DataArguments) -> None:
    """Check that the flags that name the sources of pairs do not contradict each other."""
    if data.dataset_name is not None and data.train_file is not None:
        raise ValueError("Give either dataset_name or train_file, not both.")
    for name, needed in NEEDS.items():
        has_one = getattr(data, name) is not None and getattr(data, needed) is None
        if has_one and (data.corpora is None or data.dataset_name is not None):
            raise ValueError(f"{name} needs {needed}. Pass {needed}, or leave {name} out.")
    for name in ("clean", "check_languages", "both_directions", "noisy_sources"):
        if data.streaming and getattr(data, name):
            raise ValueError(f"{name} needs all pairs, and cannot be used with streaming.")


def check_max_length(data: DataArguments, config: PreTrainedConfig) -> None:
    """Check that a learned position table has max_length positions."""
    is_learned = getattr(config, "position_type", "learned") == "learned"
    limit = getattr(config, "max_position_embeddings", None) if is_learned else None
    if limit is not None and data.max_length > limit:
        raise ValueError(
            f"max_length={data.max_length} is more than the model's max_position_embeddings, "
            f"{limit}. Pass --max_length {limit}: longer pairs are then skipped."
        )


def _file_splits(data: DataArguments, languages: Languages) -> dict[str, Any]:
    paths = {"train": data.train_file, "validation": data.validation_file, "test": data.test_file}
    options = (*languages, parse_columns(data.columns))
    return {
        split: streamed_rows(files, *options)
        if data.streaming and split == "train"
        else skip_empty(cached_rows(files, *options), " and ".join(files))
        for split, files in paths.items()
        if files is not None
    }


def _hub_splits(data: DataArguments, name: str, languages: Languages) -> dict[str, Any]:
    available = get_dataset_split_names(name, data.dataset_config)
    splits: dict[str, Any] = {}
    for split in ("train", "validation", "test"):
        if split == "test" and split not in available:
            continue
        place = f"{name}[{split}]"
        records = load_dataset(name, data.dataset_config, split=split, streaming=data.streaming)
        rows = hub_rows(records, place, *languages)
        if not data.streaming:
            splits[split] = skip_empty(rows, place)
        elif split == "train":
            splits[split] = shuffled_rows(rows)
        else:
            splits[split] = skip_empty(Dataset.from_list([*rows], FEATURES), place)
    return splits


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
    num_proc: int | None = None,
    keeps_texts: bool = True,
    **direction: Any,
) -> Dataset:
    """Encode "source" and "target" as columns "input_ids" and "labels"; drop long pairs.

    A multilingual tokenizer adds the tags of the languages in its settings, or in `languages`.
    `direction` holds `languages` and `first` of `pair_encoder`.
    At most max_length tokens are allowed on each side, including `</s>`. Messages contain `name`.
    """
    features = Features({name: List(Value("int32")) for name in PAIR})
    if keeps_texts:
        features |= pairs.features
    encode = pair_encoder(source_tokenizer, target_tokenizer, max_length, keeps_texts, **direction)
    step = f"Step 4 of 4: encoding {name}"
    kept = map_rows(pairs, encode, features, step, num_proc)
    if len(kept) < len(pairs):
        logger.warning(
            "%s: skipped %d of %d pairs with a side of more than max_length=%d tokens.",
            *(name, len(pairs) - len(kept), len(pairs), max_length),
        )
    return kept


def pair_encoder(
    source_tokenizer: PreTrainedTokenizerBase,
    target_tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    keeps_texts: bool,
    languages: Languages | None = None,
    first: Sequence[int] = (),
) -> Callable[[dict[str, list[str]]], dict[str, Any]]:
    """Return the function that encodes batches; each source begins with the ids in first."""
    tags = LanguageTags.needed_by(source_tokenizer)
    source_lang, target_lang = languages_of(source_tokenizer)
    if languages is not None and (tags := LanguageTags.of(source_tokenizer)):
        source_lang, target_lang = tags.direction(*languages) or languages
    has_tags_in_target = tags and source_tokenizer is target_tokenizer
    encode_source, encode_target = text_encoder(source_tokenizer), text_encoder(target_tokenizer)

    def encode(batch: dict[str, list[str]]) -> dict[str, Any]:
        if tags:
            ids: Sequence[Any] = tags.encode(batch["source"], source_lang, target_lang)
        else:
            ids = encode_source(batch["source"])
        labels: Sequence[Any]
        if has_tags_in_target and tags:
            labels = tags.encode_target(batch["target"], target_lang)
        else:
            labels = encode_target(batch["target"])
        ids = [[*first, *text] for text in ids] if first else ids
        columns = {**(batch if keeps_texts else {}), "input_ids": ids, "labels": labels}
        is_short = [max(map(len, pair)) <= max_length for pair in zip(ids, labels, strict=True)]
        return {name: list(compress(rows, is_short)) for name, rows in columns.items()}

    return encode


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
