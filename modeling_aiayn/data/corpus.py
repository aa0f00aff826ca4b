"""Read sentence pairs from files, from the Hub or from the built-in grammar.

The pairs are a `datasets.Dataset` with the columns "source" and "target", without blanks around.
"""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from datasets import Dataset, load_dataset

from .embedded_corpus import generate_pairs
from .lines import read_json_lines, read_lines

logger = logging.getLogger(__name__)

COLUMNS = ["source", "target"]
BATCH_SIZE = 10_000  # pairs that are compared at a time


def read_pairs(
    path: str, source: str, target: str, columns: tuple[str, str] | None = None
) -> Dataset:
    """Read pairs from a file, or from two; pairs with an empty side are skipped.

    Args:
        path: A .tsv or .jsonl file (or either with .gz), or the common prefix of two line-aligned
            files: "data/train" for data/train.en and data/train.de, plain or .gz.
        source: Language to translate from.
        target: Language to translate to.
        columns: Languages of a .tsv file's columns. None: source, then target.

    Raises:
        OSError: There is no such file, or it cannot be read.
        ValueError: The file has the wrong format, or holds no pair.
    """
    return skip_empty(read_rows(path, source, target, columns), path)


def read_rows(
    path: str, source: str, target: str, columns: tuple[str, str] | None = None
) -> Dataset:
    """Read pairs as `read_pairs` does, but keep those with an empty side."""
    if is_tsv(path):
        return _read_tsv(path, columns or (source, target), source, target)
    if is_jsonl(path):
        records = read_json_lines(path)
        return _pairs(_languages(record, source, target, where) for where, record in records)
    return _read_parallel(_find_side(path, source), _find_side(path, target))


def files_of(path: str, source: str, target: str) -> list[Path]:
    """The files that hold the pairs of a path, as `read_pairs` takes it: one, or one a side."""
    if is_tsv(path) or is_jsonl(path):
        return [Path(path)]
    return [_find_side(path, source), _find_side(path, target)]


def is_tsv(path: str) -> bool:
    """Whether a path is a .tsv file, plain or .gz."""
    return path.removesuffix(".gz").endswith(".tsv")


def is_jsonl(path: str) -> bool:
    """Whether a path is a .jsonl file, plain or .gz."""
    return path.removesuffix(".gz").endswith(".jsonl")


def parse_columns(columns: str | None) -> tuple[str, str] | None:
    """Parse two languages such as "en,de"; None stays None."""
    if columns is None:
        return None
    match [language.strip() for language in columns.split(",")]:
        case [first, second] if first and second:
            return first, second
    raise ValueError(f"columns must be two languages, as in en,de; got {columns!r}.")


def read_hub(name: str, config_name: str | None, split: str, source: str, target: str) -> Dataset:
    """Read pairs from a dataset on the Hub, memory-mapped; pairs with an empty side are skipped.

    Source and target are columns, or keys in the column "translation".
    """
    dataset = load_dataset(name, config_name, split=split)

    def columns(batch: dict[str, list[Any]], numbers: list[int]) -> dict[str, list[str]]:
        records = (dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True))
        return _columns(
            _languages(record, source, target, f"{name}[{split}] record {number}")
            for number, record in zip(numbers, records, strict=True)
        )

    names = dataset.column_names
    pairs = dataset.map(columns, batched=True, with_indices=True, remove_columns=names)
    return skip_empty(pairs, f"{name}[{split}]")


def embedded_pairs(split: str, size: int, source: str, target: str, seed: int = 0) -> Dataset:
    """Generate pairs of the built-in grammar with `generate_pairs`, in either direction."""
    if {source, target} != {"en", "de"}:
        raise ValueError(f"The built-in grammar has en and de, got {source!r} and {target!r}.")
    pairs = [(pair.source, pair.target) for pair in generate_pairs(split, size, seed)]
    return _pairs(pairs if source == "en" else [(german, english) for english, german in pairs])


