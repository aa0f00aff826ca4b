"""Scores compared with sacreBLEU and with known values."""

import json
import re
import subprocess
import sys

import pytest
import sacrebleu

from modeling_aiayn.data.metrics import moses_bleu, score_texts

HYPOTHESES = ["Two dogs, running in the grass.", "A man sits on a red T-shirt ."]
REFERENCES = ["Two dogs run in the grass.", "a man sits on a red t-shirt."]


def test_scores_equal_those_of_sacrebleu():
    scores = score_texts(HYPOTHESES, REFERENCES)
    for name, options in (
        ("bleu", {}),
        ("bleu_lowercase", {"lowercase": True}),
        ("bleu_lowercase_intl", {"lowercase": True, "tokenize": "intl"}),
    ):
        expected = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES], **options).score
        assert scores[name] == pytest.approx(expected)
    assert scores["chrf"] == pytest.approx(sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score)
    assert scores["bleu"] < scores["bleu_lowercase"]


def test_moses_bleu_scores_the_tokens_of_moses():
    """In French, Moses splits clitics and unifies quotes and apostrophes; 13a does neither."""
    hypotheses, references = ["L'homme n\u2019est pas « là »."], ["L'ami n'est pas « là »."]
    cut = ["l' homme n' est pas \" là \" .", "l' ami n' est pas \" là \" ."]
    scores = moses_bleu(hypotheses, references, "fr")
    expected = sacrebleu.corpus_bleu(cut[:1], [cut[1:]], tokenize="none", force=True).score
    assert scores["bleu_moses"] == pytest.approx(expected)
    plain = sacrebleu.corpus_bleu(hypotheses, [references], lowercase=True).score
    assert abs(plain - expected) > 5
    assert "tok:none" in scores["bleu_moses_signature"]
    assert scores["bleu_moses_signature"].endswith("sacremoses fr")


def test_several_references_and_the_significance_are_sacrebleu_s(run, tmp_path):
    """As its command computes them, from files."""
    sources = [f"Sentence {n}." for n in range(40)]
    first = [f"This is the sentence {n} of a book." for n in range(40)]
    second = [f"It is sentence {n} in one book." for n in range(40)]
    ours = [text.replace("book", "book" if n % 3 else "text") for n, text in enumerate(first)]
    theirs = [text.replace("sentence", "line") for text in second]
    texts = {"second": second, "ours": ours, "theirs": theirs, "first": first}
    for name, lines in texts.items():
        (tmp_path / name).write_text("\n".join([*lines, ""]))
    pairs = zip(sources, first, strict=True)
    (tmp_path / "a.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    code, out, err = run(
        *(
            "evaluate_translation.py",
            "--file",
            tmp_path / "a.tsv",
            "--hypotheses",
            tmp_path / "ours",
        ),
        *("--references", tmp_path / "second", "--baseline", tmp_path / "theirs"),
        *("--scores_file", tmp_path / "scores.json"),
    )
    assert code == 0, err
    scores = json.loads((tmp_path / "scores.json").read_text())
    files = [tmp_path / name for name in ("first", "second", "theirs", "ours")]
    command = [
        sys.executable,
        "-m",
        "sacrebleu",
        *files[:2],
        "-i",
        *files[2:],
        "-m",
        "bleu",
        "chrf",
    ]
    options = ["--paired-bs", "--paired-bs-n", "1000", "-f", "text", "-w", "4"]
    shown = subprocess.run([*command, *options], capture_output=True, text=True, check=True).stdout
    numbers = [*map(float, re.findall(r"│ +([\d.]+) \(", shown))]
    values = [*map(float, re.findall(r"\(p = ([\d.]+)\)", shown))]
    names = [f"{metric}{end}" for end in ("_of_baseline", "") for metric in ("bleu", "chrf")]
    for name, wanted in zip(
        [*names, "bleu_p_value", "chrf_p_value"], numbers + values, strict=True
    ):
        assert scores[name] == pytest.approx(wanted, abs=1e-4)
    assert "bleu_p_value" in out


def test_signatures_describe_the_scores():
    scores = score_texts(HYPOTHESES, REFERENCES)
    assert "case:mixed" in scores["bleu_signature"]
    assert "case:lc" in scores["bleu_lowercase_signature"]
    assert "tok:intl" in scores["bleu_lowercase_intl_signature"]
    assert f"version:{sacrebleu.__version__}" in scores["chrf_signature"]


def test_intervals_equal_those_of_sacrebleu():
    hypotheses = [f"a dog number {n % 7} sees {n % 3} cats" for n in range(60)]
    references = [f"a dog number {n % 5} sees {n % 4} cats" for n in range(60)]
    scores = score_texts(hypotheses, references, resamples=200)
    expected = sacrebleu.BLEU().corpus_score(hypotheses, [references], n_bootstrap=200)
    low, high = (
        float(part) for part in (expected._mean - expected._ci, expected._mean + expected._ci)
    )
    assert scores["bleu_confidence"] == pytest.approx((high - low) / 2)
    assert low < scores["bleu"] < high
    assert "bs:200|seed:" in scores["bleu_signature"]
    plain = score_texts(hypotheses, references)
    assert plain["bleu"] == scores["bleu"]
    assert not any("confidence" in name or "bs:" in str(plain[name]) for name in plain)


def test_intervals_of_low_scores_are_finite():
    """Some resamples share no word with their references."""
    hypotheses, references = ["a b c d e"] * 3, ["a b c d e", "v w x y z", "v w x y z"]
    scores = score_texts(hypotheses, references, resamples=100)
    assert 0 < scores["bleu"] < 100
    assert scores["bleu_confidence"] > 10


def test_a_perfect_translation_scores_100():
    scores = score_texts(REFERENCES, REFERENCES)
    assert scores["bleu"] == pytest.approx(100)
    assert scores["chrf"] == pytest.approx(100)
