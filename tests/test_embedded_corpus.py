"""The embedded grammar: agreement, verb order, gold alignment and disjoint splits."""

import re

import pytest

from modeling_aiayn.data.embedded_corpus import SPLITS, generate_pairs


@pytest.fixture(scope="module")
def many():
    return generate_pairs("train", 20_000)


def test_splits_share_no_sentence_whatever_the_seed():
    texts = {
        split: {text for seed in (0, 1) for pair in generate_pairs(split, 500, seed) for text in (pair.source, pair.target)}
        for split in SPLITS
    }  # fmt: skip
    assert not texts["train"] & texts["test"]
    assert not texts["train"] & texts["validation"]
    assert not texts["test"] & texts["validation"]


def test_pairs_depend_on_the_seed_alone():
    assert generate_pairs("train", 50, seed=3) == generate_pairs("train", 50, seed=3)
    assert generate_pairs("train", 50, seed=3) != generate_pairs("train", 50, seed=4)


def test_a_source_has_one_translation(many):
    assert len({pair.source for pair in many}) == len({(p.source, p.target) for p in many})


def find(pairs, pattern):
    """Pairs whose English matches."""
    found = [pair for pair in pairs if re.search(pattern, pair.source)]
    assert found, pattern
    return found


def test_articles_agree_in_gender_case_and_number(many):
    for pair in find(many, r"^The old (man|woman|child) "):
        noun = {"man": "Der alte Mann", "woman": "Die alte Frau", "child": "Das alte Kind"}
        assert pair.target.startswith(noun[pair.source.split()[2]])
    for pair in find(many, r"the dog (and|\.|in|behind|near|before|because|while|although)"):
        assert "den Hund" in pair.target or "dem Hund" in pair.target
    for pair in find(many, r"to the children"):
        assert "den Kindern" in pair.target
    for pair in find(many, r"in a (red|old|new|big|small) kitchen"):
        assert re.search(r"in einer \w+en Küche", pair.target)


def test_articles_and_adjectives_have_existing_forms(many):
    """Each noun only has articles of its gender."""
    forms = {"Mann": "der|den|dem", "Frau": "die|der", "Kind": "das|dem", "Apfel": "der|den|dem"}
    for noun, articles in forms.items():
        found = [
            match
            for pair in many
            for match in re.findall(rf"\b([Dd](?:er|ie|as|en|em)) {noun}\b", pair.target)
        ]
        assert found
        assert {article.lower() for article in found} <= set(articles.split("|"))


def test_english_says_an_before_a_vowel(many):
    assert not any(re.search(r"\b[Aa] [aeio]", pair.source) for pair in many)
    assert find(many, r"\ban (old|apple)")


def test_the_finite_verb_is_second_in_main_and_last_in_subordinate_clauses(many):
    for pair in find(many, r"^(Today|Now) he sees"):
        assert re.match(r"(Heute|Jetzt) sieht er\b", pair.target)
    for pair in find(many, r"because he sees "):
        assert pair.target.endswith("sieht.")
    for pair in find(many, r"^We have (seen|found) .*\.$"):
        if "," not in pair.target:
            assert pair.target.startswith("Wir haben")
            assert re.search(r"(gesehen|gefunden)\.$", pair.target)
    for pair in find(many, r"because we have seen"):
        assert pair.target.endswith("gesehen haben.")


def test_german_puts_the_receiver_first(many):
    for pair in find(many, r"(gives|shows) the book to (the|a) "):
        assert re.search(r"(de[rmn]|eine[rm]) (\w+ )?\w+ das Buch", pair.target)


def test_gold_alignment_links_translations(many):
    dictionary = {"dog": "Hund", "horse": "Pferd", "key": "Schlüssel", "because": "weil", ".": "."}
    for pair in many:
        links = dict(pair.alignment)
        assert max(links) == len(pair.source_words) - 1
        for index, word in enumerate(pair.source_words):
            if word in dictionary:
                assert pair.target_words[links[index]] == dictionary[word]
        unaligned = set(range(len(pair.target_words))) - {j for _, j in pair.alignment}
        assert {pair.target_words[j] for j in unaligned} <= {","}