def skip_empty(pairs: Dataset, name: str) -> Dataset:
    """Keep the pairs with text on both sides; messages call the pairs by name."""
    kept = pairs.filter(
        lambda source, target: [bool(a and b) for a, b in zip(source, target, strict=True)],
        input_columns=COLUMNS,
        batched=True,
    )
    if not kept:
        raise ValueError(
            f"{name}: no pair with text on both sides, in {len(pairs)} lines. Check the file, and "
            "the languages or columns given for it."
        )
    if len(kept) < len(pairs):
        skipped = len(pairs) - len(kept)
        logger.warning("%s: skipped %d of %d pairs with an empty side.", name, skipped, len(pairs))
    return kept


def warn_of_overlap(
    train: Dataset, held_out: Mapping[str, Dataset], column: str = "source"
) -> None:
    """Log how many held-out texts are in the training data; column holds them."""
    texts = {name: set(examples[column]) for name, examples in held_out.items()}
    shared: dict[str, set[str]] = {name: set() for name in held_out}
    for batch in train.iter(BATCH_SIZE):
        for name, repeated in shared.items():
            repeated |= texts[name].intersection(batch[column])
    for name, repeated in shared.items():
        if count := sum(text in repeated for text in held_out[name][column]):
            total = len(held_out[name])
            logger.warning("%s: %d of %d %ss are in the training data.", name, count, total, column)


def _read_parallel(source_path: Path, target_path: Path) -> Dataset:
    source, target = read_lines(source_path), read_lines(target_path)
    if len(source) != len(target):
        raise ValueError(
            f"Line-aligned files must have the same number of lines, got {len(source)} in "
            f"{source_path} and {len(target)} in {target_path}."
        )
    return _pairs(zip(source, target, strict=True))


def _find_side(prefix: str, language: str) -> Path:
    plain, zipped = Path(f"{prefix}.{language}"), Path(f"{prefix}.{language}.gz")
    for path in (plain, zipped):
        if path.exists():
            return path
    raise FileNotFoundError(
        f"No such file: {plain} (or {zipped.name}). Pairs must be a .tsv or .jsonl file, plain or "
        ".gz, or the common prefix of two files: data/train for data/train.en and data/train.de."
    )


def _read_tsv(path: str, columns: tuple[str, str], source: str, target: str) -> Dataset:
    """Read a file with two columns, separated by a tab, without quotes and without a header."""
    if {source, target} != set(columns):
        raise ValueError(
            f"{path}: source_lang and target_lang must be the two of columns {columns}, got "
            f"{source!r} and {target!r}."
        )
    rows = []
    for number, line in enumerate(read_lines(path), start=1):
        cells = line.split("\t")
        if not line.strip(" "):
            continue
        if len(cells) != 2:
            raise ValueError(
                f"{path}:{number}: a line must have 2 columns, got {len(cells)}. Put one tab "
                "between source and target."
            )
        rows.append(cells)
    first = columns.index(source)
    return _pairs((row[first], row[1 - first]) for row in rows)


def _languages(record: Any, source: str, target: str, where: str) -> tuple[str, str]:
    """Both sentences of a record: by language, at its top or under "translation"."""
    if isinstance(record, dict) and isinstance(record.get("translation"), dict):
        record = record["translation"]
    for language in (source, target):
        if not (isinstance(record, dict) and isinstance(record.get(language), str)):
            raise ValueError(
                f"{where}: a record must have a text under {language!r}, got {record!r:.200}. "
                'Write "" to skip the pair.'
            )
    return record[source], record[target]


def _pairs(rows: Iterable[tuple[str, str]]) -> Dataset:
    return Dataset.from_dict(_columns(rows))


def _columns(rows: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    source, target = [], []
    for source_text, target_text in rows:
        source.append(source_text.strip())
        target.append(target_text.strip())
    return {"source": source, "target": target}
