"""Training pairs that look wrong are counted by reason, and removed if asked for."""

import logging

import pytest
from datasets import Dataset

from modeling_aiayn.data.suspicious_pairs import report_suspicious, script_of
from modeling_aiayn.training.data import DataArguments, load_splits

GOOD = [
    ("Привет, мир.", "Hello, world."),
    ("Он видит дом.", "He sees the house."),
    ("3,14", "3.14"),
    ("Tom", "Tom!"),
    # 18 characters and 2: exactly 9 times as long.
    ("Да", "Well, let us see.."),
]
WRONG = [
    ("Tom.", "Tom."),
    ("Да", "Well, let us see..."),
    ("Привет, мир.", "Hello, world."),
    ("Hello, world.", "Hello, you."),
    ("Привет всем.", "Привет."),
    ("Привет миру.", "你好世界"),
]


def pairs_of(rows):
    return Dataset.from_dict(
        {"source": [row[0] for row in rows], "target": [row[1] for row in rows]}
    )


def test_each_reason_is_counted_and_the_pairs_removed(caplog):
    # Sides in another script than most: "Tom!" has the usual one of its side, "Tom" has not.
    rows = [GOOD[0], *WRONG[:2], *GOOD[1:3], *WRONG[2:], GOOD[4]]
    with caplog.at_level(logging.WARNING):
        kept = report_suspicious(pairs_of(rows), is_cleaning=True)
    assert list(kept["source"]) == [GOOD[0][0], GOOD[1][0], GOOD[2][0], GOOD[4][0]]
    (message,) = caplog.messages
    assert message == (
        "Training data: 6 of 10 pairs look wrong: 1 with identical sides, 1 with one side over 9 "
        "times as long as the other, 1 that repeat an earlier pair, 2 with a source that is not in "
        "CYRILLIC script, 2 with a target that is not in LATIN script. They were removed."
    )


def test_suspicious_pairs_are_kept_unless_asked_for(caplog):
    rows = [*GOOD, *WRONG]
    with caplog.at_level(logging.WARNING):
        assert list(report_suspicious(pairs_of(rows), False)) == list(pairs_of(rows))
    assert "To remove them, pass --clean true." in caplog.text
    caplog.clear()
    assert len(report_suspicious(pairs_of(GOOD[:3]), True)) == 3
    assert not caplog.messages


def test_one_script_counts_for_all_of_japanese():
    assert script_of("東京へ行くカメラ") == script_of("ひらがな") == "CJK"
    assert script_of("A wrong Я") == "LATIN"
    # A tie is decided by the first letter, in every process alike.
    assert (script_of("A Я"), script_of("Я A")) == ("LATIN", "CYRILLIC")
    assert script_of("12, 34!") is None


def test_a_corpus_of_wrong_pairs_is_rejected():
    with pytest.raises(ValueError, match="All 2 training pairs look wrong: 2 with identical sides"):
        report_suspicious(pairs_of([("a", "a"), ("b", "b")]), is_cleaning=True)


@pytest.mark.parametrize(("clean", "left"), [(False, 3), (True, 1)])
def test_the_flag_cleans_the_training_pairs_alone(tmp_path, clean, left):
    path = tmp_path / "pairs.tsv"
    path.write_text("the dog\tder Hund\n" * 2 + "Tom\tTom\n")
    data = DataArguments(train_file=[str(path)], validation_file=[str(path)], clean=clean)
    splits = load_splits(data)
    assert (len(splits["train"]), len(splits["validation"])) == (left, 3)


def test_pairs_in_another_language_are_found_if_the_detector_knows_the_language(caplog):
    rows = [
        ("Where is the station?", "Wo ist der Bahnhof?"),
        ("We must go home now.", "Nous devons rentrer maintenant."),
        ("Das ist ein schönes Haus.", "Sie hat das Haus gesehen."),
        ("12:30 😀 12:31 😀 12:32 😀", "1984"),
        ("Maria und Tom", "Tom et Maria"),
    ]
    with caplog.at_level("INFO"):
        kept = report_suspicious(pairs_of(rows), is_cleaning=True, languages=["en", "de"])
    assert list(kept["target"]) == [rows[0][1], rows[3][1], rows[4][1]]
    assert "2 in another language" in caplog.text
    caplog.clear()
    kept = report_suspicious(pairs_of(rows), is_cleaning=True, languages=["gsw", "de"])
    assert len(kept) == 4 and caplog.text.count("py3langid does not know gsw") == 1
    assert len(report_suspicious(pairs_of(rows), is_cleaning=True)) == 5


def test_the_flag_checks_languages_by_any_of_their_names(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text(
        "We must go home now.\tNous devons rentrer maintenant.\nWhere is he?\tWo ist er denn?\n"
    )
    files = {"train_file": [str(path)], "validation_file": [str(path)]}
    languages = {"source_lang": "eng_Latn", "target_lang": "deu_Latn"}
    data = DataArguments(**files, **languages, clean=True, check_languages=True)
    assert list(load_splits(data)["train"]["target"]) == ["Wo ist er denn?"]
