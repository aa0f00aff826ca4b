"""Text in: sentence pairs from files, from the Hub, or from the embedded grammar; and checks.

Every reader gives a `datasets.Dataset` with the columns "source" and "target", stripped of
surrounding blanks. What is wrong with a file is said with its path and line.
"""

import gzip
import json
import logging
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from datasets import Dataset, load_dataset

from .embedded_corpus import generate_pairs

logger = logging.getLogger(__name__)

# Pairs that are looked at together.
BATCH_SIZE = 10_000


def read_lines(path: str | Path) -> list[str]:
    r"""Lines of a UTF-8 text file, plain or .gz, split at \n alone and stripped of \r.

    Args:
        path: The file.

    Returns:
        Its lines, without line ends and without a byte-order mark.

    Raises:
        OSError: The file cannot be read, or is a truncated or damaged .gz.
        ValueError: A line is not UTF-8.
    """
    lines = _raw_lines(_opened(path), str(path))
    return [_decode(line, str(path), number) for number, line in enumerate(lines, start=1)]


def read_bytes(path: str | Path) -> bytes:
    """A file as it is, plain or .gz.

    Args:
        path: The file.

    Returns:
        Its bytes.

    Raises:
        OSError: The file cannot be read, or is a truncated or damaged .gz.
    """
    with _opened(path) as file, _whole_gzip(str(path)):
        return file.read()


def stream_lines(source: str | Path | BinaryIO) -> Iterator[str]:
    """Lines of text to translate, one at a time, as `read_lines` has them.

    A line that is not UTF-8 costs no other: it comes with U+FFFD where it is not, and a warning.

    Args:
        source: A text file, plain or .gz, or an open binary one.

    Returns:
        The lines.

    Raises:
        OSError: The file cannot be read, or turns out to be a truncated or damaged .gz.
    """
    if isinstance(source, (str, Path)):
        return _replaced(_raw_lines(_opened(source), str(source)), str(source))
    return _replaced(_raw_lines(source, "stdin"), "stdin")


def _opened(path: str | Path) -> BinaryIO:
    opened: Any = gzip.open if str(path).endswith(".gz") else open
    file: BinaryIO = opened(path, "rb")
    return file


def _raw_lines(file: BinaryIO, name: str) -> Iterator[bytes]:
    """Lines without line ends and byte-order mark; the file is closed behind them."""
    with file, _whole_gzip(name):
        for number, line in enumerate(file, start=1):
            text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            yield text.removesuffix(b"\n")


@contextmanager
def _whole_gzip(name: str) -> Iterator[None]:
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise OSError(f"{name}: truncated or damaged .gz file ({error}).") from error


def _replaced(lines: Iterable[bytes], name: str) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        try:
            yield _decode(line, name, number)
        except ValueError as error:
            logger.warning("%s What cannot be read is U+FFFD here.", error)
            yield line.decode("utf-8", "replace").removesuffix("\r")


def _decode(line: bytes, name: str, number: int) -> str:
    try:
        return line.decode("utf-8").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name}:{number}: not UTF-8 (byte 0x{line[error.start]:02x} at position "
            f"{error.start} of the line). Convert it to UTF-8."
        ) from error


def read_parallel(source_path: str | Path, target_path: str | Path) -> Dataset:
    """Pairs from two files, line i of one translating line i of the other.

    Args:
        source_path: File of source sentences, plain or .gz.
        target_path: File of target sentences, plain or .gz.

    Returns:
        The pairs.

    Raises:
        OSError: A file cannot be read.
        ValueError: The files have different numbers of lines, or are not UTF-8.
    """
    source, target = read_lines(source_path), read_lines(target_path)
    if len(source) != len(target):
        raise ValueError(
            f"Line-aligned files must have the same number of lines, got {len(source)} in "
            f"{source_path} and {len(target)} in {target_path}."
        )
    return _pairs(zip(source, target, strict=True))


