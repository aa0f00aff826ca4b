"""Reading sentence pairs: each file format, and each error in a file."""

import gzip
import io
import json
import logging

import pytest
from datasets import Dataset, load_dataset

from modeling_aiayn.classification.labelled_texts import read_labelled
from modeling_aiayn.data.corpus import (
    embedded_pairs,
    hub_rows,
    parse_columns,
    read_pairs,
    read_rows,
    skip_empty,
    warn_of_overlap,
)
from modeling_aiayn.data.lines import read_lines, stream_lines

ENGLISH = ["A dog runs.", "Two men, one hat.", "NA", "1"]
GERMAN = ["Ein Hund läuft.", "Zwei Männer, ein Hut.", "null", "nan"]


@pytest.fixture
def prefix(tmp_path):
    """Two line-aligned files, one of them zipped."""
    (tmp_path / "data.en").write_text("\n".join(ENGLISH) + "\n", "utf-8")
    with gzip.open(tmp_path / "data.de.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(GERMAN) + "\n")
    return str(tmp_path / "data")


def sides(pairs):
    return list(pairs["source"]), list(pairs["target"])


def test_line_aligned_files_are_read_in_either_direction(prefix):
    assert sides(read_pairs(prefix, "en", "de")) == (ENGLISH, GERMAN)
    assert sides(read_pairs(prefix, "de", "en")) == (GERMAN, ENGLISH)


@pytest.mark.parametrize("zipped", [False, True])
def test_tsv_keeps_cells_as_text(tmp_path, zipped):
    text = "".join(f"{a}\t{b}\n" for a, b in zip(ENGLISH, GERMAN, strict=True)).encode()
    path = tmp_path / ("pairs.tsv.gz" if zipped else "pairs.tsv")
    path.write_bytes(gzip.compress(text) if zipped else text)
    assert sides(read_pairs(str(path), "en", "de")) == (ENGLISH, GERMAN)
    swapped = read_pairs(str(path), "de", "en", columns=("en", "de"))
    assert sides(swapped) == (GERMAN, ENGLISH)


@pytest.mark.parametrize("nested", [False, True])
def test_jsonl_is_read_flat_or_under_translation(tmp_path, nested):
    records = [{"en": a, "de": b} for a, b in zip(ENGLISH, GERMAN, strict=True)]
    lines = [json.dumps({"translation": record} if nested else record) for record in records]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    assert sides(read_pairs(str(tmp_path / "pairs.jsonl"), "de", "en")) == (GERMAN, ENGLISH)


TMX = """<?xml version="1.0"?><!DOCTYPE tmx SYSTEM "tmx14.dtd"><tmx version="1.4"><header/><body>
<tu><tuv xml:lang="de-AT"><seg>Ein <hi>Hund</hi> <ph>&lt;b></ph>&amp; so.</seg></tuv>
<tuv xml:lang="EN-us"><seg>A dog
 \u2028&amp; so.</seg></tuv></tu>
<tu><tuv lang="en"><seg>No</seg></tuv></tu>
</body></tmx>"""


def test_exports_of_other_programs_are_read(tmp_path, caplog):
    (tmp_path / "a.tmx").write_text(TMX)
    with gzip.open(tmp_path / "b.tmx.gz", "wt") as file:
        file.write(TMX)
    (tmp_path / "a.csv").write_text('en,x,de\n"A ""dog"", 1.","",102\n,1,NA\nnull,2,c\n')
    table = {"x": [1, 2], "de": ["Ein Hund", "b"], "en": ["A dog", "a"]}
    Dataset.from_dict(table).to_parquet(tmp_path / "a.parquet")
    records = [
        {"translation": {"de": "Ein Hund", "en": "A dog"}},
        {"translation": {"de": "b", "en": "a"}},
    ]
    (tmp_path / "a.json").write_text(json.dumps(records))
    (tmp_path / "score.tsv").write_text("0.5\tA dog\tEin Hund\n1\ta\tb\n")
    found = {
        name: [(x["source"], x["target"]) for x in read_rows(str(tmp_path / name), "en", "de")]
        for name in ("a.tmx", "b.tmx.gz", "a.csv", "a.parquet", "a.json")
    }
    assert found["a.tmx"] == found["b.tmx.gz"] == [("A dog & so.", "Ein Hund & so."), ("No", "")]
    (tmp_path / "a.csv").write_text("en,de\nA dog, big,Ein Hund\n")
    with pytest.raises(ValueError, match=r"a\.csv record 1: more cells than columns"):
        read_rows(str(tmp_path / "a.csv"), "en", "de")
    spaced = TMX.replace("<tmx ", '<tmx xmlns="http://www.lisa.org/tmx14" ')
    (tmp_path / "c.tmx").write_text(spaced.replace("EN-us", "EN_us"))
    (first, *_) = read_rows(str(tmp_path / "c.tmx"), "en_US", "de-AT")
    assert first == {"source": "A dog & so.", "target": "Ein Hund & so."}
    assert found["a.csv"] == [('A "dog", 1.', "102"), ("", "NA"), ("null", "c")]
    assert found["a.parquet"] == found["a.json"] == [("A dog", "Ein Hund"), ("a", "b")]
    scored = read_rows(str(tmp_path / "score.tsv"), "de", "en", ("score", "en", "de"))
    assert sides(scored) == (["Ein Hund", "b"], ["A dog", "a"])
    with pytest.raises(
        ValueError, match=r"a line must have 2 columns, got 3.* --columns en,de,other"
    ):
        read_rows(str(tmp_path / "score.tsv"), "en", "de")
    (tmp_path / "a.tmx").write_text(TMX[:-9])
    with pytest.raises(ValueError, match=r"a\.tmx: invalid TMX"):
        read_rows(str(tmp_path / "a.tmx"), "en", "de")
    for first, warning in (("English", None), ("en\tde", "header"), ('"a"\t"b"', "quoted")):
        caplog.clear()
        (tmp_path / "a.tsv").write_text(first if warning else "a\tb")
        read_rows(str(tmp_path / "a.tsv"), "en", "de")
        assert (warning or "") in caplog.text and bool(warning) == bool(caplog.text)


def test_a_dataset_is_read_by_its_name(tmp_path):
    """load_dataset reads a local folder as it reads a repository."""
    records = [{"en": "A dog.", "de": " Ein Hund."}, {"en": "", "de": "b"}, {"en": "c", "de": "d"}]
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, records)))
    for is_stream in (False, True):
        records = load_dataset(str(tmp_path), split="test", streaming=is_stream)
        rows = hub_rows(records, "name[test]", "de", "en")
        assert [row["source"] for row in rows] == ["Ein Hund.", "b", "d"]
        assert [row["target"] for row in rows] == ["A dog.", "", "c"]
        with pytest.raises(ValueError, match=r"name\[test\] record 0: .* text under 'fr', got "):
            [*hub_rows(records, "name[test]", "fr", "en")]


