"""Read sentence pairs from files, from the Hub or from the built-in grammar.

The pairs are a `datasets.Dataset` with the columns "source" and "target". Texts are stripped.
"""

import csv
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow
import pyarrow.compute
from datasets import (
    ArrowBasedBuilder,
    BuilderConfig,
    Dataset,
    DatasetInfo,
    Features,
    IterableDataset,
    SplitGenerator,
    Value,
    load_dataset,
)
from datasets.exceptions import DatasetGenerationError

from .cache import RowLog, code_sha256
from .embedded_corpus import generate_pairs
from .lines import content_sha256, decoded_lines, open_binary, read_json_lines

logger = logging.getLogger(__name__)

COLUMNS = ["source", "target"]
FEATURES = Features({name: Value("string") for name in COLUMNS})
# Endings of files that `datasets` reads, and its names of the formats. Languages are columns.
TABLES = {".parquet": "parquet", ".json": "json"}
FILE_ENDINGS = (".tsv", ".jsonl", ".tmx", ".csv", *TABLES)
BATCH_SIZE = 10_000  # pairs that are processed at a time
BUFFER_SIZE = 100_000  # pairs in the buffer that shuffles a stream

Row = dict[str, str]  # the texts by COLUMNS
Columns = tuple[str, ...]


def read_pairs(path: str, source: str, target: str, columns: Columns | None = None) -> Dataset:
    """Read pairs from a file, or from two, into memory; pairs with an empty side are skipped.

    Args:
        path: A file that ends in one of FILE_ENDINGS, plain or with .gz, or the common prefix of
            two line-aligned files: "data/train" for data/train.en and data/train.de.
        source: Language to translate from.
        target: Language to translate to.
        columns: Names of a .tsv file's columns, with both languages. None: source, then target.

    Raises:
        OSError: There is no such file, or it cannot be read.
        ValueError: The file has the wrong format, or holds no pair.
    """
    return skip_empty(read_rows(path, source, target, columns), path)


def read_rows(path: str, source: str, target: str, columns: Columns | None = None) -> Dataset:
    """Read pairs as `read_pairs` does, but keep those with an empty side."""
    return Dataset.from_list([*stream_rows([path], source, target, columns)], FEATURES)


def cached_rows(
    paths: Sequence[str], source: str, target: str, columns: Columns | None = None
) -> Dataset:
    """Return the rows of files, memory-mapped from the `datasets` cache; read the files only once.

    Raises:
        OSError: As in `read_rows`, or the cache cannot be written.
        ValueError: As in `read_rows`, or a file changed while it was read.
    """
    files = [file for path in paths for file in files_of(path, source, target)]
    content = {"rows": [[*paths], source, target, columns], "files": [*map(str, files)]}
    content |= {"sha256": content_sha256(files), "code": code_sha256()}
    builder = CachedRows(content=json.dumps(content))
    try:
        builder.download_and_prepare()
    except DatasetGenerationError as error:
        raise error.__cause__ or error from None
    return builder.as_dataset("train")


@dataclass
class CachedRowsConfig(BuilderConfig):
    """Arguments of `stream_rows`, the files that it reads, and hashes of them and of the code.

    They are JSON, so that `datasets` computes equal hashes for equal values.
    """

    content: str = ""


class CachedRows(ArrowBasedBuilder):
    """Writes the rows of files into the cache, completely or not at all."""

    BUILDER_CONFIG_CLASS = CachedRowsConfig

    def _info(self) -> DatasetInfo:
        return DatasetInfo(features=FEATURES)

    def _split_generators(self, _: Any) -> list[SplitGenerator]:
        return [SplitGenerator("train")]

    def _generate_tables(self) -> Iterator[tuple[int, pyarrow.Table]]:
        content = json.loads(self.config.content)
        log, rows = RowLog("Step 1 of 4: reading the pairs"), stream_rows(*content["rows"])
        while batch := [*islice(rows, BATCH_SIZE)]:
            yield log.rows, pyarrow.Table.from_pylist(batch, FEATURES.arrow_schema)
            log.add(len(batch))
        names = " and ".join(content["files"])
        if not log.rows:
            raise ValueError(f"{names}: no pair. Check the file.")
        if content_sha256(map(Path, content["files"])) != content["sha256"]:
            raise ValueError(f"{names} changed while being read. Start again.")


def stream_rows(
    paths: Iterable[str], source: str, target: str, columns: Columns | None = None
) -> Iterator[Row]:
    """Read the rows of files as `read_rows` does, one at a time."""
    for path in paths:
        ending = ending_of(path)
        if ending == ".tsv":
            rows = _tsv_rows(path, columns or (source, target), source, target)
        elif ending == ".jsonl":
            rows = (_languages(*record, source, target) for record in read_json_lines(path))
        elif ending == ".tmx":
            rows = tmx_rows(path, source, target)
        elif ending == ".csv":
            rows = _csv_rows(path, source, target)
        elif ending in TABLES:
            rows = _table_rows(path, TABLES[ending], source, target)
        else:
            rows = _parallel_rows(*files_of(path, source, target))
        for source_text, target_text in rows:
            yield {"source": source_text.strip(), "target": target_text.strip()}


