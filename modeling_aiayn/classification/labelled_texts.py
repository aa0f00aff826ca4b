"""Texts with a class each, from files and from the Hub."""

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from datasets import ClassLabel, Dataset, DatasetDict, Features, Value, load_dataset
from transformers import PreTrainedTokenizerBase

from ..corpus import read_lines
from .arguments import TextDataArguments

logger = logging.getLogger(__name__)


def read_labelled(path: str | Path, text_column: str, label_column: str) -> list[tuple[str, str]]:
    """Labels and texts of a file.

    Args:
        path: A .jsonl file, or a .tsv file with the label before the text; each plain or .gz.
        text_column: Key of the text in a .jsonl file.
        label_column: Key of its label there, a string or an integer.

    Returns:
        Label and text of each line.

    Raises:
        OSError: The file cannot be read.
        ValueError: A line is not what the file's name says, or has no text.
    """
    kind = Path(str(path).removesuffix(".gz")).suffix
    if kind not in (".jsonl", ".tsv"):
        raise ValueError(f"{path}: labelled texts come as .jsonl or .tsv, plain or .gz.")
    rows = []
    for number, line in enumerate(read_lines(path), start=1):
        where = f"{path}:{number}"
        if kind == ".jsonl":
            label, text = _record(line, text_column, label_column, where)
        else:
            label, tab, text = line.partition("\t")
            if not tab:
                raise ValueError(f"{where}: a line must be a label, a tab and a text.")
        rows.append(_filled(label, text, where))
    return rows


def _filled(label: str, text: str, where: str) -> tuple[str, str]:
    """Both without surrounding blanks, and neither empty."""
    for name, value in (("label", label), ("text", text)):
        if not value.strip():
            raise ValueError(f"{where}: there is no {name}.")
    return label.strip(), text.strip()


def _record(line: str, text_column: str, label_column: str, where: str) -> tuple[str, str]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: not valid JSON ({error}).") from error
    return _label_and_text(record, text_column, label_column, where)


def _label_and_text(
    record: Any, text_column: str, label_column: str, where: str
) -> tuple[str, str]:
    keys = sorted(record) if isinstance(record, dict) else []
    for column, kinds in ((text_column, str), (label_column, (str, int))):
        if column not in keys or not isinstance(record[column], kinds):
            raise ValueError(
                f"{where}: a record must have {text_column!r}, a text, and {label_column!r}, a "
                f"string or an integer; got the keys {keys}."
            )
    return str(record[label_column]), record[text_column]


def load_labelled_splits(data: TextDataArguments, seed: int) -> DatasetDict:
    """The splits that data names, with the same classes in the same order in each.

    Where there is no validation split, a share of the training texts is drawn for one, of each
    class alike: files are often sorted by class.

    Args:
        data: Where texts come from.
        seed: Draws the validation texts.

    Returns:
        "train", "validation" and, where there is one, "test", with the columns "text" and "label".

    Raises:
        OSError: A file or dataset cannot be had.
        ValueError: It is not what it should be, or a split has a class that training has not.
    """
    rows = _hub_rows(data) if data.dataset_name is not None else _file_rows(data)
    for split, found in rows.items():
        if not found:
            raise ValueError(f"{split}: there are no texts.")
    names = sorted({label for label, _ in rows["train"]}, key=_by_number)
    if len(names) < 2:
        raise ValueError(f"Training texts must be of two classes at least, got only {names}.")
    for split, found in rows.items():
        strange = sorted({label for label, _ in found} - set(names))
        if strange:
            raise ValueError(f"{split}: the class {strange[0]!r} is not in the training texts.")
        classes = Counter(label for label, _ in found)
        counts = ", ".join(f"{name} {classes[name]:,}" for name in names)
        logger.info("%s: %d texts (%s).", split, len(found), counts)
    splits = {split: _dataset(found, names) for split, found in rows.items()}
    if "validation" not in splits:
        rarest = min(names, key=[label for label, _ in rows["train"]].count)
        if sum(label == rarest for label, _ in rows["train"]) < 2:
            raise ValueError(
                f"train: the class {rarest!r} has one text, and can have none to validate on. Give "
                "a validation_file, or more texts."
            )
        parts = splits["train"].train_test_split(
            data.validation_share, seed=seed, stratify_by_column="label"
        )
        splits["train"], splits["validation"] = parts["train"], parts["test"]
    return DatasetDict(splits)


def _by_number(label: str) -> tuple[int, str]:
    """Numbers in their order, before names in theirs."""
    return (int(label), "") if label.isdecimal() else (2**31, label)


def _file_rows(data: TextDataArguments) -> dict[str, list[tuple[str, str]]]:
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


def _hub_rows(data: TextDataArguments) -> dict[str, list[tuple[str, str]]]:
    dataset = load_dataset(str(data.dataset_name), data.dataset_config)
    if "train" not in dataset:
        raise ValueError(f"{data.dataset_name} has no split 'train', only {sorted(dataset)}.")
    splits = [split for split in ("train", "validation", "test") if split in dataset]
    if "test" in splits and _is_unlabelled(dataset["test"], data.label_column):
        logger.warning("%s[test] has no labels: it is left out.", data.dataset_name)
        splits.remove("test")
    return {
        split: list(_records(dataset[split], data, f"{data.dataset_name}[{split}]"))
        for split in splits
    }


def _is_unlabelled(dataset: Dataset, column: str) -> bool:
    """Whether all labels are -1, as in test sets of which only their makers know them."""
    is_numbered = isinstance(dataset.features.get(column), ClassLabel)
    return is_numbered and set(dataset[column]) == {-1}


def _records(dataset: Dataset, data: TextDataArguments, name: str) -> Iterator[tuple[str, str]]:
    """Labels, by name where the dataset has names for them, and texts."""
    classes = dataset.features.get(data.label_column)
    for number, record in enumerate(dataset):
        where = f"{name} record {number}"
        label, text = _label_and_text(record, data.text_column, data.label_column, where)
        if isinstance(classes, ClassLabel):
            if not 0 <= int(label) < classes.num_classes:
                raise ValueError(f"{where}: there is no class {label}, of {classes.num_classes}.")
            label = classes.int2str(int(label))
        yield _filled(label, text, where)


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
    """Ids of texts, cut where they are too long; the last is `</s>` all the same.

    Args:
        texts: Columns "text" and "label".
        tokenizer: The tokenizer.
        max_length: Tokens that a text may have, `</s>` counted.
        name: What to call the texts in the log.

    Returns:
        The columns "input_ids" and "labels".
    """

    def encode(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        ids = tokenizer(batch["text"], return_attention_mask=False).input_ids
        return {
            "input_ids": [
                row if len(row) <= max_length else [*row[: max_length - 1], row[-1]] for row in ids
            ],
            "labels": batch["label"],
            "is_cut": [len(row) > max_length for row in ids],
        }

    encoded = texts.map(
        encode, batched=True, remove_columns=texts.column_names, desc=f"Encoding {name}"
    )
    cut = sum(encoded["is_cut"])
    if cut:
        logger.info("%s: %d of %d texts cut to %d tokens.", name, cut, len(encoded), max_length)
    return encoded.remove_columns("is_cut")
