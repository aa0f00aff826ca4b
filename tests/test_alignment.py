"""Word alignment from attention, and its scores against hand-made links."""

import copy
from dataclasses import replace

import pytest
import torch
from conftest import small_model

from modeling_aiayn.data.embedded_corpus import generate_pairs
from modeling_aiayn.inspection.alignment import (
    align,
    aligner,
    links_of,
    to_pharaoh,
)
from modeling_aiayn.inspection.alignment_scores import (
    AlignmentScore,
    GoldPair,
    alignment_table,
    embedded_gold,
    read_gold,
    score_attentions,
)
from modeling_aiayn.inspection.attention_weights import AttentionChoice
from modeling_aiayn.saved.languages import set_languages
from modeling_aiayn.translation import Translator
from modeling_aiayn.translation.segments.token_words import tokens_of_ids, words_of_tokens


@pytest.fixture(scope="module")
def translator(tokenizer):
    return Translator(small_model(vocab_size=len(tokenizer)), tokenizer)


def test_choice_selects_a_layer_a_head_or_a_mean():
    weights = torch.rand(3, 2, 4, 5)
    for text, expected in (
        ("mean", weights.mean((0, 1))),
        ("1", weights[1].mean(0)),
        ("2,1", weights[2, 1]),
    ):
        torch.testing.assert_close(AttentionChoice.parse(text).of(weights), expected)
    torch.testing.assert_close(AttentionChoice(head=1).of(weights), weights[:, 1].mean(0))
    assert str(AttentionChoice(2)) == "layer 2, head mean"


def test_other_choices_are_refused():
    with pytest.raises(ValueError, match=r"head must be in \[0, 2\), got 2"):
        AttentionChoice(0, 2).of(torch.rand(3, 2, 4, 5))
    for text in ("best", "1,", "", "1,2,3"):
        with pytest.raises(ValueError, match=r"mean, LAYER or LAYER,HEAD, got"):
            AttentionChoice.parse(text)


def test_each_token_belongs_to_the_word_that_contains_it(tokenizer):
    for pair in generate_pairs("test", 20):
        words = words_of_tokens(tokenizer, pair.source, pair.source_words)
        tokens = tokenizer(pair.source).tokens()
        spelt = ["" for _ in pair.source_words]
        for word, token in zip(words[:-1], tokens[:-1], strict=True):
            spelt[word] += token.replace("\N{LOWER ONE EIGHTH BLOCK}", "")
        assert [word.lower() for word in spelt] == [word.lower() for word in pair.source_words]
        assert words[-1] is None
    # A token that is only a space has the next word. The three bytes of a character share its word.
    words = words_of_tokens(tokenizer, "a 漢 b", ["a", "漢", "b"])
    assert words[:6] == [0, 1, 1, 1, 1, 2]
    assert tokens_of_ids(tokenizer, tokenizer("a 漢 b").input_ids).word_of == words
    # The lower case of İ is two characters.
    words = words_of_tokens(tokenizer, "İİİ o", ["İİİ", "o"])
    assert words[-2:] == [1, None]


def test_error_names_the_missing_word(tokenizer):
    with pytest.raises(ValueError, match=r"'cat' is not in 'The dog\.' after the words before it"):
        words_of_tokens(tokenizer, "The dog.", ["the", "cat"])


def test_links_follow_the_largest_weight():
    attention = torch.tensor([[0.1, 0.7, 0.2], [0.6, 0.3, 0.1], [0.2, 0.1, 0.7], [0.1, 0.8, 0.1]])
    # Source tokens 0 and 1 are words 0 and 1, the last is </s>; target tokens 0 and 1 are one word.
    links = links_of(attention, [0, 1, None], [0, 0, 1, None])
    assert links == {(1, 0), (0, 0)}
    assert to_pharaoh(links) == "0-0 1-0"