def read_tsv(path: str | Path, columns: tuple[str, str], source: str, target: str) -> Dataset:
    """Pairs from a file with a tab between the two sentences of a line; nothing is quoted.

    Args:
        path: The file, plain or .gz, without a header.
        columns: Languages of the first and the second column.
        source: Language to translate from, one of columns.
        target: Language to translate to, the other one.

    Returns:
        The pairs.

    Raises:
        OSError: The file cannot be read.
        ValueError: A line has not exactly two columns, or the languages are not those of columns.
    """
    if {source, target} != set(columns):
        raise ValueError(
            f"{path}: source_lang and target_lang must be the two of columns {columns}, got "
            f"{source!r} and {target!r}."
        )
    rows = []
    for number, line in enumerate(read_lines(path), start=1):
        cells = line.split("\t")
        if len(cells) != 2:
            raise ValueError(f"{path}:{number}: a line must have 2 columns, got {len(cells)}.")
        rows.append(cells)
    first = columns.index(source)
    return _pairs((row[first], row[1 - first]) for row in rows)


def parse_columns(columns: str | None) -> tuple[str, str] | None:
    """Two languages from a flag such as "en,de".

    Args:
        columns: The flag's value, or None.

    Returns:
        Both languages, or None.

    Raises:
        ValueError: It is not two languages with a comma between them.
    """
    if columns is None:
        return None
    languages = [language.strip() for language in columns.split(",")]
    if len(languages) != 2 or not all(languages):
        raise ValueError(f"columns must be two languages, as in en,de; got {columns!r}.")
    return languages[0], languages[1]


def read_jsonl(path: str | Path, source: str, target: str) -> Dataset:
    """Pairs from a file with a JSON object a line, languages as keys or under "translation".

    Args:
        path: The file, plain or .gz.
        source: Key of the sentence to translate.
        target: Key of its translation.

    Returns:
        The pairs.

    Raises:
        OSError: The file cannot be read.
        ValueError: A line is no JSON object, or has no text under one of the keys.
    """
    rows = []
    for number, line in enumerate(read_lines(path), start=1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}:{number}: not valid JSON ({error}).") from error
        rows.append(_languages(record, source, target, f"{path}:{number}"))
    return _pairs(rows)


def _languages(record: Any, source: str, target: str, where: str) -> tuple[str, str]:
    if isinstance(record, dict) and isinstance(record.get("translation"), dict):
        record = record["translation"]
    keys = record.keys() if isinstance(record, dict) else ()
    for key in (source, target):
        if key not in keys or not isinstance(record[key], str):
            raise ValueError(
                f"{where}: a record must have a text under {key!r}, got "
                f"{f'the keys {sorted(keys)}' if keys else type(record).__name__}."
            )
    return record[source], record[target]


def read_hub(name: str, config_name: str | None, split: str, source: str, target: str) -> Dataset:
    """Pairs from a dataset on the Hub, by name.

    Args:
        name: The dataset's name, as in datasets.load_dataset.
        config_name: One of its configurations, or None.
        split: One of its splits.
        source: Column, or key of the column "translation", of the sentence to translate.
        target: The same of its translation.

    Returns:
        The pairs, on the disk, those with an empty side left out and counted in the log.

    Raises:
        OSError: The dataset cannot be had.
        ValueError: It has no text under one of the languages, or no pair.
    """
    dataset = load_dataset(name, config_name, split=split)

    def columns(batch: dict[str, list[Any]], numbers: list[int]) -> dict[str, list[str]]:
        records = (dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True))
        return _columns(
            _languages(record, source, target, f"{name}[{split}] record {number}")
            for number, record in zip(numbers, records, strict=True)
        )

    pairs = dataset.map(
        columns,
        batched=True,
        with_indices=True,
        remove_columns=dataset.column_names,
        desc=f"Reading {split}",
    )
    return without_empty(pairs, f"{name}[{split}]")


def read_pairs(
    path: str, source: str, target: str, columns: tuple[str, str] | None = None
) -> Dataset:
    """Pairs from whichever kind of file is at path.

    Args:
        path: A .tsv or .jsonl file (or either with .gz), or what two line-aligned files have in
            common: "data/train" for data/train.en and data/train.de, plain or .gz.
        source: Language to translate from.
        target: Language to translate to.
        columns: Languages of a .tsv file's columns. None: source, then target.

    Returns:
        The pairs, those with an empty side left out and counted in the log.

    Raises:
        OSError: There is no such file, or it cannot be read.
        ValueError: It is not what its name says, or holds no pair.
    """
    return without_empty(read_rows(path, source, target, columns), path)