def test_windows_line_ends_and_byte_order_mark_change_nothing(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert read_lines(path) == ["one", "two"]


def test_only_newlines_end_lines(tmp_path):
    path = tmp_path / "text"
    for text, lines in (("a\u2028b\x0bc\x85d\n\ne", ["a\u2028b\x0bc\x85d", "", "e"]), ("", [])):
        path.write_text(text, "utf-8")
        assert read_lines(path) == lines
        assert list(stream_lines(path)) == lines
        assert list(stream_lines(io.BytesIO(text.encode()))) == lines
    assert list(stream_lines(io.BytesIO(b"ab\xff\n"))) == ["ab\ufffd"]
    with pytest.raises(ValueError, match=r"stdin:1: NUL bytes: .* --format"):
        [*stream_lines(io.BytesIO("a\nb".encode("utf-16-le")))]


def test_different_numbers_of_lines_are_rejected(prefix, tmp_path):
    (tmp_path / "data.en").write_text("A dog.\n")
    with pytest.raises(
        ValueError, match=r"data\.en ends after 1 lines, and .*data\.de\.gz goes on"
    ):
        read_pairs(prefix, "en", "de")


def test_a_row_without_words_keeps_its_place(tmp_path):
    """Translations of a file are compared with it line by line."""
    (tmp_path / "pairs.tsv").write_text("a\tein\n\t\n\nb\tzwei\n")
    rows = read_rows(str(tmp_path / "pairs.tsv"), "en", "de")
    assert list(rows["source"]) == ["a", "", "b"]


def test_pairs_with_an_empty_side_are_skipped_and_counted(tmp_path, caplog):
    (tmp_path / "pairs.tsv").write_text("a\tb\n\tc\nd\t \ne\tf\n")
    with caplog.at_level(logging.WARNING):
        pairs = read_pairs(str(tmp_path / "pairs.tsv"), "en", "de")
    assert list(pairs["source"]) == ["a", "e"]
    assert "skipped 2 of 4 pairs with an empty side" in caplog.text


def test_files_without_pairs_are_rejected(tmp_path):
    (tmp_path / "pairs.tsv").write_text("\tc\n")
    with pytest.raises(ValueError, match=r"pairs\.tsv: no pair with text on both sides"):
        read_pairs(str(tmp_path / "pairs.tsv"), "en", "de")
    with pytest.raises(ValueError, match="in 0 lines"):
        skip_empty(Dataset.from_dict({"source": [], "target": []}), "nothing")


def test_the_error_names_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.en \(or none\.en\.gz\)"):
        read_pairs(str(tmp_path / "none"), "en", "de")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("pairs.tsv", "a\tb\nc\td\te\n", r"pairs\.tsv:2: a line must have 2 columns, got 3"),
        ("pairs.jsonl", '{"en": "a", "de": "b"}\n{"en": \n', r"pairs\.jsonl:2: not valid JSON"),
        ("pairs.jsonl", '{"en": "a"}\n', r"jsonl:1: .* text under 'de', got \{'en': 'a'\}"),
        ("pairs.tsv", "a\0\tb\0\n", r"pairs\.tsv:1: not UTF-8: NUL bytes, as UTF-16 has"),
        ("pairs.tsv", "a\tb\ncaf\xe9\tb\n", r"pairs\.tsv:2: not UTF-8 \(byte 0xe9 at position 3"),
        ("pairs.jsonl", "[1]\n", r"jsonl:1: .* text under 'en', got \[1\]"),
    ],
)
def test_the_error_names_a_malformed_line(tmp_path, name, text, message):
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=message):
        read_pairs(str(tmp_path / name), "en", "de")


