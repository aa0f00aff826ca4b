"""Vocabularies of section 5.1: special tokens, coverage of all text, saving and errors."""

import json
import pickle
import random

import pytest
from transformers import AutoTokenizer

from modeling_aiayn import tokenization
from modeling_aiayn.saved.languages import LanguageTags
from modeling_aiayn.saved.tokenizers import load_tokenizer
from modeling_aiayn.tokenization import (
    BYTE_TOKENS,
    SPECIAL_TOKENS,
    decode_lines,
    source_token,
    text_encoder,
    train_bpe_tokenizer,
    train_tokenizer,
    train_word_tokenizer,
)

TEXTS = ["Der Hund sieht die Katze.", "The dog sees the cat.", "The dogs, they see a cat!"] * 2


def reopened(tokenizer, folder):
    tokenizer.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(params=["trained", "reloaded"])
def bpe(request, tmp_path):
    tokenizer = train_bpe_tokenizer(TEXTS, 340)
    return tokenizer if request.param == "trained" else reopened(tokenizer, tmp_path)


@pytest.fixture(params=["trained", "reloaded"])
def words(request, tmp_path):
    tokenizer = train_word_tokenizer(TEXTS, min_frequency=3)
    return tokenizer if request.param == "trained" else reopened(tokenizer, tmp_path)


def test_special_ids_are_0_to_3(bpe, words):
    for tokenizer in (bpe, words):
        assert tokenizer.convert_tokens_to_ids(SPECIAL_TOKENS) == [0, 1, 2, 3]
        roles = (tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id)
        assert (*roles, tokenizer.unk_token_id) == (0, 1, 2, 3)
        assert tokenizer.padding_side == "right"
    assert bpe.convert_tokens_to_ids(BYTE_TOKENS) == list(range(4, 260))
    assert len(bpe) <= 340


def test_eos_ends_every_sequence_and_survives_truncation(bpe, words):
    for tokenizer in (bpe, words):
        assert tokenizer("the dog sees").input_ids[-1] == 2
        assert tokenizer("").input_ids == [2]
        cut = tokenizer(["the dog sees the cat and more of it"], truncation=True, max_length=4)
        assert len(cut.input_ids[0]) == 4
        assert cut.input_ids[0][-1] == 2
        assert set(cut) == {"input_ids", "attention_mask"}
    assert bpe("the cat", "die Katze").input_ids.count(2) == 2


def test_special_tokens_in_user_text_are_ordinary_text(bpe, words):
    for text in ("the </s> cat", "<s><pad><unk>", "<0x41>"):
        ids = bpe(text).input_ids
        assert ids.count(2) == 1
        assert not {0, 1, 3} & set(ids)
        assert bpe.decode(ids, skip_special_tokens=True) == text
    assert words("the </s> cat").input_ids.count(2) == 1


def test_decoding_restores_any_text(bpe):
    """Except surrogates, which are not text, and the space sign U+2581."""
    texts = ["a\x00b", "a\nb\tc", " two  blanks ", "漢字漢字", "👩\u200d👩\u200d👧", "ß\r", ""]
    generator = random.Random(0)
    ranges = ((0, 0x7F), (0x80, 0x2580), (0x2582, 0xD7FF), (0xE000, 0x10FFFF))
    for _ in range(1000):
        texts.append("".join(chr(generator.randint(*generator.choice(ranges))) for _ in range(12)))
    for text in texts:
        ids = bpe(text).input_ids
        assert bpe.unk_token_id not in ids
        assert bpe.decode(ids, skip_special_tokens=True) == text


def test_punctuation_marks_are_separate_tokens(bpe):
    assert bpe.tokenize("cat.")[-1] == "."
    assert bpe.tokenize("the, cat")[1:2] == [","]


def test_training_twice_gives_the_same_bytes(tmp_path):
    for folder in ("first", "second"):
        train_bpe_tokenizer(TEXTS, 330).save_pretrained(tmp_path / folder / "bpe")
        train_word_tokenizer(TEXTS).save_pretrained(tmp_path / folder / "word")
    for path in (tmp_path / "first").rglob("*.json"):
        other = tmp_path / "second" / path.relative_to(tmp_path / "first")
        assert path.read_bytes() == other.read_bytes()


