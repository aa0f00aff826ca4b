"""Read texts with one class each, from files and from the Hub."""

import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import ClassLabel, Dataset, DatasetDict, Features, Value, load_dataset
from transformers import PreTrainedTokenizerBase
from transformers.hf_argparser import HfArg

from ..data.corpus import warn_of_overlap
from ..data.lines import read_json_lines, read_lines
from ..training.ignored_flags import reject_ignored

logger = logging.getLogger(__name__)


@dataclass
class TextDataArguments:
    """Labelled texts: from files or from a dataset on the Hub."""

    train_file: str | None = HfArg(
        default=None,
        help="A .jsonl file, or a .tsv file with the label before the text; each plain or .gz.",
    )
    validation_file: str | None = HfArg(
        default=None, help="Validation texts, same formats. Default: a share of the training texts."
    )
    test_file: str | None = HfArg(
        default=None, help="Texts to score the trained model on, same formats."
    )
    dataset_name: str | None = HfArg(default=None, help="A dataset on the Hub, instead of files.")
    dataset_config: str | None = HfArg(default=None, help="A configuration of that dataset.")
    text_column: str = HfArg(default="text", help="Column or key of the text.")
    label_column: str = HfArg(default="label", help="Column or key of the class.")
    validation_share: float = HfArg(
        default=0.1, help="Share of the training texts to validate on, without validation texts."
    )
    max_length: int = HfArg(
        default=512, help="Cut texts to this many tokens; the log says how many were cut."
    )

    def __post_init__(self) -> None:
        if (self.train_file is None) == (self.dataset_name is None):
            raise ValueError("Give either train_file or dataset_name.")
        if self.dataset_name is not None and (self.validation_file or self.test_file):
            raise ValueError("A dataset has its own splits. Give no files with dataset_name.")
        if not 0 < self.validation_share < 1:
            raise ValueError(f"validation_share must be in (0, 1), got {self.validation_share}.")
        if self.max_length < 2:
            raise ValueError(f"max_length must be at least 2, got {self.max_length}.")
        self._reject_ignored()

    def _reject_ignored(self) -> None:
        is_from_hub = self.dataset_name is not None
        reject_ignored(self, "dataset_config", "needs dataset_name", is_ignored=not is_from_hub)
        files = filter(None, (self.train_file, self.validation_file, self.test_file))
        has_columns = is_from_hub or any(file_kind(path) == ".jsonl" for path in files)
        for name in ("text_column", "label_column"):
            needs = "needs a .jsonl file or dataset_name"
            reject_ignored(self, name, needs, is_ignored=not has_columns)
        has_validation = self.validation_file is not None
        reason = "has no effect with validation_file"
        reject_ignored(self, "validation_share", reason, is_ignored=has_validation)


def file_kind(path: str | Path) -> str:
    """The ending of a file's name, such as ".tsv", without ".gz"."""
    return Path(str(path).removesuffix(".gz")).suffix


def read_labelled(path: str | Path, text_column: str, label_column: str) -> list[tuple[str, str]]:
    """Read label and text of each line of a file.

    Args:
        path: A .jsonl file, or a .tsv file with the label before the text; each plain or .gz.
        text_column: Key of the text in a .jsonl file.
        label_column: Key of the label in a .jsonl file; its value is a string or an integer.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file has another extension, or a line has no label or no text.
    """
    if file_kind(path) == ".jsonl":
        return [
            _label_and_text(record, text_column, label_column, where)
            for where, record in read_json_lines(path)
        ]
    if file_kind(path) != ".tsv":
        raise ValueError(f"{path}: labelled texts must be .jsonl or .tsv files, plain or .gz.")
    rows = []
    for number, line in enumerate(read_lines(path), start=1):
        label, tab, text = line.partition("\t")
        if not line.strip():
            continue
        if not tab:
            raise ValueError(f"{path}:{number}: a line must be a label, a tab and a text.")
        rows.append(_strip_row(label, text, f"{path}:{number}"))
    return rows


