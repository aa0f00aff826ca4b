"""Export to CTranslate2: the same scores and interface, and errors for unsupported models."""

import re
from functools import partial

import pytest
import torch
from conftest import small_model
from test_bundled_model import SENTENCES
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from modeling_aiayn.documents.document import Document
from modeling_aiayn.interop.ctranslate2_export import (
    compare_engines,
    export_ctranslate2,
)
from modeling_aiayn.tokenization import train_word_tokenizer
from modeling_aiayn.translation import Translator
from modeling_aiayn.translation.options import SearchOptions
from modeling_aiayn.translation.segments.word_attention import word_attention

TEXTS = ["The dog sees.", "", "My old friend has given a red apple to the cat.", "We see."]
CONFIGS = {
    "paper": {},
    "pre_norm": {"norm_first": True, "attention_bias": True, "lm_head_bias": True},
    "post_norm_and_final_norm": {"final_norm": True, "activation_function": "gelu_new"},
    "no_final_norm": {"norm_first": True, "final_norm": False, "activation_function": "silu"},
    "learned": {"position_type": "learned", "max_position_embeddings": 90, "position_offset": 3},
    "untied": {"tie_word_embeddings": False, "scale_embedding": False, "layer_norm_eps": 1e-2},
    "positions": {"position_base": 77.0, "position_offset": 2, "activation_function": "gelu"},
}


def exported(translator, folder, quantization="float32"):
    export_ctranslate2(translator, folder, quantization)
    return Translator.from_pretrained(folder, engine="ctranslate2")


@pytest.mark.parametrize("name", CONFIGS)
def test_scores_are_the_same(name, tokenizer, tmp_path):
    """The model has more embeddings than the tokenizer has tokens, as padded vocabularies do."""
    model = small_model(vocab_size=len(tokenizer) + 3, **CONFIGS[name])
    translator = Translator(model, tokenizer)
    other = exported(translator, tmp_path / "ct2")
    targets = ["Der Hund sieht.", "Ja.", "Mein Freund hat einen Apfel gegeben.", "Wir."]
    expected = translator.score(TEXTS, targets)
    for ours, theirs in zip(expected, other.score(TEXTS, targets), strict=True):
        assert theirs.log_probability == pytest.approx(ours.log_probability, rel=1e-5)
        assert theirs.score == pytest.approx(ours.score, rel=1e-5)


def test_attention_is_that_of_the_last_layer_and_places_markup(tokenizer, tmp_path):
    sizes = {"decoder_layers": 3, "decoder_attention_heads": 4, "encoder_attention_heads": 2}
    model = small_model(vocab_size=len(tokenizer), d_model=16, **sizes).eval()
    translator = Translator(model, tokenizer)
    other = exported(translator, tmp_path / "ct2")
    source, target = "My old friend sees the dog.", "Mein Freund hat einen Apfel gegeben."
    ids, labels = translator.encode(source), translator.encode_target(target)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(
            torch.tensor([ids]), labels=torch.tensor([labels]), output_attentions=True
        ).cross_attentions
    others, more = translator.encode(target), translator.encode_target(source)
    found, _ = other.engine.attention([ids, others], [labels, more])
    torch.testing.assert_close(found, output[-1][0].mean(0), rtol=1e-5, atol=1e-6)
    everything = torch.stack([weights[0] for weights in output]).mean((0, 1))
    ours, _ = translator.engine.attention([ids, others], [labels, more])
    torch.testing.assert_close(ours, everything)
    shares = word_attention(other, source, target)
    assert shares.shape == (7, 7)
    torch.testing.assert_close(shares.sum(-1), torch.ones(7))
    document = Document("<p>My <b>old friend</b> sees.</p>", "html", "en")
    written = document.translated(other(document.sentences), partial(word_attention, other))
    assert written.startswith("<p>") and written.count("<b>") == written.count("</b>") == 1