def files_of(path: str, source: str, target: str) -> list[Path]:
    """The files that a path of `read_pairs` stands for: one file, or one for each language."""
    if ending_of(path) in FILE_ENDINGS:
        return [Path(path)]
    return [_find_side(path, source), _find_side(path, target)]


def ending_of(path: str | Path) -> str:
    """The ending of a file's name, such as .tsv for pairs.tsv and pairs.tsv.gz."""
    return Path(str(path).removesuffix(".gz")).suffix


def parse_columns(columns: str | None) -> Columns | None:
    """Parse names of columns such as "en,de" or "score,en,de"; None stays None."""
    if columns is None:
        return None
    names = tuple(name.strip() for name in columns.split(","))
    if len(names) < 2 or not all(names):
        raise ValueError(f"columns must have two languages, as in en,de; got {columns!r}.")
    return names


def streamed_rows(
    paths: Sequence[str], source: str, target: str, columns: Columns | None = None
) -> IterableDataset:
    """Stream the pairs of files as `shuffled_rows` does; the files are divided among processes."""
    rows = {"paths": [*paths], "source": source, "target": target, "columns": columns}
    return shuffled_rows(IterableDataset.from_generator(stream_rows, FEATURES, gen_kwargs=rows))


def shuffled_rows(rows: IterableDataset) -> IterableDataset:
    """Keep the rows of a stream that have text on both sides, and shuffle them in a buffer."""
    has_texts = rows.filter(lambda row: bool(row["source"] and row["target"]))
    return has_texts.shuffle(seed=0, buffer_size=BUFFER_SIZE)


def hub_rows(records: Any, name: str, source: str, target: str) -> Any:
    """Convert a dataset of the Hub, or a stream of it, to rows; messages contain name.

    Source and target are columns, or keys in the column "translation".
    """

    def columns(batch: dict[str, list[Any]], numbers: list[int]) -> dict[str, list[str]]:
        rows = (dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True))
        places = (f"{name} record {number}" for number in numbers)
        pairs = [_languages(*record, source, target) for record in zip(places, rows, strict=True)]
        return dict(zip(COLUMNS, map(list, zip(*pairs, strict=True)), strict=True))

    names = records.column_names
    return records.map(columns, batched=True, with_indices=True, remove_columns=names)


def embedded_pairs(split: str, size: int, source: str, target: str) -> Dataset:
    """Generate pairs of the built-in grammar with `generate_pairs`, in either direction."""
    if {source, target} != {"en", "de"}:
        raise ValueError(f"The built-in grammar has en and de, got {source!r} and {target!r}.")
    pairs = generate_pairs(split, size)
    texts = {"en": [pair.source for pair in pairs], "de": [pair.target for pair in pairs]}
    return Dataset.from_dict({"source": texts[source], "target": texts[target]})


def skip_empty(pairs: Dataset, name: str) -> Dataset:
    """Keep the pairs that have text on both sides; messages contain name."""
    table = pairs.with_format("arrow")[:]
    sides = [pyarrow.compute.not_equal(table[side], "") for side in COLUMNS]
    kept = np.flatnonzero(pyarrow.compute.and_(*sides))
    if not len(kept):
        raise ValueError(
            f"{name}: no pair with text on both sides, in {len(pairs)} lines. Check the file, and "
            "the languages or columns given for it."
        )
    if len(kept) == len(pairs):
        return pairs
    skipped = len(pairs) - len(kept)
    logger.warning("%s: skipped %d of %d pairs with an empty side.", name, skipped, len(pairs))
    return pairs.select(kept)


def warn_of_overlap(
    train: Dataset, held_out: Mapping[str, Dataset], column: str = "source"
) -> None:
    """Log how many held-out texts, in the given column, also occur in the training data."""
    texts = {name: pyarrow.array(examples[column]) for name, examples in held_out.items()}
    shared: dict[str, set[str]] = {name: set() for name in held_out}
    for table in train.select_columns(column).with_format("arrow").iter(BATCH_SIZE):
        for name, repeated in shared.items():
            is_shared = pyarrow.compute.is_in(table[column], value_set=texts[name])
            repeated.update(table[column].filter(is_shared).to_pylist())
    for name, repeated in shared.items():
        if count := sum(text in repeated for text in held_out[name][column]):
            total = len(held_out[name])
            logger.warning("%s: %d of %d %ss are in the training data.", name, count, total, column)


def _parallel_rows(source_path: Path, target_path: Path) -> Iterator[tuple[str, str]]:
    sides = zip_longest(decoded_lines(source_path), decoded_lines(target_path))
    for number, (source, target) in enumerate(sides):
        if source is None or target is None:
            shorter, longer = (source_path, target_path)[:: 1 if source is None else -1]
            raise ValueError(
                f"Line-aligned files must have the same number of lines: {shorter} ends after "
                f"{number} lines, and {longer} goes on."
            )
        yield source, target