def _label_and_text(
    record: Any, text_column: str, label_column: str, where: str
) -> tuple[str, str]:
    keys = sorted(record) if isinstance(record, dict) else []
    for column, kinds in ((text_column, str), (label_column, (str, int))):
        if column not in keys or not isinstance(record[column], kinds):
            got = f"got {record[column]!r}" if column in keys else f"got the keys {keys}"
            raise ValueError(
                f"{where}: a record must have {text_column!r}, a text, and {label_column!r}, a "
                f"string or an integer; {got}."
            )
    return _strip_row(str(record[label_column]), record[text_column], where)


def _strip_row(label: str, text: str, where: str) -> tuple[str, str]:
    for name, value in (("label", label), ("text", text)):
        if not value.strip():
            raise ValueError(f"{where}: there is no {name}.")
    if len(label.strip().splitlines()) > 1 or "\t" in label.strip():
        raise ValueError(f"{where}: a label must have no line break and no tab, got {label!r}.")
    return label.strip(), text.strip()


def load_labelled_splits(data: TextDataArguments, seed: int) -> DatasetDict:
    """Read the texts that data names; all splits have the same classes in the same order.

    Without validation texts, the same share of each class is drawn from the training texts:
    files are often sorted by class.

    Returns:
        "train", "validation" and perhaps "test", with the columns "text" and "label".

    Raises:
        OSError: A file or dataset cannot be read.
        ValueError: A file or dataset has the wrong format, or a split has a class that the
            training texts lack.
    """
    rows = _read_files(data) if data.dataset_name is None else _read_hub(data, data.dataset_name)
    for split, labelled_texts in rows.items():
        if not labelled_texts:
            raise ValueError(f"{split}: there are no texts.")
    names = sorted({label for label, _ in rows["train"]}, key=_by_number)
    if len(names) < 2:
        raise ValueError(f"Training texts must have at least two classes, got only {names}.")
    for split, labelled_texts in rows.items():
        _check_and_log_classes(split, labelled_texts, names)
    splits = {split: _dataset(labelled_texts, names) for split, labelled_texts in rows.items()}
    if "validation" in splits:
        reason = "has no effect: the dataset has a validation split"
        reject_ignored(data, "validation_share", reason, is_ignored=True)
    else:
        _check_share(data.validation_share, rows["train"], names)
        parts = splits["train"].train_test_split(
            data.validation_share, seed=seed, stratify_by_column="label"
        )
        splits["train"], splits["validation"] = parts["train"], parts["test"]
        _check_drawn(splits, data.validation_share)
    held_out = {split: dataset for split, dataset in splits.items() if split != "train"}
    warn_of_overlap(splits["train"], held_out, "text")
    return DatasetDict(splits)


def _check_share(share: float, rows: list[tuple[str, str]], names: Sequence[str]) -> None:
    """Check that a share of the training texts, and the rest, are not fewer texts than classes."""
    rarest, count = Counter(label for label, _ in rows).most_common()[-1]
    if count < 2:
        raise ValueError(
            f"train: the class {rarest!r} has one text, so none is left to validate on. Give "
            "a validation_file, or more texts."
        )
    held_out = math.ceil(share * len(rows))
    if held_out < len(names):
        raise ValueError(
            f"A share of {share:g} of {len(rows)} texts has fewer validation texts than the "
            f"{len(names)} classes. Give a validation_file, more texts, or a larger "
            "validation_share."
        )
    left = len(rows) - held_out
    if left < len(names):
        raise ValueError(
            f"A share of {share:g} of {len(rows)} texts leaves {left} to train {len(names)} "
            "classes. Give a smaller validation_share, or more texts."
        )


def _check_drawn(splits: dict[str, Dataset], share: float) -> None:
    """Check that every class has texts to train on; warn if a class has no text to validate on.

    Raises:
        ValueError: All texts of a class are for validation.
    """
    missing = {}
    for split in ("train", "validation"):
        names = splits[split].features["label"].names
        found = set(splits[split]["label"])
        missing[split] = [name for number, name in enumerate(names) if number not in found]
    if missing["train"]:
        raise ValueError(
            f"A share of {share:g} leaves no text of the class {missing['train'][0]!r} to train "
            "on. Give a smaller validation_share, or more texts."
        )
    if missing["validation"]:
        logger.warning(
            "No text of these classes is among the validation texts, so their scores are unknown: "
            "%s. Give a validation_file, or a larger validation_share.",
            ", ".join(missing["validation"]),
        )