def test_the_word_vocabulary_has_frequent_lower_case_words(words):
    vocabulary = words.get_vocab()
    assert {"the", "dog", "cat", "see", ".", "die"} & vocabulary.keys() == {"the", "cat", "."}
    ids = words("THE unheard cat.").input_ids
    assert words.convert_ids_to_tokens(ids) == ["the", "<unk>", "cat", ".", "</s>"]
    assert words.decode(ids, skip_special_tokens=True) == "the cat."
    assert {"The", "the"} <= train_word_tokenizer(TEXTS, lowercase=False).get_vocab().keys()


@pytest.mark.parametrize("lowercase", [False, True])
def test_tokens_of_tokenized_text_stay_whole(lowercase, tmp_path):
    texts = ["Das U-Boot kostet 3.50 $ .", "Das U-Boot taucht ."]
    tokenizer = reopened(train_tokenizer(texts, "token", 7, 2, lowercase), tmp_path)
    boat = "u-boot" if lowercase else "U-Boot"
    assert {boat, boat[:4].lower() + "s"} & tokenizer.get_vocab().keys() == {boat}
    assert len(tokenizer) == 4 + 3
    ids = tokenizer("U-Boot  taucht .").input_ids
    assert tokenizer.convert_ids_to_tokens(ids) == [boat, "<unk>", ".", "</s>"]
    assert decode_lines(tokenizer, [[0, *ids]]) == [f"{boat} <unk> ."]


def test_special_tokens_in_tokenized_text_are_words_of_the_text(tmp_path):
    texts = ["<s> a <unk> </S>", "<s> a <pad> x<s> </s>"]
    tokenizer = reopened(train_tokenizer(texts, "token", 7, 1, lowercase=True), tmp_path)
    words = {"<", "s>", "/s>", "unk>", "pad>", "a", "x<s>"}
    assert tokenizer.get_vocab().keys() == {"<s>", "<pad>", "</s>", "<unk>"} | words
    assert sorted(tokenizer.get_vocab().values()) == list(range(4 + len(words)))
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("a </s> <PAD>").input_ids)
    assert tokens == ["a", "<", "/s>", "<", "pad>", "</s>"]


def test_generated_ids_become_one_line_without_special_tokens(bpe, words):
    ids = bpe("the\ncat\u2028sees\r").input_ids
    assert decode_lines(bpe, [[0, *ids, 1, 1], [0, 2]]) == ["the cat sees", ""]
    ids = words("the unheard cat.").input_ids
    assert decode_lines(words, [[0, *ids, 1]]) == ["the <unk> cat."]


def test_text_is_lower_cased_on_request(tmp_path):
    trained = train_bpe_tokenizer(TEXTS, 340, lowercase=True)
    for tokenizer in (trained, reopened(trained, tmp_path)):
        learned = tokenizer.get_vocab().keys() - set(BYTE_TOKENS)
        assert "▁the" in learned and not any(token != token.lower() for token in learned)
        ids = tokenizer("THE Übergang, ΑΒΓ </S>").input_ids
        assert ids.count(2) == 1
        assert tokenizer.decode(ids, skip_special_tokens=True) == "the übergang, αβγ </s>"


OLD_PRE_TOKENIZER = {"type": "Split", "behavior": "MergedWithNext", "invert": False}
OLD_PRE_TOKENIZER |= {"pattern": {"String": "\u2581"}}


def test_ids_are_those_of_folders_that_earlier_versions_saved(tokenizer, pairs, tmp_path):
    """transformers.js applies their Split in another way; Metaspace is the same in both."""
    saved = json.loads(tokenizer.backend_tokenizer.to_str())
    kinds = [each["type"] for each in saved["pre_tokenizer"]["pretokenizers"]]
    assert kinds == ["Metaspace", "Punctuation"]
    saved["pre_tokenizer"]["pretokenizers"][0] = OLD_PRE_TOKENIZER
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(saved))
    earlier = load_tokenizer(tmp_path)
    generator = random.Random(0)
    signs = "ab .,-'\u00e9\u6f22\U0001f600\u2581\u00a0\u00df\"\t"
    texts = ["".join(generator.choices(signs, k=generator.randint(0, 30))) for _ in range(500)]
    texts += [text for pair in pairs for text in (pair.source, pair.target)]
    assert tokenizer(texts).input_ids == earlier(texts).input_ids


