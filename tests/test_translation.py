"""Translator: as many texts out as in, each on its own, and clear words where it cannot."""

import logging

import pytest
import torch
from conftest import small_model
from datasets import Dataset

from modeling_aiayn.inspection.attention_maps import cross_attention, draw_cross_attention
from modeling_aiayn.tokenization import train_word_tokenizer
from modeling_aiayn.translation import Translator
from modeling_aiayn.translation.arguments import TranslatorArguments
from modeling_aiayn.translation.evaluation import perplexity, score_table


@pytest.fixture(scope="module")
def translator(tokenizer):
    return Translator(small_model(vocab_size=len(tokenizer)), tokenizer)


@pytest.fixture(scope="module")
def folder(translator, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    translator.model.save_pretrained(folder)
    translator.source_tokenizer.save_pretrained(folder)
    return folder


TEXTS = ["The dog sees.", "", "My old friend has given a red apple to the cat.", "  ", "We see."]


@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_translation_depends_on_its_sentence_alone(translator, num_beams):
    alone = [translator([text], num_beams=num_beams)[0] for text in TEXTS]
    for batch_size in (1, 2, 7):
        assert translator(TEXTS, batch_size=batch_size, num_beams=num_beams) == alone


def test_empty_texts_have_empty_translations_in_their_places(translator):
    translations = translator(TEXTS)
    assert len(translations) == len(TEXTS)
    assert [bool(text) for text in translations] == [True, False, True, False, True]
    assert translator([]) == []


def test_text_that_is_no_text_is_translated_all_the_same(translator):
    assert len(translator(["a\ud800b", "\x00", "漢字 </s> <pad>"])) == 3


def test_a_very_long_text_is_cut_with_a_warning(translator, caplog):
    with caplog.at_level(logging.WARNING):
        translator(["fine", "the dog " * 400], max_new_tokens=2)
    assert "Line 2: cut from 801 to 512 tokens" in caplog.text


def test_folder_loads_as_it_was(translator, folder):
    assert Translator.from_pretrained(folder)(TEXTS) == translator(TEXTS)


def test_a_folder_that_is_not_there_is_not_looked_for_elsewhere(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"No such directory: runs/modle\. .*--hub"):
        Translator.from_pretrained("runs/modle")


def test_a_tokenizer_that_does_not_fit_is_refused(tokenizer):
    with pytest.raises(ValueError, match=rf"has {len(tokenizer)} entries and the model 31"):
        Translator(small_model(), tokenizer)
    model = small_model(vocab_size=len(tokenizer), decoder_vocab_size=5)
    target = train_word_tokenizer(["a b c d"] * 2)
    with pytest.raises(ValueError, match=rf"has {len(target)} entries and the model 5"):
        Translator(model, tokenizer, target)


def test_perplexity_is_exp_of_the_mean_loss_of_a_token(translator):
    pairs = Dataset.from_dict({"source": TEXTS[::2], "target": ["Der Hund.", "Wir.", "Ein Apfel."]})
    total, tokens = 0.0, 0
    for pair in pairs:
        source = translator.source_tokenizer(pair["source"], return_tensors="pt").input_ids
        labels = translator.target_tokenizer(pair["target"], return_tensors="pt").input_ids
        logits = translator.model(source, labels=labels).logits
        total += torch.nn.functional.cross_entropy(logits[0], labels[0], reduction="sum").item()
        tokens += labels.numel()
    expected = torch.tensor(total / tokens).exp().item()
    for batch_size in (1, 2, 3):
        assert perplexity(translator, pairs, batch_size) == pytest.approx(expected, rel=1e-5)


def test_scores_are_shown_with_their_signatures():
    table = score_table({"bleu": 41.024, "bleu_signature": "nrefs:1", "perplexity": 5.0})
    assert table.splitlines() == [
        "bleu                  41.02  nrefs:1",
        "perplexity             5.00",
    ]


def test_arguments_load_and_say_how_to_search(folder):
    greedy = TranslatorArguments(model=str(folder), num_beams=1, device="cpu", dtype="bfloat16")
    assert greedy.load().model.dtype == torch.bfloat16
    assert greedy.generation_options == {"num_beams": 1}
    beam = TranslatorArguments(model=str(folder), length_penalty=0.6)
    assert beam.generation_options == {"num_beams": 4, "length_penalty": 0.6}
    for name in ("num_beams", "batch_size"):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
            TranslatorArguments(model="x", **{name: 0})


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_cross_attention_is_what_the_model_looked_at(translator, implementation):
    translator.model.set_attn_implementation(implementation)
    attention = cross_attention(translator, "The dog sees.", "Der Hund sieht.")
    assert translator.model.config._attn_implementation == implementation
    translator.model.set_attn_implementation("eager")
    sizes = (len(attention.target_tokens), len(attention.source_tokens))
    assert attention.weights.shape == (3, 2, *sizes)
    torch.testing.assert_close(attention.weights.sum(-1), torch.ones(3, 2, sizes[0]))
    assert attention.source_tokens[-1] == attention.target_tokens[-1] == "</s>"


def test_any_token_can_be_drawn(translator, tmp_path):
    attention = cross_attention(translator, r"$\frac{1}$ 你好 <b>", r"$\badcmd$ שלום")
    draw_cross_attention(attention, tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