@pytest.mark.parametrize("positions", [9, None])
def test_no_text_is_longer_than_the_positions_of_an_export(tokenizer, tmp_path, caplog, positions):
    learned = {"position_type": "learned", "max_position_embeddings": positions}
    model = small_model(vocab_size=len(tokenizer), **(learned if positions else {}))
    other = exported(Translator(model, tokenizer), tmp_path / "ct2")
    options = {} if positions else {"max_length_offset": 3000}
    options = SearchOptions(num_beams=1, **options)
    found = [best for best, *_ in other.stream(["We see.", "the dog " * 600], options)]
    assert f"to {positions or 512} tokens" in caplog.text
    assert [len(best.token_ids) for best in found] == [positions or 2048] * 2
    (scored,) = other.score(["We see."], ["der Hund " * 1200])
    assert len(scored.token_ids) == (positions or 2048)


def trained_to_end(tokenizer, **overrides):
    """Make a model that ends its sentences; random weights would reach the length limit."""
    model = small_model(vocab_size=len(tokenizer), lm_head_bias=True, **overrides)
    with torch.no_grad():
        model.lm_head.bias.zero_()[tokenizer.eos_token_id] = 4.0
    return model


@pytest.fixture(scope="module")
def translator(tokenizer):
    return Translator(trained_to_end(tokenizer), tokenizer)


@pytest.fixture(scope="module")
def other(translator, tmp_path_factory):
    """The same model, exported."""
    return exported(translator, tmp_path_factory.mktemp("exported") / "ct2")


def same_ids(translators, texts, **given):
    """Ids that both translators find by a search with one beam."""
    length = given.pop("options", {})
    options = SearchOptions(num_beams=1, **length)
    ours, theirs = (
        [best.token_ids for best, *_ in each.stream(texts, options, **given)]
        for each in translators
    )
    assert theirs == ours
    return ours


def test_greedy_translations_are_the_same(translator, other):
    options = SearchOptions(num_beams=1, length_normalization="power")
    ours, theirs = (list(each.stream(TEXTS, options)) for each in (translator, other))
    for (mine,), (its,) in zip(ours, theirs, strict=True):
        assert (its.text, its.token_ids) == (mine.text, mine.token_ids)
        assert its.score == pytest.approx(mine.score, rel=1e-4)
    assert other(TEXTS, num_beams=1) == [mine.text for (mine,) in ours]


@pytest.mark.parametrize(
    ("given", "prefix"),
    [
        ({}, ""),
        ({}, "Der Hund"),
        ({"min_length": 6}, ""),
        ({"min_length": 9, "no_repeat_ngram_size": 1}, "Der"),
        ({"min_length": 40, "max_length_factor": 0.0, "max_length_offset": 5}, ""),
    ],
    ids=str,
)
def test_hypotheses_have_their_scores_and_are_ranked_by_them(translator, other, given, prefix):
    """Beam searches end at other times, so they may find others; both score them alike."""
    options = SearchOptions(num_beams=3, nbest=3, length_penalty=0.4, **given)
    sources = [text for text in TEXTS if text]
    streamed = other.stream(sources, options, prefixes=[prefix] * len(sources))
    for source, found in zip(sources, streamed, strict=True):
        scores = [each.score for each in found]
        assert scores == sorted(scores, reverse=True)
        ids = translator.encode(source)
        forced = translator.engine.score([ids] * len(found), [each.token_ids for each in found])
        for each, log_probability in zip(found, forced, strict=True):
            assert each.log_probability == pytest.approx(log_probability, rel=1e-4)
            divisor = ((5 + len(each.token_ids)) / 6) ** 0.4
            assert each.score == pytest.approx(log_probability / divisor, rel=1e-4)


def test_hypotheses_that_a_limit_makes_equal_are_one(other):
    options = SearchOptions(num_beams=4, nbest=4, max_length_factor=0, max_length_offset=2)
    for found in other.stream([text for text in TEXTS if text], options):
        ids = [each.token_ids for each in found]
        assert len(set(ids)) == len(ids)


