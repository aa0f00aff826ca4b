"""The library's pipelines open our models, and our pipeline translates as Translator does."""

import pytest
import torch
from conftest import save_folder, small_model
from transformers import AutoModelForSeq2SeqLM, pipeline

from modeling_aiayn import AiaynForCausalLM, AiaynForSequenceClassification
from modeling_aiayn.tokenization import TARGET_TOKENIZER_FOLDER, train_word_tokenizer
from modeling_aiayn.translation import Translator, translation_pipeline
from modeling_aiayn.translation.translation_pipeline import SavedTranslationPipeline

TEXTS = ["The dog sees.", "", "My old friend has given a red apple to the cat.", "We see.", " "]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_translations_are_the_translator_s(model_folder, batch_size):
    expected = Translator.from_pretrained(model_folder)(TEXTS, num_beams=3, split_sentences=True)
    translate = pipeline("aiayn-translation", str(model_folder), device="cpu")
    output = translate(TEXTS, batch_size=batch_size, num_beams=3)
    assert output == [{"translation_text": text} for text in expected]
    assert translate(TEXTS[0], num_beams=3) == [{"translation_text": expected[0]}]
    # The names of transformers 4.
    named = {"max_length": 3, "truncation": True, "src_lang": None, "tgt_lang": None}
    cut = Translator.from_pretrained(model_folder)(
        TEXTS[2:3], max_length_factor=0.0, max_length_offset=3
    )
    assert translate(TEXTS[2], **named) == [{"translation_text": cut[0]}]
    streamed = list(translate((text for text in TEXTS), num_beams=3))
    assert streamed == output
    with pytest.raises(ValueError, match="nbest must be 1, got 2"):
        translate(TEXTS[0], nbest=2)


@pytest.mark.parametrize("batch_size", [1, 2])
def test_equal_texts_get_different_samples(model_folder, batch_size):
    """The same samples as from Translator, again at each call."""
    texts, options = ["The dog sees."] * 3, {"do_sample": True, "search_seed": 5}
    expected = Translator.from_pretrained(model_folder)(texts, **options)
    assert len(set(expected)) == 3
    translate = pipeline("aiayn-translation", str(model_folder), device="cpu")
    for _ in range(2):
        found = translate(texts, batch_size=batch_size, **options)
        assert [each["translation_text"] for each in found] == expected


def test_a_model_kept_in_float16_is_computed_with_in_float32(model_folder, tmp_path, tokenizer):
    half = AutoModelForSeq2SeqLM.from_pretrained(model_folder).half()
    translate = pipeline(
        "aiayn-translation", str(save_folder(half, tokenizer, tmp_path)), device="cpu"
    )
    assert translate.model.dtype == torch.float32
    texts = Translator.from_pretrained(tmp_path)(TEXTS, num_beams=3, split_sentences=True)
    assert [each["translation_text"] for each in translate(TEXTS, num_beams=3)] == texts


def test_a_target_vocabulary_of_its_own_is_found_or_given(tmp_path):
    source = train_word_tokenizer(["a b c d"] * 2)
    target = train_word_tokenizer(["e f g h i"] * 2)
    model = small_model(vocab_size=len(source), decoder_vocab_size=len(target))
    save_folder(model, source, tmp_path)
    target.save_pretrained(tmp_path / TARGET_TOKENIZER_FOLDER)
    expected = Translator.from_pretrained(tmp_path)(["a c"])
    found = pipeline("aiayn-translation", str(tmp_path), device="cpu")
    given = pipeline(
        "aiayn-translation", model, tokenizer=source, target_tokenizer=target, device="cpu"
    )
    for translate in (found, given):
        assert translate(["a c"]) == [{"translation_text": expected[0]}]
    assert set(expected[0].split()) <= {*"efghi", "<unk>"}


def test_a_target_tokenizer_is_of_the_model_s_revision(model_folder, tokenizer, monkeypatch):
    model = AutoModelForSeq2SeqLM.from_pretrained(model_folder)
    model.config._commit_hash = "0123abc"
    model.config.decoder_vocab_size = len(tokenizer)
    loaded = []

    def load(*_, **options):
        loaded.append(options)
        return tokenizer

    monkeypatch.setattr(translation_pipeline, "cached_file", load)
    monkeypatch.setattr(translation_pipeline.AutoTokenizer, "from_pretrained", load)
    monkeypatch.setattr("modeling_aiayn.translation.pipeline.load_target_tokenizer", load)
    pipeline("aiayn-translation", model, tokenizer=tokenizer, device="cpu")
    SavedTranslationPipeline(model, tokenizer, device="cpu")
    assert [options["revision"] for options in loaded] == ["0123abc"] * 3


def test_a_target_tokenizer_of_a_shared_vocabulary_is_found(tmp_path, tokenizer):
    """As in imports whose tokenizers differ in the language alone."""
    save_folder(small_model(vocab_size=len(tokenizer)), tokenizer, tmp_path)
    tokenizer.save_pretrained(tmp_path / TARGET_TOKENIZER_FOLDER)
    translator = pipeline("aiayn-translation", str(tmp_path), device="cpu").translator
    assert translator.target_tokenizer is not translator.source_tokenizer


def test_text_classification(tokenizer, tmp_path):
    labels = {0: "bad", 1: "fair", 2: "good"}
    options = {"vocab_size": len(tokenizer), "id2label": labels}
    model = small_model(AiaynForSequenceClassification, **options)
    classify = pipeline(
        "text-classification", str(save_folder(model, tokenizer, tmp_path)), device="cpu"
    )
    texts = ["The dog sees.", "We see my old friend."]
    for text, scores in zip(texts, classify(texts, batch_size=2, top_k=None), strict=True):
        logits = model(**tokenizer(text, return_tensors="pt")).logits[0].softmax(-1)
        expected = {labels[index]: value for index, value in enumerate(logits.tolist())}
        got = {score["label"]: score["score"] for score in scores}
        assert got == pytest.approx(expected, abs=1e-5)


def test_text_generation(tokenizer, tmp_path):
    model = small_model(AiaynForCausalLM, vocab_size=len(tokenizer), decoder_layers=1)
    complete = pipeline(
        "text-generation", str(save_folder(model, tokenizer, tmp_path)), device="cpu"
    )
    prompts = ["The dog", "We see my old friend"]
    settings = {"max_new_tokens": 4, "do_sample": False, "return_full_text": False}
    settings["add_special_tokens"] = False  # our tokenizers end a text in eos, and this goes on
    together = complete(prompts, batch_size=2, **settings)
    alone = [complete(prompt, **settings) for prompt in prompts]
    assert together == alone
    assert all(output[0]["generated_text"] for output in alone)
