"""A new language in a saved model: its tag, its letters, and what other clients read."""

import json
import shutil

import pytest
import torch
from foreign_peers import nllb_folder
from peft import PeftModel
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, NllbTokenizer

from modeling_aiayn import AiaynForConditionalGeneration
from modeling_aiayn.interop.importing import import_model
from modeling_aiayn.interop.m2m100 import read_m2m100
from modeling_aiayn.tokenization import train_bpe_tokenizer, train_word_tokenizer
from modeling_aiayn.training.new_language import add_language, add_pieces
from modeling_aiayn.translation import Translator

TEXTS = [
    "Der chlyni Hund gaht über d Strass.",
    "S Äpfeli ghört em Maa!",
    "D Frau gaht über d Brugg ⚑",
]


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """A model like NLLB-200 that knows neither ü nor capital letters."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("nllb")
    import_model(read_m2m100(nllb_folder(folder / "peer")), folder / "ours", sources=2)
    return folder / "ours"


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "texts.gsw").write_text("\n".join([*TEXTS[:2] * 4, TEXTS[2], ""]), "utf-8")
    return str(tmp_path / "texts.gsw")


def load(folder):
    return AiaynForConditionalGeneration.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)  # fmt: skip


def test_a_language_gets_the_embedding_of_another_and_moves_no_id(imported, tmp_path):
    model, tokenizer = load(imported)
    before = dict(tokenizer.get_vocab())
    add_language(model, tokenizer, "gsw_Latn", "de")
    new = tokenizer.get_vocab()
    assert new.pop("gsw_Latn") == len(before) and new == before
    rows = model.model.encoder.embed_tokens.weight
    assert torch.equal(rows[len(before)], rows[before["deu_Latn"]])
    assert model.config.vocab_size == len(rows) == len(before) + 1
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path)
    plain = NllbTokenizer.from_pretrained(tmp_path, src_lang="gsw_Latn")
    assert plain.get_vocab() == tokenizer.get_vocab()
    ids = plain("the dog").input_ids
    assert ids[0] == len(before)
    translator = Translator.from_pretrained(tmp_path, source_lang="gsw_Latn", target_lang="de")
    assert translator.encode("the dog") == ids
    # As long as nothing is trained, it is the other language.
    german = translator.directed(("deu_Latn", "eng_Latn"))
    swiss = translator.directed(("gsw_Latn", "eng_Latn"))
    given = (["the dog"], ["a cat"])
    assert swiss.score(*given)[0].log_probability == german.score(*given)[0].log_probability


@pytest.mark.parametrize(
    ("name", "like", "message"),
    [
        ("deu_Latn", "fra_Latn", "must be a new language"),
        ("Swiss German", "deu_Latn", "must be a new language"),
        ("gsw_Latn", "xx", "like must be one of the model's"),
    ],
)
def test_languages_that_cannot_be_added(imported, name, like, message):
    with pytest.raises(ValueError, match=message):
        add_language(*load(imported), name, like)
    with pytest.raises(ValueError, match="needs a model with tags of languages"):
        add_language(load(imported)[0], train_word_tokenizer(["a a"]), name, like)


def test_pieces_are_spelt_by_the_mean_of_others_and_known_everywhere(
    imported, texts, tmp_path, caplog
):
    model, tokenizer = load(imported)
    old, rows = dict(tokenizer.get_vocab()), model.model.encoder.embed_tokens.weight.detach().clone()  # fmt: skip
    assert tokenizer.unk_token_id in tokenizer("über").input_ids
    known = "the dog sees"
    spelt_before = tokenizer(known).input_ids
    with caplog.at_level("INFO"):
        add_pieces(model, tokenizer, [texts], 12)
    vocabulary = tokenizer.get_vocab()
    added = sorted({*vocabulary} - {*old}, key=vocabulary.__getitem__)
    assert {name: vocabulary[name] for name in old} == old
    assert [vocabulary[piece] for piece in added] == [*range(len(old), len(old) + len(added))]
    characters = [piece for piece in added if len(piece) == 1]
    assert {"ü", "ö", "Ä"} <= {*characters} and added[: len(characters)] == characters
    assert len(added) - len(characters) == 12
    assert "⚑" not in vocabulary  # it occurs once
    assert f"Added {len(characters)} characters and 12 pieces." in caplog.text
    assert "now have 3 unknown of" in caplog.text  # F, B and ⚑ occur once
    # No new piece crosses a blank, or grows over punctuation.
    assert all(
        piece.rfind("▁") < 1 and not {*piece} & {*"!⚑"} for piece in added[len(characters) :]
    )
    assert tokenizer(known).input_ids == spelt_before

    new = model.model.encoder.embed_tokens.weight.detach()
    assert torch.equal(new[: len(old)], rows)
    torch.testing.assert_close(new[vocabulary["ü"]], rows.mean(0))
    first = added[len(characters)]
    parts = [(left, first[len(left) :]) for left in (first[:n] for n in range(1, len(first)))]
    means = [(new[vocabulary[a]] + new[vocabulary[b]]) / 2 for a, b in parts if {a, b} <= {*vocabulary}]  # fmt: skip
    assert any(torch.allclose(new[vocabulary[first]], mean, atol=1e-6) for mean in means)

    for part in (model, tokenizer):
        part.save_pretrained(tmp_path)
    plain = NllbTokenizer.from_pretrained(tmp_path, src_lang="eng_Latn")
    assert plain.get_vocab() == vocabulary
    for text in (*TEXTS[:2], "über<mask> deu_Latn"):
        assert plain(text).input_ids == tokenizer(text).input_ids
    assert plain.decode(plain(TEXTS[0]).input_ids, skip_special_tokens=True) == TEXTS[0]
    # Tokens that users add later get ids of their own.
    plain.add_tokens(["<new>"])
    assert plain.convert_tokens_to_ids("<new>") == len(vocabulary)


def test_our_own_vocabularies_learn_characters_that_they_spell_by_bytes(texts, tmp_path):
    tokenizer = train_bpe_tokenizer(["the dog sees the cat"], 300)
    from conftest import small_model

    model = small_model(vocab_size=len(tokenizer))
    weight = model.model.encoder.embed_tokens.weight.detach().clone()
    spelt = tokenizer("ü").input_ids[1:-1]
    assert tokenizer.convert_ids_to_tokens(spelt) == ["<0xC3>", "<0xBC>"]
    add_pieces(model, tokenizer, [texts], 5)
    new = model.model.encoder.embed_tokens.weight
    (letter,) = tokenizer("xü").input_ids[-2:-1]
    torch.testing.assert_close(new[letter], weight[spelt].mean(0))
    assert tokenizer.decode(tokenizer(TEXTS[2]).input_ids, skip_special_tokens=True) == TEXTS[2]
    with pytest.raises(ValueError, match="needs a tokenizer of byte-pair encoding"):
        add_pieces(model, train_word_tokenizer(["a a"]), [texts], 5)


@pytest.mark.parametrize("lora", [(), ("--lora_rank", 2)], ids=["whole", "lora"])
def test_a_new_language_is_trained(imported, texts, tmp_path, run, lora):
    shutil.copytree(imported, tmp_path / "ours")
    pairs = [("the dog", "Der Hund über"), ("a cat", "S Äpfeli"), ("we see", "D Frau gaht")]
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs * 3), "utf-8")
    flags = ["--start_from", tmp_path / "ours", "--output_dir", tmp_path / "run", *lora]
    flags += ["--add_language", "gsw_Latn", "--like", "deu_Latn", "--add_pieces_from", texts]
    flags += ["--max_new_pieces", 9, "--source_lang", "eng_Latn", "--target_lang", "gsw_Latn"]
    for name in ("train", "validation", "test"):
        flags += [f"--{name}_file", tmp_path / "pairs.tsv"]
    flags += ["--max_tokens_per_batch", 300, "--learning_rate", 0.03, "--use_cpu", "true"]
    flags += ["--lr_scheduler_type", "linear", "--warmup_steps", 0]
    flags += ["--max_steps", 120 if lora else 40]
    flags += ["--predict_with_generate", "false", "--report_to", "none"]
    code, _, err = run("train_translation.py", *flags)
    assert code == 0, err
    folder = tmp_path / "run"
    assert "before" not in json.loads((folder / "scores.json").read_text())
    translator = Translator.from_pretrained(folder)
    assert translator.direction() == ("eng_Latn", "gsw_Latn")
    base = load(imported)[1]
    new = translator.source_tokenizer.convert_tokens_to_ids("gsw_Latn")
    assert new == len(base) and len(translator.source_tokenizer) > new + 9
    scored = translator.score(*zip(*pairs, strict=True))
    assert all(one.token_ids[0] == new for one in scored)
    assert mean_probability(scored) > (0.005 if lora else 0.1)  # at random: 0.002
    if not lora:
        model = AutoModelForSeq2SeqLM.from_pretrained(folder)
        assert model.generation_config.forced_bos_token_id == new
        return
    # The new rows were trained, no old one was, and both sides have the same.
    weights = translator.model.state_dict()
    rows, old = weights["model.encoder.embed_tokens.weight"], load(imported)[0].state_dict()
    assert torch.equal(rows[: len(base)], old["model.encoder.embed_tokens.weight"])
    assert torch.equal(rows, weights["lm_head.weight"])
    started = load(folder / "base")[0]
    start = started.state_dict()["model.encoder.embed_tokens.weight"]
    assert (rows[len(base) :] != start[len(base) :]).any(1).float().mean() > 0.5
    # The adapter computes what the merged model does.
    inputs = {"input_ids": torch.tensor([[3, new, 7, 2]]), "labels": torch.tensor([[new, 9, 2]])}
    adapted = PeftModel.from_pretrained(started, str(folder)).eval()
    with torch.no_grad():
        torch.testing.assert_close(adapted(**inputs).logits, translator.model(**inputs).logits)


def mean_probability(scored):
    total = sum(one.log_probability for one in scored)
    return torch.tensor(total / sum(len(one.token_ids) - 1 for one in scored)).exp()
