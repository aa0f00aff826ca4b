"""Translator: one translation for each text, independent of the others, and clear errors."""

import logging
import math
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch
from accelerate import disk_offload
from conftest import ROOT, save_folder, small_model
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM, pipeline

from modeling_aiayn.commands.flags import EngineFlags, ModelFlags, load_translator
from modeling_aiayn.inspection.alignment import aligner, maps_with_words
from modeling_aiayn.inspection.attention_weights import AttentionChoice
from modeling_aiayn.tokenization import decode_lines, train_bpe_tokenizer, train_word_tokenizer
from modeling_aiayn.translation import Translator
from modeling_aiayn.translation.evaluation import perplexity
from modeling_aiayn.translation.options import SearchOptions
from modeling_aiayn.translation.pools import batches_by_length
from modeling_aiayn.translation.translate_file import translation_lines
from modeling_aiayn.translation.translator import Translation


@pytest.fixture(scope="module")
def translator(tokenizer):
    return Translator(small_model(vocab_size=len(tokenizer)), tokenizer)


@pytest.fixture
def narrow(tokenizer):
    """A translator whose model has 9 positions."""
    learned = {"position_type": "learned", "max_position_embeddings": 9}
    return Translator(small_model(vocab_size=len(tokenizer), **learned), tokenizer)


TEXTS = ["The dog sees.", "", "My old friend has given a red apple to the cat.", "  ", "We see."]
WRITTEN = [text for text in TEXTS if text.strip()]


def test_a_memory_is_taken_to_the_letter(run, tmp_path):
    translator = Translator.from_pretrained("aiayn-en-de")
    translator.use_memory({" A dog runs. ": "Der Köter  - rennt", "102": "CII"})
    texts = ["A dog  runs.", "A dog runs.", "A cat runs.", "102"]
    first, known, other, number = translator(texts)
    assert (known, number) == ("Der Köter  - rennt", "CII")
    (cat, dog) = Translator.from_pretrained("aiayn-en-de")([texts[2], texts[0]])
    assert (first, other) == (dog, cat)
    (tmp_path / "a.tsv").write_text("A dog runs.\tDer Köter rennt\n\tleer\n")
    command = ("translate.py", "--memory", tmp_path / "a.tsv", "--format", "html", "--text")
    code, out, err = run(*command, "<p>A <b>dog</b> runs. A cat runs.</p>")
    assert (code, out) == (0, f"<p>Der <b>Köter</b> rennt {cat}</p>\n"), err


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
    assert len(translator(["a\ud800b", "\x00", "漢字 </s> <pad>"])) == 3


def test_a_very_long_text_is_cut_with_a_warning(translator, caplog):
    with caplog.at_level(logging.WARNING):
        translator(["fine", "the dog " * 400], max_length_factor=0.0, max_length_offset=2)
    assert "Sentence 2: cut from 801 to 512 tokens" in caplog.text


def test_a_text_longer_than_the_position_table_is_cut_and_changes_no_other(narrow, caplog):
    with caplog.at_level(logging.WARNING):
        first, long = narrow(["We see.", "the dog " * 9])
    assert "Sentence 2: cut from 19 to 9 tokens" in caplog.text
    assert [first] == narrow(["We see."]) and long


def test_a_stream_of_any_length_comes_back_in_order(translator):
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += 1
            yield TEXTS[taken % len(TEXTS)]

    found = translator.stream(endless(), SearchOptions(num_beams=2), pool_size=7)
    best = [next(found)[0] for _ in range(20)]
    assert taken == 21
    assert [each.source for each in best] == [TEXTS[(i + 1) % len(TEXTS)] for i in range(20)]
    assert [each.text for each in best[:5]] == translator([*TEXTS[1:], TEXTS[0]], num_beams=2)