def test_the_class_that_is_saved_is_one_of_transformers_4_and_5(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path / "a")
    load_tokenizer(tmp_path / "a").save_pretrained(tmp_path / "b")
    for name in "ab":
        config = json.loads((tmp_path / name / "tokenizer_config.json").read_text())
        assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
        assert config["clean_up_tokenization_spaces"] is False
    loaded = AutoTokenizer.from_pretrained(tmp_path / "b")
    assert loaded("A dog .").input_ids == tokenizer("A dog .").input_ids
    copied = pickle.loads(pickle.dumps(load_tokenizer(tmp_path / "b")))
    assert copied("A dog .").input_ids == tokenizer("A dog .").input_ids


SIGNS = [
    *(
        "a",
        "B",
        "ß",
        "İ",
        "Σ",
        "ς",
        "中",
        "😀",
        ".",
        ",",
        "'",
        "-",
        "\u2581",
        "</s>",
        "<unk>",
        "<s",
    ),
    *(" ", " ", "  ", "\t", "\xa0", "\u2028", "\u200b", "the", "dog", "Katze", "x" * 30),
]


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("max_words", [40, 1000])
def test_kept_words_give_the_ids_of_the_tokenizer(monkeypatch, tmp_path, lowercase, max_words):
    """Of texts as nobody writes them, too; with 40 words, the kept ones are often forgotten."""
    monkeypatch.setattr(tokenization, "MAX_WORDS", max_words)
    tokenizer = train_bpe_tokenizer(TEXTS, 340, lowercase)
    draw = random.Random(0)
    texts = ["".join(draw.choices(SIGNS, k=draw.randrange(12))) for _ in range(3000)]
    texts += ["", " ", "  ", "a  b", *TEXTS]
    expected = tokenizer(texts).input_ids
    tokenizer(texts[:3], truncation=True, max_length=2, padding=True)
    tokenizer(texts[:3], split_special_tokens=False)
    for each in (tokenizer, reopened(tokenizer, tmp_path)):
        encode = text_encoder(each)
        assert isinstance(encode.__self__, tokenization.WordIds)
        found = [encode(texts[start : start + 50]) for start in range(0, len(texts), 50)]
        assert [ids.tolist() for batch in found for ids in batch] == expected


def test_with_tags_kept_words_give_the_same_ids_and_tags_in_texts_are_text():
    tokenizer = train_bpe_tokenizer(TEXTS, 340)
    tokens = ["<2de>", "<bt>", "<2en>"]
    tokenizer.add_tokens([*map(source_token, tokens)])
    draw = random.Random(0)
    texts = ["".join(draw.choices([*SIGNS, *tokens], k=draw.randrange(12))) for _ in range(3000)]
    tags, ids = LanguageTags.of(tokenizer), tokenizer.convert_tokens_to_ids(tokens)
    found = tags.encode(texts, "en", "de")
    assert tags._encode_words is not None and text_encoder(tokenizer).func
    broken = [text.replace("<2", "< 2") for text in texts]
    assert found == [[ids[0], *tokenizer(text).input_ids] for text in broken]
    assert {*ids}.isdisjoint(token for text in found for token in text[1:])
    assert tags.encode_target(texts, "de") == [text[1:] for text in found]


def test_other_tokenizers_encode_by_themselves(bpe):
    words = train_word_tokenizer(TEXTS)
    added = train_bpe_tokenizer(TEXTS, 340)
    added.add_tokens(["see the"])
    joining = train_bpe_tokenizer(TEXTS, 340)
    joining.split_special_tokens = False
    for tokenizer in (words, added, joining):
        texts = ["they see the </s> cat", "a dog"]
        assert text_encoder(tokenizer)(texts) == tokenizer(texts).input_ids