def test_options_mean_the_same(translator, other):
    for options in ({"min_length": 4}, {"no_repeat_ngram_size": 1, "min_length": 5}):
        same_ids((translator, other), TEXTS, options=options, prefixes=["Der"] * 4)


def test_half_precision_gives_nearly_the_same_scores(translator, tmp_path):
    other = exported(translator, tmp_path / "ct2", "float16")
    report = compare_engines(translator, other, TEXTS, SearchOptions(num_beams=2))
    assert 1e-6 < report.score_difference < 5e-3


def test_each_sentence_has_its_own_limit_and_prefix(tokenizer, tmp_path):
    translator = Translator(small_model(vocab_size=len(tokenizer)), tokenizer)
    other = exported(translator, tmp_path / "ct2")
    texts = ["The dog sees.", "We see the dog and the cat and the old man.", "We see."]
    prefixes = ["", "Der alte Mann sieht", "Wir"]
    options = {"max_length_factor": 0.3, "max_length_offset": 1}
    ours = same_ids((translator, other), texts, options=options, prefixes=prefixes)
    assert len({len(ids) for ids in ours}) == 3
    given = tokenizer(prefixes[1], add_special_tokens=False).input_ids
    assert ours[1] == (*given, tokenizer.eos_token_id)


def test_source_and_target_may_name_their_ends_differently(tmp_path):
    source = train_word_tokenizer(["a b c d"] * 2)
    target = train_word_tokenizer(["e f g h i"] * 2)
    text = target.backend_tokenizer.to_str().replace("</s>", "[END]")
    special = {"eos_token": "[END]", "bos_token": None, "unk_token": None}
    target = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(text), pad_token=target.pad_token, **special
    )
    source.eos_token = source.unk_token = None
    model = small_model(vocab_size=len(source), decoder_vocab_size=len(target))
    translator = Translator(model, source, target)
    other = exported(translator, tmp_path / "ct2")
    (ours,), (theirs,) = (each.score(["a c"], ["e i"]) for each in (translator, other))
    assert theirs.log_probability == pytest.approx(ours.log_probability, rel=1e-5)
    same_ids((translator, other), ["a c"])


@pytest.mark.parametrize("is_renormalized", [False, True])
def test_export_names_ids_without_a_token_and_excludes_suppressed_ones(
    tokenizer, tmp_path, is_renormalized
):
    """Suppressed ids have no token, and take part in the softmax unless logits are renormalized."""
    model = trained_to_end(tokenizer, tie_word_embeddings=False)
    model.resize_token_embeddings(len(tokenizer) + 3)
    with torch.no_grad():
        model.lm_head.bias[-2:] = 3.0
    decoding = model.generation_config
    decoding.suppress_tokens = [len(tokenizer) + 1, len(tokenizer) + 2]
    decoding.renormalize_logits = is_renormalized
    translator = Translator(model, tokenizer)
    other = exported(translator, tmp_path / "ct2")
    options = SearchOptions(num_beams=1)
    streams = (each.stream(TEXTS, options) for each in (translator, other))
    for ours, theirs in zip(*streams, strict=True):
        assert theirs[0].token_ids == ours[0].token_ids
        assert theirs[0].log_probability == pytest.approx(ours[0].log_probability, rel=1e-4)


def test_an_export_with_another_vocabulary_is_refused(tokenizer, tmp_path):
    exported(Translator(small_model(vocab_size=len(tokenizer)), tokenizer), tmp_path / "ct2")
    train_word_tokenizer(["a b"] * 2).save_pretrained(tmp_path / "ct2" / "source_tokenizer")
    with pytest.raises(ValueError, match="its tokenizers are not those that it was exported with"):
        Translator.from_pretrained(tmp_path / "ct2", engine="ctranslate2")