def test_each_text_has_its_prefix(translator):
    texts = ["The dog sees.", "", "We see the cat."]
    (first,), (second,), (third,) = translator.stream(texts, prefixes=["", "x", "Der Apfel"])
    assert (first.text, second.text) == (translator(texts)[0], "")
    assert third.text.startswith("Der Apfel")


def test_scoring_a_translation_gives_its_score(translator):
    options = SearchOptions(length_penalty=0.9)
    found = [best for best, *_ in translator.stream(WRITTEN, options)]
    scored = translator.score(WRITTEN, [each.text for each in found], options)
    for ours, theirs in zip(found, scored, strict=True):
        if ours.token_ids == theirs.token_ids:  # random text may be spelt in more than one way
            assert theirs.score == pytest.approx(ours.score, rel=1e-5)
            assert theirs.log_probability == pytest.approx(ours.log_probability, rel=1e-5)
    assert [each.source for each in scored] == WRITTEN
    with pytest.raises(ValueError, match="shorter"):
        translator.score(WRITTEN, ["a"])
    again = translator.score(iter(WRITTEN), iter([each.text for each in found]), options)
    assert again == scored


def test_blanks_are_read_as_plain_ones_unless_longer_tokens_have_them(translator):
    plain = translator(["A man sleeps in the sun."])
    for blank in ("\u00a0", "\u202f", "\t", "\n", "\u3000"):
        assert translator([f"A man{blank}sleeps in the sun."]) == plain
    (best,) = next(iter(translator.stream(["A man\u00a0sleeps in the sun."])))
    assert best.source == "A man\u00a0sleeps in the sun."
    tokenizer = train_bpe_tokenizer(["12\u00a0Uhr, 7\u00a0Uhr, 5\u00a0Uhr, 10 km"] * 9, 400)
    own = Translator(small_model(vocab_size=len(tokenizer)), tokenizer)
    assert own.source_text(" 9\u00a0Uhr\t10\u00a0km\n") == "9\u00a0Uhr 10 km"


def test_signs_that_the_model_does_not_know_are_normalised():
    translator = Translator.from_pretrained("aiayn-en-de")
    plain = "The office is in the first building... See the café."
    texts = [
        f"\u200e{plain}\u200f",
        plain.replace("ffi", "\ufb03").replace("fi", "\ufb01"),
        plain.replace(" ", "\u200b ").replace("build", "build\u00ad"),
        plain.translate({ord("T"): "\uff34", ord("."): "\uff0e"}),
        plain.replace("...", "…").replace("é", "e\u0301"),
        f"\ufeff {plain} \u2060",
    ]
    assert {translator.source_text(text) for text in texts} == {plain}
    # Signs that it knows stay, and joiners too, which some scripts need.
    assert translator.source_text("“Ça” \u2013 5 €") == "“Ça” \u2013 5 €"
    words = (texts[1].split(), ["Das", "Büro"])
    maps = maps_with_words(translator, texts[1], "Das Büro", words)
    assert maps.source.words[1] == "office" and {*range(10)} <= {*maps.source.word_of}


def test_a_text_without_letters_is_copied(translator, monkeypatch):
    """A model would invent a sentence for it."""
    (forced,) = next(translator.stream(["102"], prefixes=["Der"]))
    assert forced.text.startswith("Der")
    monkeypatch.setattr(translator.engine, "search", None)
    texts = [
        "-",
        " 102 ",
        "...",
        "(",
        "12:30",
        "😀",
        "½ € 3_000",
        "१२३",
        "\u200b",
        "\x07",
        "",
        " \n",
    ]
    assert translator(texts) == [text.strip() for text in texts]
    assert translator(["1\n2"]) == ["1 2"]
    (copied,) = next(translator.stream(["3 - 4"]))
    assert (copied.score, copied.token_ids) == (0.0, ())
    assert aligner(translator, AttentionChoice())(copied) == "0-0 1-1 2-2"


