"""Read texts with one class each, from files and from the Hub."""

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import ClassLabel, Dataset, DatasetDict, Features, Value, load_dataset
from transformers import PreTrainedTokenizerBase
from transformers.hf_argparser import HfArg

from ..data.corpus import ending_of, warn_of_overlap
from ..data.lines import read_json_lines, read_lines

logger = logging.getLogger(__name__)


@dataclass
class TextDataArguments:
    """Labeled texts: from files or from a dataset on the Hub."""

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


Row = tuple[str, str]  # a label and a text


def load_labelled_splits(data: TextDataArguments, seed: int) -> DatasetDict:
    """Read the texts that data names; all splits have the same classes in the same order.

    Splits are "train", "validation" and perhaps "test", with the columns "text" and "label".
    If there are no validation texts, they are drawn from the training texts, the same share of
    each class.
    """
    rows = _read_files(data) if data.dataset_name is None else _read_hub(data, data.dataset_name)
    names = sorted({label for label, _ in rows["train"]}, key=_by_number)
    if len(names) < 2:
        raise ValueError(f"Training texts must have at least two classes, got only {names}.")
    splits = {split: _dataset(split, split_rows, names) for split, split_rows in rows.items()}
    if "validation" not in splits:
        parts = splits["train"].train_test_split(
            data.validation_share, seed=seed, stratify_by_column="label"
        )
        splits["train"], splits["validation"] = parts["train"], parts["test"]
    held_out = {split: dataset for split, dataset in splits.items() if split != "train"}
    warn_of_overlap(splits["train"], held_out, "text")
    return DatasetDict(splits)


def read_labelled(path: str | Path, text_column: str, label_column: str) -> list[Row]:
    """Read label and text of each line of a .jsonl file, or of a .tsv file: the label first."""
    if ending_of(path) == ".jsonl":
        return [
            _row_of_record(record, text_column, label_column, where)
            for where, record in read_json_lines(path)
        ]
    if ending_of(path) != ".tsv":
        raise ValueError(f"{path}: labelled texts must be .jsonl or .tsv files, plain or .gz.")
    rows = []
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            label, _, text = line.partition("\t")
            rows.append(_row(label, text, f"{path}:{number}"))
    return rows


def _row_of_record(record: Any, text_column: str, label_column: str, where: str) -> Row:
    for column, kinds in ((text_column, str), (label_column, (str, int))):
        if not (isinstance(record, dict) and isinstance(record.get(column), kinds)):
            raise ValueError(
                f"{where}: a record must have {text_column!r}, a text, and {label_column!r}, a "
                f"string or an integer; got {record!r:.200}."
            )
    return _row(str(record[label_column]), record[text_column], where)


def _row(label: str, text: str, where: str) -> Row:
    if not (label.strip() and text.strip()):
        raise ValueError(
            f"{where}: a line of a .tsv file must be a label, a tab and a text, and neither may be "
            f"empty; got {label!r} and {text!r:.200}."
        )
    return label.strip(), text.strip()


def _by_number(label: str) -> tuple[int, str]:
    return (int(label) if label.isdecimal() else 2**31, label)


def _read_files(data: TextDataArguments) -> dict[str, list[Row]]:
    files = {"train": data.train_file, "validation": data.validation_file, "test": data.test_file}
    return {
        split: read_labelled(path, data.text_column, data.label_column)
        for split, path in files.items()
        if path is not None
    }


def _read_hub(data: TextDataArguments, name: str) -> dict[str, list[Row]]:
    dataset = load_dataset(name, data.dataset_config)
    splits = [split for split in ("train", "validation", "test") if split in dataset]
    # Test sets with unpublished labels have the class -1 everywhere.
    if "test" in splits and all(row.get(data.label_column) == -1 for row in dataset["test"]):
        logger.warning("%s[test] has no labels: it is skipped.", name)
        splits.remove("test")
    return {split: list(_records(dataset[split], data, f"{name}[{split}]")) for split in splits}


def _records(dataset: Dataset, data: TextDataArguments, name: str) -> Iterator[Row]:
    """Labels and texts; a label is the name of its class if the dataset has names."""
    classes = dataset.features.get(data.label_column)
    for number, record in enumerate(dataset):
        where = f"{name} record {number}"
        label, text = _row_of_record(record, data.text_column, data.label_column, where)
        yield (classes.int2str(int(label)) if isinstance(classes, ClassLabel) else label), text


def _dataset(split: str, rows: list[Row], names: list[str]) -> Dataset:
    counts = Counter(label for label, _ in rows)
    if unknown := sorted(counts.keys() - set(names)):
        raise ValueError(f"{split}: the class {unknown[0]!r} is not in the training texts.")
    listed = ", ".join(f"{name} {counts[name]:,}" for name in names)
    logger.info("%s: %d texts (%s).", split, len(rows), listed)
    columns = {"text": [text for _, text in rows], "label": [label for label, _ in rows]}
    features = Features({"text": Value("string"), "label": ClassLabel(names=names)})
    return Dataset.from_dict(columns, features)


def encode_texts(
    texts: Dataset, tokenizer: PreTrainedTokenizerBase, max_length: int, name: str
) -> Dataset:
    """Add "input_ids", cut to max_length tokens but with `</s>`, and rename "label" to "labels"."""
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
    if cut := sum(encoded["is_cut"]):
        logger.info("%s: %d of %d texts cut to %d tokens.", name, cut, len(encoded), max_length)
    return encoded.remove_columns("is_cut").rename_column("label", "labels")