def _by_number(label: str) -> tuple[int, str]:
    """Sort key: numbers by value, then other labels by name."""
    return (int(label) if label.isdecimal() else 2**31, label)


def _check_and_log_classes(split: str, rows: list[tuple[str, str]], names: Sequence[str]) -> None:
    counts = Counter(label for label, _ in rows)
    unknown = sorted(counts.keys() - set(names))
    if unknown:
        raise ValueError(f"{split}: the class {unknown[0]!r} is not in the training texts.")
    listed = ", ".join(f"{name} {counts[name]:,}" for name in names)
    logger.info("%s: %d texts (%s).", split, len(rows), listed)


def _read_files(data: TextDataArguments) -> dict[str, list[tuple[str, str]]]:
    files = {
        "train": data.train_file,
        "validation": data.validation_file,
        "test": data.test_file,
    }
    return {
        split: read_labelled(path, data.text_column, data.label_column)
        for split, path in files.items()
        if path is not None
    }


def _read_hub(data: TextDataArguments, name: str) -> dict[str, list[tuple[str, str]]]:
    dataset = load_dataset(name, data.dataset_config)
    if "train" not in dataset:
        raise ValueError(f"{name} has no split 'train', only {sorted(dataset)}.")
    splits = [split for split in ("train", "validation", "test") if split in dataset]
    if "test" in splits and _is_unlabelled(dataset["test"], data.label_column):
        logger.warning("%s[test] has no labels: it is skipped.", name)
        splits.remove("test")
    return {split: list(_records(dataset[split], data, f"{name}[{split}]")) for split in splits}


def _is_unlabelled(dataset: Dataset, column: str) -> bool:
    """Whether all labels are -1, as in test sets whose labels are not published."""
    is_numbered = isinstance(dataset.features.get(column), ClassLabel)
    return is_numbered and set(dataset[column]) == {-1}


def _records(dataset: Dataset, data: TextDataArguments, name: str) -> Iterator[tuple[str, str]]:
    """Labels and texts; a label is the name of its class if the dataset has names."""
    classes = dataset.features.get(data.label_column)
    for number, record in enumerate(dataset):
        where = f"{name} record {number}"
        label, text = _label_and_text(record, data.text_column, data.label_column, where)
        if isinstance(classes, ClassLabel):
            if not 0 <= int(label) < classes.num_classes:
                raise ValueError(
                    f"{where}: the label must be in [0, {classes.num_classes}), got {label}."
                )
            label = classes.int2str(int(label))
        yield _strip_row(label, text, where)


def _dataset(rows: Iterable[tuple[str, str]], names: Sequence[str]) -> Dataset:
    labels, texts = zip(*rows, strict=True)
    numbers = {name: number for number, name in enumerate(names)}
    return Dataset.from_dict(
        {"text": list(texts), "label": [numbers[label] for label in labels]},
        Features({"text": Value("string"), "label": ClassLabel(names=list(names))}),
    )


def encode_texts(
    texts: Dataset, tokenizer: PreTrainedTokenizerBase, max_length: int, name: str
) -> Dataset:
    """Add the ids of "text" as "input_ids", and rename "label" to "labels".

    A text of more than max_length tokens is cut, and still ends in `</s>` if it did before.
    """
    eos = tokenizer.eos_token_id

    def encode(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        ids = tokenizer(batch["text"], return_attention_mask=False).input_ids
        return {
            "input_ids": [
                [*row[: max_length - 1], eos]
                if len(row) > max_length and row[-1] == eos
                else row[:max_length]
                for row in ids
            ],
            "is_cut": [len(row) > max_length for row in ids],
        }

    encoded = texts.map(encode, batched=True, desc=f"Encoding {name}")
    cut = sum(encoded["is_cut"])
    if cut:
        logger.info("%s: %d of %d texts cut to %d tokens.", name, cut, len(encoded), max_length)
    return encoded.remove_columns("is_cut").rename_column("label", "labels")