def test_alignment_does_not_depend_on_the_attention_implementation(translator):
    texts = ("The dog sees the cat.", "Der Hund sieht die Katze.")
    expected = align(translator, *texts, [AttentionChoice(1, 1)])
    translator.model.set_attn_implementation("sdpa")
    assert align(translator, *texts, [AttentionChoice(1, 1)]) == expected
    translator.model.set_attn_implementation("eager")
    (links,) = expected
    assert {target for _, target in links} <= set(range(5))


def test_empty_translations_have_no_links(translator):
    found = list(translator.stream(["The dog sees.", ""]))
    links = aligner(translator, AttentionChoice())
    assert links(found[1][0]) == ""
    # The links are of the generated ids, not of the text.
    assert links(replace(found[0][0], text="?")) == links(found[0][0]) != ""
    with pytest.raises(ValueError, match=r"layer must be in \[0, \d\), got 99"):
        aligner(translator, AttentionChoice(99))
    assert all(
        source < 3
        for source, _ in (map(int, link.split("-")) for link in links(found[0][0]).split())
    )


def test_scores_follow_och_and_ney():
    """Two of three links are right, one of them sure; one sure link is missed."""
    gold = GoldPair(
        "", "", ((), ()), frozenset({(0, 0), (1, 1)}), frozenset({(0, 0), (1, 1), (2, 1)})
    )
    score = AlignmentScore()
    score.add(frozenset({(0, 0), (2, 1), (5, 5)}), gold)
    assert score.error_rate == pytest.approx(1 - (1 + 2) / (3 + 2))
    assert (score.precision, score.recall) == (pytest.approx(2 / 3), 0.5)
    assert score.f1 == pytest.approx(4 / 7)
    assert AlignmentScore().f1 == 0.0


def test_links_are_read_in_both_directions(tmp_path):
    for name, text in (("a.en", "the dog\nyes\n"), ("a.de", "der Hund da\nja\n")):
        (tmp_path / name).write_text(text)
    (tmp_path / "gold").write_text("0-0 2p1 1-1\n0-0\n")
    files = [str(tmp_path / name) for name in ("a.en", "a.de", "gold")]
    first, second = read_gold(*files, is_reversed=True)
    assert first.sure == {(0, 0), (1, 1)}
    assert first.possible == {(0, 0), (1, 1), (1, 2)}
    assert first.words == (["the", "dog"], ["der", "Hund", "da"])
    assert second.sure == second.possible == {(0, 0)}
    with pytest.raises(
        ValueError, match=r"gold:1: links count words from 0, and the source has only 2 words"
    ):
        read_gold(*files)
    (tmp_path / "a.en").write_text("the dog\n")
    with pytest.raises(ValueError, match=r"shorter|longer"):
        read_gold(*files, is_reversed=True)


def test_the_grammar_s_pairs_can_be_reversed():
    (pair,), (other,) = embedded_gold(1), embedded_gold(1, is_reversed=True)
    assert (other.source, other.target) == (pair.target, pair.source)
    assert other.words == pair.words[::-1]
    assert other.sure == {(t, s) for s, t in pair.sure} == other.possible


def test_the_command_reads_the_direction_of_the_model(run, tmp_path, tokenizer):
    code, out, err = run("score_alignment.py", "--model", "aiayn-de-en", "--pairs", 60)
    assert code == 0, err
    assert float(out.splitlines()[-2].split()[4]) < 40, out
    tokenizer = copy.deepcopy(tokenizer)
    set_languages(tokenizer, "fr", "it")
    small_model(vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    code, _, err = run("score_alignment.py", "--model", tmp_path)
    assert code == 1 and "from fr to it. Give --source, --target and --gold." in err
    code, _, err = run("score_alignment.py", "--pairs", 1)
    assert code == 1 and "at least 2 pairs" in err


def test_every_head_and_mean_is_scored(translator):
    scores = score_attentions(translator, embedded_gold(3))
    assert len(scores) == 1 + 3 * (1 + 2)
    assert all(score.sure == scores[AttentionChoice()].sure > 0 for score in scores.values())
    assert len(alignment_table(scores).splitlines()) == 1 + len(scores)