def _find_side(prefix: str, language: str) -> Path:
    plain, zipped = Path(f"{prefix}.{language}"), Path(f"{prefix}.{language}.gz")
    for path in (plain, zipped):
        if path.exists():
            return path
    raise FileNotFoundError(
        f"No such file: {plain} (or {zipped.name}). Pairs must be a file that ends in "
        f"{' or '.join(FILE_ENDINGS)}, plain or .gz, or the common prefix of two files: data/train "
        "for data/train.en and data/train.de."
    )


def _tsv_rows(path: str, columns: Columns, source: str, target: str) -> Iterator[tuple[str, str]]:
    """Read a file with columns, separated by tabs, without quotes and without a header."""
    if not {source, target} <= set(columns):
        raise ValueError(
            f"{path}: source_lang and target_lang must be among the columns {columns}, got "
            f"{source!r} and {target!r}."
        )
    first, second = columns.index(source), columns.index(target)
    for number, line in enumerate(decoded_lines(path), start=1):
        cells = line.split("\t")
        if not line.strip(" "):
            continue
        if len(cells) != len(columns):
            raise ValueError(
                f"{path}:{number}: a line must have {len(columns)} columns, got {len(cells)}. Put "
                f"one tab between them, or name all: --columns {source},{target},other."
            )
        if number == 1:
            _warn_of_first_line(path, cells, columns)
        yield cells[first], cells[second]


def _warn_of_first_line(path: str, cells: Sequence[str], columns: Columns) -> None:
    names = {"source", "target", "src", "tgt", "id", "score", *columns}
    if all(cell.strip().lower() in names for cell in cells):
        logger.warning("%s: the first line looks like a header, and is read as a pair.", path)
    if all(cell.startswith('"') and cell.endswith('"') for cell in cells):
        logger.warning("%s: the first line is quoted. Quotes are read as text: remove them.", path)


def tmx_rows(path: str, source: str, target: str) -> Iterator[tuple[str, str]]:
    """Read a translation memory; if a unit lacks a language, its text is empty."""
    body = ElementTree.Element("body")
    try:
        with open_binary(path) as file:
            for event, node in ElementTree.iterparse(file, ("start", "end")):
                name = node.tag.rpartition("}")[2]
                if name == "body" and event == "start":
                    body = node
                elif name == "tu" and event == "end":
                    texts = {
                        _language_of(x): _text_of(x.find("{*}seg")) for x in node.iterfind("{*}tuv")
                    }
                    short = {name.partition("-")[0]: text for name, text in texts.items()} | texts
                    sides = (short.get(_language_name(x), "") for x in (source, target))
                    yield next(sides), next(sides)
                    body.clear()  # otherwise all units stay in memory
    except ElementTree.ParseError as error:
        raise ValueError(f"{path}: invalid TMX: {error}.") from error


def _language_of(tuv: ElementTree.Element) -> str:
    name = tuv.get("{http://www.w3.org/XML/1998/namespace}lang") or tuv.get("lang") or ""
    return _language_name(name)


def _language_name(name: str) -> str:
    return name.lower().replace("_", "-")


def _text_of(segment: ElementTree.Element | None) -> str:
    """The text of a segment, in one line and without inline codes, such as formatting."""
    if segment is None:
        return ""
    inner = ("".join(x.itertext()) * x.tag.endswith("hi") + (x.tail or "") for x in segment)
    return " ".join("".join([segment.text or "", *inner]).split())


def _csv_rows(path: str, source: str, target: str) -> Iterator[tuple[str, str]]:
    try:
        with TextIOWrapper(open_binary(path), "utf-8-sig", newline="") as file:
            for number, record in enumerate(csv.DictReader(file), start=1):
                if None in record:
                    raise ValueError(
                        f"{path} record {number}: more cells than columns. Quote commas."
                    )
                yield _languages(f"{path} record {number}", record, source, target)
    except csv.Error as error:
        raise ValueError(f"{path}: invalid CSV: {error}.") from error


def _table_rows(path: str, kind: str, source: str, target: str) -> Iterator[tuple[str, str]]:
    records = load_dataset(kind, data_files=path, split="train", streaming=True)
    for number, record in enumerate(records, start=1):
        yield _languages(f"{path} record {number}", record, source, target)


def _languages(where: str, record: Any, source: str, target: str) -> tuple[str, str]:
    """Return both sentences of a record, at its top level or under "translation"."""
    if isinstance(record, dict) and isinstance(record.get("translation"), dict):
        record = record["translation"]
    for language in (source, target):
        if not (isinstance(record, dict) and isinstance(record.get(language), str)):
            raise ValueError(
                f"{where}: a record must have a text under {language!r}, got {record!r:.200}. "
                'Write "" to skip the pair.'
            )
    return record[source].strip(), record[target].strip()