def test_a_translator_follows_a_model_that_is_trained_further(tokenizer):
    torch.manual_seed(0)
    model = small_model(vocab_size=len(tokenizer), dropout=0.5)
    translator, pair = Translator(model, tokenizer), ["the dog sees"]
    before = translator(pair), translator.score(pair, pair)[0].log_probability
    model.train()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight))
    after = translator(pair), [translator.score(pair, pair)[0].log_probability for _ in range(3)]
    other = Translator(model, tokenizer)
    assert after[0] == other(pair) != before[0]
    assert set(after[1]) == {other.score(pair, pair)[0].log_probability} != {before[1]}


def test_a_model_in_training_mode_translates_without_dropout():
    """The bundled model, because a random one hardly depends on its source."""
    translator = Translator.from_pretrained("aiayn-en-de")
    model, texts = translator.model, ["A man repairs a bicycle while two children watch him."]
    expected = translator(texts), translator.score(texts, texts)
    model.train()
    model.model.decoder.eval()
    modes = [module.training for module in model.modules()]
    for _ in range(3):
        assert (translator(texts), translator.score(texts, texts)) == expected
    assert [module.training for module in model.modules()] == modes


def test_a_translator_follows_a_model_to_another_device(tokenizer):
    model = small_model(vocab_size=len(tokenizer))
    translator = Translator(model, tokenizer)
    translator(["We see."])
    model.to("meta")
    assert translator.engine.device == torch.device("meta")


def test_a_saved_model_and_its_twins_give_the_same_translations(translator, model_folder):
    twins = Translator.from_pretrained([model_folder, model_folder])
    assert Translator.from_pretrained(model_folder)(TEXTS) == twins(TEXTS) == translator(TEXTS)
    assert twins.model is twins.models[0]


@pytest.mark.usefixtures("library_adapters")
@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True` and a tied layer")
@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers` to `True`")
def test_loading_merges_adapters_and_unmerged_ones_are_rejected(tmp_path, model_folder, tokenizer):
    model = AutoModelForSeq2SeqLM.from_pretrained(model_folder)
    targets = Translator(model, tokenizer)(WRITTEN)
    torch.manual_seed(0)
    names = ["q_proj", "v_proj", "fc1", "lm_head"]
    model.add_adapter(LoraConfig(target_modules=names, r=3, lora_alpha=30, init_lora_weights=False))
    with pytest.raises(ValueError, match=r"but .*q_proj is a peft\..*Linear that is"):
        Translator(model, tokenizer)(["We see."])
    merged = Translator.from_pretrained(save_folder(model, tokenizer, tmp_path / "adapter"))
    ids = merged.source_tokenizer(WRITTEN, padding=True, return_tensors="pt")
    penalty = {"num_beams": 4, "length_penalty": 1.0}
    expected = model.generate(**ids, **penalty)
    penalty["length_normalization"] = "power"
    assert merged(WRITTEN, **penalty) == decode_lines(tokenizer, expected.tolist())
    assert merged(WRITTEN, **penalty) != targets
    saved = Translator.from_pretrained(save_folder(merged.model, tokenizer, tmp_path / "merged"))
    assert saved(WRITTEN, **penalty) == merged(WRITTEN, **penalty)
    translate = pipeline("aiayn-translation", str(tmp_path / "adapter"), device="cpu")
    with pytest.raises(ValueError, match=r"is a peft\..*Linear that is .*\. Merge adapters first"):
        translate(WRITTEN)
    translate = pipeline("aiayn-translation", merged.model, tokenizer=tokenizer, device="cpu")
    found = [each["translation_text"] for each in translate(WRITTEN, **penalty)]
    assert found == merged(WRITTEN, **penalty)