def read_rows(
    path: str, source: str, target: str, columns: tuple[str, str] | None = None
) -> Dataset:
    """As `read_pairs`, but with a row for each line of the file, whatever its sides.

    Args:
        path: As there.
        source: As there.
        target: As there.
        columns: As there.

    Returns:
        The rows.

    Raises:
        OSError: There is no such file, or it cannot be read.
        ValueError: It is not what its name says.
    """
    kind = Path(path.removesuffix(".gz")).suffix
    if kind == ".tsv":
        return read_tsv(path, columns or (source, target), source, target)
    if kind == ".jsonl":
        return read_jsonl(path, source, target)
    return read_parallel(_side(path, source), _side(path, target))


def _side(prefix: str, language: str) -> Path:
    plain, zipped = Path(f"{prefix}.{language}"), Path(f"{prefix}.{language}.gz")
    for path in (plain, zipped):
        if path.exists():
            return path
    raise FileNotFoundError(f"No such file: {plain} (or {zipped.name}).")


def without_empty(pairs: Dataset, name: str) -> Dataset:
    """The pairs that have text on both sides; how many have not goes to the log.

    Args:
        pairs: Pairs.
        name: What to call them in messages.

    Returns:
        The pairs with text on both sides.

    Raises:
        ValueError: There is none.
    """
    kept = pairs.filter(
        lambda source, target: [bool(a and b) for a, b in zip(source, target, strict=True)],
        input_columns=_COLUMNS,
        batched=True,
    )
    if not kept:
        raise ValueError(f"{name}: no pair with text on both sides, in {len(pairs)} lines.")
    if len(kept) < len(pairs):
        logger.warning(
            "%s: left out %d of %d pairs with an empty side.",
            name,
            len(pairs) - len(kept),
            len(pairs),
        )
    return kept


def embedded_pairs(split: str, size: int, source: str, target: str, seed: int = 0) -> Dataset:
    """Pairs of the embedded grammar (`embedded_corpus`) in either direction.

    Args:
        split: "train", "validation" or "test".
        size: Number of pairs.
        source: "en" or "de".
        target: The other one.
        seed: Draws other pairs.

    Returns:
        The pairs.

    Raises:
        ValueError: The languages are not these two.
    """
    if {source, target} != {"en", "de"}:
        raise ValueError(f"The embedded corpus has en and de, got {source!r} and {target!r}.")
    pairs = [(pair.source, pair.target) for pair in generate_pairs(split, size, seed)]
    return _pairs(pairs if source == "en" else [(german, english) for english, german in pairs])


def warn_of_repeats(train: Dataset, held_out: Mapping[str, Dataset]) -> None:
    """Say in the log how many pairs stand twice in train, and how many held-out sources are there.

    Args:
        train: Pairs to train on.
        held_out: Pairs to score on, by what to call them.
    """
    sources = {name: set(pairs["source"]) for name, pairs in held_out.items()}
    shared: dict[str, set[str]] = {name: set() for name in held_out}
    # Hashes: the pairs of a large corpus would fill the memory a second time.
    distinct: set[int] = set()
    for batch in train.iter(BATCH_SIZE):
        distinct.update(map(hash, zip(batch["source"], batch["target"], strict=True)))
        for name, found in shared.items():
            found |= sources[name].intersection(batch["source"])
    if len(distinct) < len(train):
        logger.warning(
            "Training data: %d of %d pairs are repeats.", len(train) - len(distinct), len(train)
        )
    for name, found in shared.items():
        if count := sum(source in found for source in held_out[name]["source"]):
            total = len(held_out[name])
            logger.warning(
                "%s: %d of %d source sentences are in the training data.", name, count, total
            )


_COLUMNS = ["source", "target"]


def _pairs(rows: Iterable[tuple[str, str]]) -> Dataset:
    return Dataset.from_dict(_columns(rows))


def _columns(rows: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    source, target = [], []
    for source_text, target_text in rows:
        source.append(source_text.strip())
        target.append(target_text.strip())
    return dict(zip(_COLUMNS, (source, target), strict=True))