@pytest.mark.parametrize("quantization", ["int8", "int16"])
def test_a_quantized_export_of_a_trained_model_is_close(quantization, tmp_path):
    """Without VNNI instructions CTranslate2 is coarser; a random model's scores would differ more."""
    translator = Translator.from_pretrained("aiayn-en-de")
    before = {name: weight.clone() for name, weight in translator.model.state_dict().items()}
    other = exported(translator, tmp_path / "ct2", quantization)
    after = translator.model.state_dict()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    texts = SENTENCES["aiayn-en-de"]
    report = compare_engines(translator, other, texts, SearchOptions(num_beams=4))
    assert report.texts == len(texts) and report.identical >= len(texts) / 2
    assert 1e-5 < report.score_difference < 0.2


def test_the_script_exports_compares_and_translates(run, model_folder, tmp_path):
    (tmp_path / "texts").write_text("The dog sees.\nWe see.\n")
    folder = tmp_path / "ct2"
    flags = ("--file", tmp_path / "texts", "--num_beams", 2)
    export = ("export_ctranslate2.py", "--model", model_folder, "--output")
    code, out, err = run(*export, folder, *flags)
    assert code == 0, err
    assert f"{folder} (float32): " in out
    assert float(re.search(r"scores within (\S+) nats", out)[1]) < 1e-5
    assert int(re.search(r"(\d) of 2 translations identical", out)[1]) > 0
    code, out, err = run(*export, tmp_path / "wrong", "--do_sample", "true")
    assert (code, out) == (1, "") and "does not support do_sample" in err
    assert not (tmp_path / "wrong").exists()
    short = ("--max_length_factor", 0, "--max_length_offset", 3, "--text", "We see.")
    code, out, err = run("translate.py", "--engine", "ctranslate2", "--model", folder, *short)
    assert code == 0 and len(out.splitlines()) == 1, err


def test_export_uses_the_end_token_of_the_generation_config(tokenizer, tmp_path):
    """The tokenizer has another end token; a limit of one token works too."""
    model = small_model(vocab_size=len(tokenizer), lm_head_bias=True)
    with torch.no_grad():
        model.lm_head.bias.zero_()[5] = 4.0
    model.generation_config.eos_token_id = model.config.eos_token_id = 5
    translator = Translator(model, tokenizer)
    other = exported(translator, tmp_path / "ct2")
    for options in ({}, {"max_length_factor": 0.0, "max_length_offset": 1}):
        ours = same_ids((translator, other), ["We see."], options=options)
        assert ours[0].count(5) == 1 and ours[0][-1] == 5


def test_a_translator_that_cannot_be_exported_leaves_no_folder(tokenizer, tmp_path):
    model, ends, penalized = (small_model(vocab_size=len(tokenizer)) for _ in range(3))
    ends.generation_config.eos_token_id = [2, 3]
    penalized.generation_config.repetition_penalty = 1.2
    wide = small_model(vocab_size=len(tokenizer), head_dim=7)
    for models, message in (
        ([model, model], "needs a translator of one model, got an ensemble of 2"),
        (ends, r"exactly one eos_token_id, got \[2, 3\]"),
        (penalized, r"says repetition_penalty=1\.2"),
        (wide, "needs head_dim = d_model / encoder_attention_heads, got head_dim=7, d_model=12"),
    ):
        with pytest.raises(ValueError, match=message):
            export_ctranslate2(Translator(models, tokenizer), tmp_path / "new", "float32")
    assert not (tmp_path / "new").exists()
    (tmp_path / "kept").write_text("x")
    with pytest.raises(FileExistsError, match="exists and is not empty"):
        export_ctranslate2(Translator(model, tokenizer), tmp_path, "float32")


def test_an_exported_model_in_a_forked_process_is_an_error(other, monkeypatch):
    """Its threads would be waited for, for ever."""
    monkeypatch.setattr("os.getpid", lambda: -1)
    for call in (other, lambda texts: other.score(texts, texts)):
        with pytest.raises(ValueError, match="threads do not exist in a forked process"):
            call(TEXTS)