@pytest.mark.usefixtures("library_adapters")
@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers` to `True`")
@pytest.mark.parametrize(
    ("option", "value", "name", "factor"),
    [
        ("modules_to_save", ["final_layer_norm"], "modules_to_save", 3.0),
        ("trainable_token_indices", {"embed_tokens": [*range(4, 200)]}, "_tokens_delta", -2.0),
    ],
    ids=["layers", "embeddings"],
)
def test_layers_and_rows_trained_beside_an_adapter_are_loaded(
    tmp_path, model_folder, tokenizer, option, value, name, factor
):
    model = AutoModelForSeq2SeqLM.from_pretrained(model_folder)
    model.add_adapter(LoraConfig(target_modules=["q_proj"], r=3, **{option: value}))
    with torch.no_grad():
        for weight_name, weight in model.named_parameters():
            if name in weight_name:
                weight.mul_(factor)
    ids = tokenizer(WRITTEN, padding=True, return_tensors="pt")
    expected = decode_lines(tokenizer, model.generate(**ids, num_beams=1).tolist())
    merged = Translator.from_pretrained(save_folder(model, tokenizer, tmp_path / "adapter"))
    assert merged(WRITTEN, num_beams=1) == expected
    assert merged.model.lm_head.weight is merged.model.get_input_embeddings().weight
    saved = Translator.from_pretrained(save_folder(merged.model, tokenizer, tmp_path / "merged"))
    assert saved(WRITTEN, num_beams=1) == expected


@pytest.mark.usefixtures("library_adapters")
def test_rejects_an_adapter_whose_base_model_lacks_a_weight(tmp_path, model_folder, tokenizer):
    base = shutil.copytree(model_folder, tmp_path / "base")
    model = AutoModelForSeq2SeqLM.from_pretrained(base)
    model.add_adapter(LoraConfig(target_modules=["q_proj"], r=3))
    adapter = save_folder(model, tokenizer, tmp_path / "adapter")
    assert Translator.from_pretrained(adapter)(["We see."])
    weights = load_file(base / "model.safetensors")
    del weights["model.decoder.layers.0.fc1.weight"]
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"base: the weight model.decoder.layers.0.fc1.weight is"):
        Translator.from_pretrained(adapter)


@pytest.mark.usefixtures("library_adapters")
@pytest.mark.parametrize("is_disabled", [False, True])
def test_a_pipeline_does_not_change_the_given_model(model_folder, tokenizer, is_disabled):
    model = AutoModelForSeq2SeqLM.from_pretrained(model_folder)
    torch.manual_seed(0)
    sizes = {"r": 3, "lora_alpha": 30, "init_lora_weights": False}
    whole = ["final_layer_norm"]
    model.add_adapter(LoraConfig(target_modules=["q_proj"], modules_to_save=whole, **sizes))
    if is_disabled:
        model.disable_adapters()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    translate = pipeline("aiayn-translation", model=model, tokenizer=tokenizer, device="cpu")
    with pytest.raises(ValueError, match=r"is a peft\..*Linear that is .*\. Merge adapters first"):
        translate(WRITTEN)
    assert model.state_dict().keys() == before.keys() and model.peft_config
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    half = AutoModelForSeq2SeqLM.from_pretrained(model_folder).half()
    pipeline("aiayn-translation", model=half, tokenizer=tokenizer, device="cpu")
    assert half.dtype == torch.float16


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is:DeprecationWarning")
def test_a_compiled_model_translates_as_the_model_itself(model_folder, tokenizer, translator):
    model = AutoModelForSeq2SeqLM.from_pretrained(model_folder)
    assert Translator(torch.compile(model), tokenizer)(TEXTS) == translator(TEXTS)


def test_rejects_weights_that_are_offloaded_or_of_a_class_of_their_own(
    model_folder, tokenizer, tmp_path
):
    """As torchao has."""
    offloaded = disk_offload(AutoModelForSeq2SeqLM.from_pretrained(model_folder), tmp_path)
    with pytest.raises(ValueError, match="is adapted, quantized or offloaded"):
        Translator(offloaded, tokenizer)(["We see."])

    class Int8Tensor(torch.Tensor):
        pass

    model = small_model(vocab_size=len(tokenizer))
    projection = model.model.encoder.layers[0].fc1
    projection.weight = torch.nn.Parameter(projection.weight.detach().as_subclass(Int8Tensor))
    with pytest.raises(ValueError, match=r"layers\.0\.fc1 is a .* adapted, quantized or offloaded"):
        Translator(model, tokenizer)(TEXTS)


def test_a_target_longer_than_the_position_table_is_cut(narrow, tokenizer, caplog):
    pairs = Dataset.from_dict({"source": ["We see."] * 2, "target": ["Wir.", "der Hund " * 9]})
    first, second = narrow.score(pairs["source"], pairs["target"])
    assert len(second.token_ids) == 9 and second.token_ids[-1] == tokenizer.eos_token_id
    assert re.fullmatch(r"Sentence 2: cut from \d+ to 9 tokens\.", caplog.messages[-1])
    nats = first.log_probability + second.log_probability
    expected = math.exp(-nats / (len(first.token_ids) + 9))
    assert perplexity(narrow, pairs, batch_size=1) == pytest.approx(expected, rel=1e-5)


def test_bfloat16_scores_are_close_to_float32_scores(model_folder):
    """First words are compared only in number: some are close to a tie."""
    dtypes = ("bfloat16", "float32")
    translators = [Translator.from_pretrained(model_folder, dtype=dtype) for dtype in dtypes]
    texts = WRITTEN * 4
    options = {"num_beams": 1, "max_length_factor": 0, "max_length_offset": 3}
    ours, exact = (translate(texts, **options) for translate in translators)
    assert sum(a == b for a, b in zip(ours, exact, strict=True)) >= len(texts) / 2
    scored = (translate.score(texts, exact) for translate in translators)
    scores = [[each.log_probability for each in found] for found in scored]
    assert scores[0] == pytest.approx(scores[1], rel=0.02)
    assert scores[0] != scores[1]


def test_batches_have_similar_lengths_and_respect_their_limits():
    lengths = [3, 9, 4, 9, 1, 30, 2]
    assert batches_by_length(lengths, 3, 20) == [[5], [1, 3], [2, 0, 6], [4]]
    assert batches_by_length(lengths, 64, 10**6) == [[5, 1, 3, 2, 0, 6, 4]]
    assert batches_by_length([], 3, 20) == []


def test_lines_have_a_column_for_each_option():
    found = [Translation("a", "x\ty", -0.5, -1.0, ()), Translation("a", "", -0.75, -2.0, ())]
    assert translation_lines(found) == ["x\ty", ""]
    assert translation_lines(found, 7, True, lambda each: f"<{each.text}>") == [
        "7\tx y\t-0.5000\t<x y>",
        "7\t\t-0.7500\t<>",
    ]


def test_a_tokenizer_that_does_not_fit_is_refused(tokenizer):
    with pytest.raises(ValueError, match=rf"has {len(tokenizer)} entries and the model 31\. Load"):
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
    assert perplexity(translator, pairs) == pytest.approx(expected, rel=1e-5)


def test_flags_load_the_model_with_their_dtype(model_folder):
    flags = ModelFlags(model=[str(model_folder)], device="cpu", dtype="bfloat16")
    assert load_translator(flags).model.dtype == torch.bfloat16
    flags = ModelFlags(model=[str(model_folder)] * 2, device="cpu", dtype="float16")
    halves = load_translator(flags, EngineFlags()).models
    assert [half.dtype for half in halves] == [torch.float32] * 2
    assert all(torch.equal(weight, weight.half().float()) for weight in halves[0].parameters())


def test_an_adapter_that_is_a_pickle_is_rejected(tmp_path, model_folder, tokenizer):
    model = AutoModelForSeq2SeqLM.from_pretrained(model_folder)
    adapted = get_peft_model(model, LoraConfig(target_modules=["q_proj"], r=3))
    adapted.save_pretrained(tmp_path / "adapter", safe_serialization=False)
    tokenizer.save_pretrained(tmp_path / "adapter")
    assert (tmp_path / "adapter" / "adapter_model.bin").is_file()
    with pytest.raises(OSError, match=r"the adapter must be saved as adapter_model\.safetensors"):
        Translator.from_pretrained(tmp_path / "adapter")


def test_a_single_str_is_not_read_as_characters(translator):
    for read in (
        lambda: translator("We see."),
        lambda: translator.stream("We see."),
        lambda: translator.stream(["We see."], prefixes="E"),
        lambda: translator.score("We.", ["Wir."]),
        lambda: translator.score(["We."], "Wir."),
    ):
        with pytest.raises(ValueError, match="must be a list or another iterable of str, got a"):
            read()


def test_a_search_without_a_result_says_why(tokenizer, caplog):
    model = small_model(vocab_size=len(tokenizer))
    model.generation_config.suppress_tokens = list(range(len(tokenizer)))
    assert Translator(model, tokenizer)(["We see."]) == [""]
    assert "Sentence 1: no translation is allowed by the options of the search." in caplog.text


def test_a_prefix_of_a_megabyte_is_cut(tokenizer, caplog, monkeypatch):
    monkeypatch.setattr("modeling_aiayn.translation.translator.MAX_TARGET_TOKENS", 9)
    translator = Translator(small_model(vocab_size=len(tokenizer)), tokenizer)
    options = SearchOptions(num_beams=1, max_length_factor=0.0, max_length_offset=1)
    prefixes = ["ja " * 300, ""]
    (first,), (second,) = translator.stream(["We see.", "We."], options, prefixes=prefixes)
    assert (len(first.token_ids), len(second.token_ids)) == (9, 1)
    assert "Sentence 1, prefix: cut from" in caplog.text and "to 8 tokens" in caplog.text


def test_a_source_without_an_end_is_cut_where_it_is_too_long(translator):
    """OpenNMT-py's sources have no end, so their last word is cut like others."""
    end = translator.source_tokenizer.eos_token_id
    assert translator._cut([5, 6, 7, 8], "x", 3) == [5, 6, 7]
    assert translator._cut([5, 6, 7, end], "x", 3) == [5, 6, end]


@pytest.mark.parametrize("num_beams", [1, 4])
def test_renormalized_probabilities_exclude_suppressed_ids(num_beams, tokenizer):
    """As in OPUS-MT's models: in generate(), in Translator and in scoring."""
    model = small_model(vocab_size=len(tokenizer), lm_head_bias=True)
    with torch.no_grad():
        model.lm_head.bias.zero_()[tokenizer.eos_token_id] = 4.0
        # For some contexts more than for others.
        model.lm_head.weight[tokenizer.pad_token_id] *= 0.2
        model.lm_head.bias[tokenizer.pad_token_id] = 6.0
    decoding = model.generation_config
    decoding.bad_words_ids = [[tokenizer.pad_token_id]]
    decoding.renormalize_logits = True
    translator = Translator(model, tokenizer)
    options = SearchOptions(num_beams=num_beams, length_normalization="power", length_penalty=1.0)
    found = [best for best, *_ in translator.stream(WRITTEN, options)]
    decoding.renormalize_logits = False
    plain = Translator(model, tokenizer)
    assert not plain.engine.rules.excluded_from_softmax
    decoding.renormalize_logits = True
    for text, best in zip(WRITTEN, found, strict=True):
        (whole,) = plain.score([text], [best.text])
        assert whole.token_ids != best.token_ids or whole.log_probability < best.log_probability
        batch = tokenizer([text], return_tensors="pt")
        penalty = {"length_penalty": 1.0} if num_beams > 1 else {}
        with torch.inference_mode():
            ids = model.generate(**batch, num_beams=num_beams, **penalty)[0, 1:].tolist()
        assert list(best.token_ids) == ids[: ids.index(tokenizer.eos_token_id) + 1]
        (forced,) = translator.engine.score([translator.encode(text)], [best.token_ids])
        assert best.log_probability == pytest.approx(forced, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("repetition_penalty", 1.2),
        ("begin_suppress_tokens", [4]),
        ("no_repeat_ngram_size", 2),
        ("min_new_tokens", 5),
        ("early_stopping", True),
    ],
)
def test_rejects_generation_settings_that_translator_lacks(name, value, tokenizer):
    model = small_model(vocab_size=len(tokenizer))
    setattr(model.generation_config, name, value)
    if name == "early_stopping":  # a search of ours may differ, but not one for an imported model
        assert Translator(model, tokenizer)(["We see."])
        model.generation_config.length_normalization = "power"
    with pytest.raises(ValueError, match=f"says {name}=.*, which Translator does not support"):
        Translator(model, tokenizer)(["We see."])


@pytest.mark.parametrize("sizes", [{}, {"decoder_vocab_size": 9}], ids=["one", "two"])
def test_a_model_in_a_subfolder_has_its_own_tokenizers(tokenizer, tmp_path, hub, sizes):
    other = train_word_tokenizer(["one two three four five"] * 2)
    model = small_model(vocab_size=len(tokenizer), **sizes)
    save_folder(model, other, tmp_path)
    save_folder(model, tokenizer, tmp_path / "de")
    if sizes:
        other.save_pretrained(tmp_path / "de" / "target_tokenizer")
    files = {
        str(path.relative_to(tmp_path)): path.read_bytes()
        for path in tmp_path.rglob("*")
        if path.is_file()
    }
    hub.repositories["me/several"] = {"main": ("0" * 40, files)}
    for path, is_hub in ((tmp_path, False), ("me/several", True)):
        found = Translator.from_pretrained(path, hub=is_hub, subfolder="de")
        assert found.source_tokenizer.get_vocab() == tokenizer.get_vocab()
        target = other if sizes else tokenizer
        assert found.target_tokenizer.get_vocab() == target.get_vocab()


@pytest.mark.parametrize("sampling", [{}, {"do_sample": True, "num_beams": 1}], ids=str)
def test_a_prefix_may_contain_suppressed_ids(tokenizer, sampling):
    model = small_model(vocab_size=len(tokenizer))
    given = tokenizer("Der Hund", add_special_tokens=False).input_ids
    model.generation_config.suppress_tokens = given
    model.generation_config.renormalize_logits = True
    translator = Translator(model, tokenizer)
    options = SearchOptions(max_length_factor=0.0, max_length_offset=9, **sampling)
    ((best, *_),) = translator.stream(["We see."], options, prefixes=["Der Hund"])
    assert list(best.token_ids[: len(given)]) == given
    assert not {*best.token_ids[len(given) :]} & {*given}
    (forced,) = translator.engine.score([translator.encode("We see.")], [best.token_ids])
    assert best.log_probability == pytest.approx(forced, rel=1e-5)


FORKED = """
import os, sys
import torch
from datasets import Dataset
from modeling_aiayn.translation import Translator

torch.set_num_threads(2)
translator = Translator.from_pretrained(sys.argv[1])
texts = ["The dog sees.", "We see the old man."] * 6
expected = translator(texts)
pairs = Dataset.from_dict({"en": texts})
found = pairs.map(
    lambda rows: {"de": translator(rows["en"])}, batched=True, batch_size=3, num_proc=2
)
assert list(found["de"]) == expected
"""


@pytest.mark.long
def test_a_translator_works_in_forked_processes(model_folder):
    """Without a remedy the processes wait for threads of their parent for ever."""
    command = [sys.executable, "-c", FORKED, str(model_folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    subprocess.run(command, check=True, timeout=120, cwd=ROOT, env=environment)