def test_blank_lines_are_skipped(tmp_path):
    (tmp_path / "a.tsv").write_text("a\tb\n\nc\td\n \n")
    (tmp_path / "a.jsonl").write_text('{"en": "a", "de": "b"}\n\n{"en": "c", "de": "d"}\n\n')
    for name in ("a.tsv", "a.jsonl"):
        assert sides(read_pairs(str(tmp_path / name), "en", "de")) == (["a", "c"], ["b", "d"])
    (tmp_path / "a.tsv").write_text("a\tb\n\nc\td\n")
    for name, texts in (("a.tsv", ["a", "c"]), ("a.jsonl", ["b", "d"])):
        assert [row[0] for row in read_labelled(tmp_path / name, "en", "de")] == texts


def test_the_columns_must_be_the_two_languages(tmp_path):
    (tmp_path / "pairs.tsv").write_text("a\tb\n")
    with pytest.raises(ValueError, match=r"among the columns \('en', 'de'\), got 'en' and 'fr'"):
        read_pairs(str(tmp_path / "pairs.tsv"), "en", "fr", columns=("en", "de"))


def test_the_flag_columns_holds_two_languages():
    assert parse_columns("en, de") == ("en", "de")
    assert parse_columns(None) is None
    for wrong in ("en", "en,"):
        with pytest.raises(ValueError, match="two languages, as in en,de"):
            parse_columns(wrong)


def test_overlap_with_held_out_pairs_is_counted(caplog):
    train = Dataset.from_dict({"source": ["a", "a", "b"], "target": ["x", "x", "y"]})
    held_out = Dataset.from_dict({"source": ["b", "c"], "target": ["z", "w"]})
    with caplog.at_level(logging.WARNING):
        warn_of_overlap(train, {"test": held_out})
    assert "test: 1 of 2 sources are in the training data" in caplog.text


def test_embedded_pairs_exist_in_both_directions():
    forward = embedded_pairs("test", 5, "en", "de")
    backward = embedded_pairs("test", 5, "de", "en")
    assert list(forward["source"]) == list(backward["target"])
    with pytest.raises(ValueError, match="has en and de, got 'en' and 'fr'"):
        embedded_pairs("test", 5, "en", "fr")
