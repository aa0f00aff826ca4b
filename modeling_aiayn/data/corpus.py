"""Read sentence pairs from files, from the Hub or from the built-in grammar, and check them.

Each reader of pairs returns a `datasets.Dataset` with the columns "source" and "target", without
surrounding blanks. Error messages name the path and the line.
"""

import gzip
import logging
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from datasets import Dataset, load_dataset

from .embedded_corpus import generate_pairs
from .parsing import parse_json

logger = logging.getLogger(__name__)

# Reject longer lines: they are no sentences, and the input may be endless.
MAX_LINE_BYTES = 10_000_000
# Reject a .gz that expands more: texts expand 3 to 20 times, and gzip allows 1,032 times.
MAX_EXPANSION = 50
# Pairs that are compared at a time.
BATCH_SIZE = 10_000
_COLUMNS = ["source", "target"]


def read_lines(path: str | Path) -> list[str]:
    r"""Read the lines of a UTF-8 text file, plain or .gz.

    Lines end at \n only; a \r before it and a byte-order mark are removed.

    Raises:
        OSError: The file cannot be read, is no regular file, or is a truncated or damaged .gz.
        ValueError: A line is not UTF-8 or too long, or a .gz expands without end.
    """
    lines = _raw_lines(_open_binary(path), str(path))
    return [_decode_line(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]


def read_bytes(path: str | Path) -> bytes:
    """Read the content of a file, plain or .gz.

    Raises:
        OSError: The file cannot be read, is no regular file, or is a truncated or damaged .gz.
        ValueError: A .gz expands without end.
    """
    parts, read = [], 0
    with _open_binary(path) as file, _named_gzip_errors(str(path)):
        while part := file.read(MAX_LINE_BYTES):
            read += len(part)
            _check_expansion(file, read, str(path))
            parts.append(part)
    return b"".join(parts)


def read_json_lines(path: str | Path) -> Iterator[tuple[str, Any]]:
    """Read a .jsonl file: the place of each line, as path:number, and its JSON value.

    Blank lines are skipped.

    Raises:
        OSError: The file cannot be read.
        ValueError: A line is not UTF-8 or not JSON.
    """
    for number, line in enumerate(read_lines(path), start=1):
        where = f"{path}:{number}"
        if line.strip():
            yield where, parse_json(line, where)


def stream_lines(source: str | Path | BinaryIO) -> Iterator[str]:
    """Read lines one at a time, split as in `read_lines`.

    Invalid UTF-8 is replaced with U+FFFD and a warning is logged; other lines are not affected.

    Args:
        source: A text file, plain or .gz, or an open binary file.

    Raises:
        OSError: The file cannot be read, is no regular file, or is a truncated or damaged .gz.
        ValueError: A line is too long, or a .gz expands without end.
    """
    if isinstance(source, (str, Path)):
        return _replace_invalid(_raw_lines(_open_binary(source), str(source)), str(source))
    return _replace_invalid(_raw_lines(source, "stdin"), "stdin")


def _open_binary(path: str | Path) -> BinaryIO:
    """Open a file, plain or .gz.

    Raises:
        OSError: There is no such file, or it is a device or a named pipe, which may never end.
    """
    is_open_already = str(path).startswith(("/dev/fd/", "/dev/std", "/proc/self/fd/"))
    if Path(path).exists() and not (Path(path).is_file() or is_open_already):
        raise OSError(
            f"{path} must be a file, got a folder, a device or a named pipe. Write the text to a "
            "file first, or pass it on stdin where the command reads stdin."
        )
    opened: Any = gzip.open if str(path).endswith(".gz") else open
    file: BinaryIO = opened(path, "rb")
    return file


def _raw_lines(file: BinaryIO, name: str) -> Iterator[bytes]:
    """Lines without line ends and byte-order mark; closes the file at the end."""
    read = 0
    with file, _named_gzip_errors(name):
        for number, line in enumerate(iter(partial(file.readline, MAX_LINE_BYTES), b""), start=1):
            if len(line) == MAX_LINE_BYTES:
                raise ValueError(
                    f"{name}:{number}: a line must have less than {MAX_LINE_BYTES:,} bytes. Split "
                    "it into sentences."
                )
            read += len(line)
            _check_expansion(file, read, name)
            text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            yield text.removesuffix(b"\n")


def _check_expansion(file: BinaryIO, read: int, name: str) -> None:
    """Check that a .gz does not expand to far more than texts do: it may never end."""
    if read < MAX_LINE_BYTES or not isinstance(file, gzip.GzipFile):
        return
    packed = os.fstat(file.fileno()).st_size
    if packed and read > MAX_EXPANSION * packed:
        raise ValueError(
            f"{name}: the file expands to more than {MAX_EXPANSION} times its size, and may be "
            "damaged or endless. If it is a valid text, decompress it first."
        )


@contextmanager
def _named_gzip_errors(name: str) -> Iterator[None]:
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise OSError(f"{name}: truncated or damaged .gz file ({error}).") from error


def _replace_invalid(lines: Iterable[bytes], name: str) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        try:
            yield _decode_line(line, f"{name}:{number}")
        except ValueError as error:
            logger.warning("%s Invalid bytes were replaced with U+FFFD.", error)
            yield line.decode("utf-8", "replace").replace("\0", "\ufffd").removesuffix("\r")


def _decode_line(line: bytes, where: str) -> str:
    if b"\0" in line:
        raise ValueError(
            f"{where}: not UTF-8: the line has NUL bytes, as UTF-16 has. Convert it to UTF-8."
        )
    try:
        return line.decode("utf-8").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{where}: not UTF-8 (byte 0x{line[error.start]:02x} at position {error.start} of the "
            "line). Convert it to UTF-8."
        ) from error


def _read_parallel(source_path: Path, target_path: Path) -> Dataset:
    source, target = read_lines(source_path), read_lines(target_path)
    if len(source) != len(target):
        raise ValueError(
            f"Line-aligned files must have the same number of lines, got {len(source)} in "
            f"{source_path} and {len(target)} in {target_path}."
        )
    return _pairs(zip(source, target, strict=True))


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


def parse_columns(columns: str | None) -> tuple[str, str] | None:
    """Parse two languages such as "en,de"; None stays None.

    Raises:
        ValueError: The text is not two languages with a comma between them.
    """
    if columns is None:
        return None
    languages = [language.strip() for language in columns.split(",")]
    if len(languages) != 2 or not all(languages):
        raise ValueError(f"columns must be two languages, as in en,de; got {columns!r}.")
    return languages[0], languages[1]


def _languages(record: Any, source: str, target: str, where: str) -> tuple[str, str]:
    """Both sentences of a record: by language, at its top or under "translation"."""
    if isinstance(record, dict) and isinstance(record.get("translation"), dict):
        record = record["translation"]
    keys = record.keys() if isinstance(record, dict) else ()
    for key in (source, target):
        if key in keys and not isinstance(record[key], str):
            raise ValueError(
                f"{where}: a record must have a text under {key!r}, got {record[key]!r}. Write a "
                'text, or "" to skip the pair.'
            )
        if key not in keys:
            raise ValueError(
                f"{where}: a record must have a text under {key!r}, got "
                f"{f'the keys {sorted(keys)}' if keys else type(record).__name__}."
            )
    return record[source], record[target]


def read_hub(name: str, config_name: str | None, split: str, source: str, target: str) -> Dataset:
    """Read pairs from a dataset on the Hub, memory-mapped; pairs with an empty side are skipped.

    Source and target are columns, or keys in the column "translation".

    Raises:
        OSError: The dataset cannot be read.
        ValueError: A record has no text under one of the languages, or there is no pair.
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
    return skip_empty(pairs, f"{name}[{split}]")


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
    if _kind_of(path) == ".jsonl":
        records = read_json_lines(path)
        return _pairs(_languages(record, source, target, where) for where, record in records)
    return _read_parallel(*files_of(path, source, target))


def files_of(path: str, source: str, target: str) -> list[Path]:
    """The files that hold the pairs of a path, as `read_pairs` takes it: one, or one for each side.

    Raises:
        OSError: There is no file for a side.
        ValueError: The path is a file in another format.
    """
    if is_tsv(path) or _kind_of(path) == ".jsonl":
        return [Path(path)]
    return [_find_side(path, source), _find_side(path, target)]


def is_tsv(path: str) -> bool:
    """Whether a path with pairs is a .tsv file, plain or .gz."""
    return _kind_of(path) == ".tsv"


def _kind_of(path: str) -> str:
    return Path(path.removesuffix(".gz")).suffix


def _find_side(prefix: str, language: str) -> Path:
    plain, zipped = Path(f"{prefix}.{language}"), Path(f"{prefix}.{language}.gz")
    for path in (plain, zipped):
        if path.exists():
            return path
    name = prefix.removesuffix(".gz").removesuffix(f".{language}")
    if Path(prefix).is_file() and name in (prefix, prefix.removesuffix(".gz")):
        raise ValueError(
            f"{prefix} must be a .tsv or .jsonl file, plain or .gz, or the common name of two "
            f"files that end in .{language} and in the other language. Convert or rename it."
        )
    hint = f" Give the name without the language, {name}." if name != prefix else ""
    raise FileNotFoundError(f"No such file: {plain} (or {zipped.name}).{hint}")


def skip_empty(pairs: Dataset, name: str) -> Dataset:
    """Keep the pairs with text on both sides; messages call the pairs by name.

    Raises:
        ValueError: No pair is left.
    """
    kept = pairs.filter(
        lambda source, target: [bool(a and b) for a, b in zip(source, target, strict=True)],
        input_columns=_COLUMNS,
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


def embedded_pairs(split: str, size: int, source: str, target: str, seed: int = 0) -> Dataset:
    """Generate pairs of the built-in grammar with `generate_pairs`, in either direction.

    Raises:
        ValueError: The languages are not "en" and "de".
    """
    if {source, target} != {"en", "de"}:
        raise ValueError(f"The built-in grammar has en and de, got {source!r} and {target!r}.")
    pairs = [(pair.source, pair.target) for pair in generate_pairs(split, size, seed)]
    return _pairs(pairs if source == "en" else [(german, english) for english, german in pairs])


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


def _pairs(rows: Iterable[tuple[str, str]]) -> Dataset:
    return Dataset.from_dict(_columns(rows))


def _columns(rows: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    source, target = [], []
    for source_text, target_text in rows:
        source.append(source_text.strip())
        target.append(target_text.strip())
    return dict(zip(_COLUMNS, (source, target), strict=True))
