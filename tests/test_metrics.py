"""Scores compared with sacreBLEU and with known values."""

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
