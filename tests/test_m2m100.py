"""Import of M2M-100, NLLB-200 and SMaLL-100: many languages in one model."""

import json
import math
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import ctranslate2
import pytest
import torch
from ctranslate2.converters import TransformersConverter
from datasets import Dataset
from foreign_peers import marian_tokenizer, nllb_folder, nllb_tokenizer, train_pieces
from starlette.testclient import TestClient
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    M2M100Config,
    M2M100ForConditionalGeneration,
    M2M100Tokenizer,
    MarianConfig,
    MarianMTModel,
    MarianTokenizer,
    NllbMoeConfig,
    NllbMoeForConditionalGeneration,
    NllbTokenizer,
)

from modeling_aiayn.commands.flags import ModelFlags, SourceFlags, sentence_preparation
from modeling_aiayn.data.embedded_corpus import generate_pairs
from modeling_aiayn.documents.document import Document
from modeling_aiayn.inspection.alignment import aligner, maps_with_words
from modeling_aiayn.inspection.attention_weights import AttentionChoice, attention_maps
from modeling_aiayn.interop.ctranslate2_export import export_ctranslate2
from modeling_aiayn.interop.importing import import_model
from modeling_aiayn.interop.m2m100 import M2M100Options, read_m2m100
from modeling_aiayn.interop.marian import read_marian
from modeling_aiayn.saved.languages import iso_639, known_language, set_languages
from modeling_aiayn.serving.batching import ModelThread
from modeling_aiayn.serving.service import Service, every_direction, make_app, served_model
from modeling_aiayn.tokenization import train_word_tokenizer
from modeling_aiayn.training.data import encode_pairs
from modeling_aiayn.translation import Translator
from modeling_aiayn.translation.evaluation import perplexity
from modeling_aiayn.translation.segments.word_attention import word_attention
from modeling_aiayn.translation.translate_file import translate_file
from modeling_aiayn.translation.translator import Translation

GREEK = str.maketrans("abdefghiklmnoprstuvwyz", "αβδεφγηικλμνοπρστυβωυζ")
CYRILLIC = str.maketrans("abdefghiklmnoprstuvwz", "абдефгхиклмнопрстувшз")
# The codes of the two families of models.
CODES = {
    "en": "eng_Latn",
    "de": "deu_Latn",
    "el": "ell_Grek",
    "ru": "rus_Cyrl",
}


def sentences(split, count):
    """Sentences of four languages; those of two are spelt in the letters of another script."""
    pairs = generate_pairs(split, count)
    english, german = (
        [getattr(pair, side).lower() for pair in pairs] for side in ("source", "target")
    )
    return {
        "en": english,
        "de": german,
        "el": [text.translate(GREEK) for text in english],
        "ru": [text.translate(CYRILLIC) for text in german],
    }


DIRECTIONS = [(source, target) for source in CODES for target in CODES if source != target]


def m2m_tokenizer(folder, texts):
    """A tokenizer with pieces of SentencePiece, as M2M-100's has."""
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *train_pieces(folder, "pieces", texts, 150)]
    (folder / "vocab.json").write_text(json.dumps({piece: n for n, piece in enumerate(pieces)}))
    return M2M100Tokenizer(
        str(folder / "vocab.json"), str(folder / "pieces.spm"), src_lang="en", tgt_lang="de"
    )


def tagged(kind, tokenizer, texts, source, target):
    """A batch as the kind of model gets it, and the token that its translation starts with."""
    codes = {"source": source, "target": target}
    codes = codes if kind in ("m2m", "small") else {key: CODES[code] for key, code in codes.items()}
    tokenizer.src_lang = codes["target" if kind == "small" else "source"]
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    if kind == "small":
        return batch, None
    tag = f"__{target}__" if kind == "m2m" else codes["target"]
    return batch, tokenizer.convert_tokens_to_ids(tag)


def trained_a_little(kind, config, tokenizer, texts):
    """Train on all directions until most translations end."""
    torch.manual_seed(0)
    model = M2M100ForConditionalGeneration(config).train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for step in range(180):
        source, target = DIRECTIONS[step % len(DIRECTIONS)]
        batch, tag = tagged(kind, tokenizer, texts[source], source, target)
        labels = tokenizer(
            texts[target], padding=True, add_special_tokens=False, return_tensors="pt"
        )
        labels = labels.input_ids
        end = torch.full((len(labels), 1), config.eos_token_id)
        start = end if tag is None else torch.cat((end, torch.full_like(end, tag)), 1)
        inputs = torch.cat((start, labels), 1)
        wanted = torch.cat((inputs[:, 1:], torch.full_like(end, config.pad_token_id)), 1)
        rows = torch.arange(len(wanted))
        wanted[rows, (wanted != config.pad_token_id).sum(1)] = config.eos_token_id
        wanted[wanted == config.pad_token_id] = -100
        optimizer.zero_grad()
        model(**batch, decoder_input_ids=inputs, labels=wanted).loss.backward()
        optimizer.step()
    return model.eval()


# The others share their tokenizers with one of these.
LEGACY, M2M = (pytest.param(kind, marks=pytest.mark.long) for kind in ("nllb-legacy", "m2m"))


@pytest.fixture(scope="module", params=["nllb", "small", LEGACY, M2M])
def peer(request, tmp_path_factory):
    """A small model's folder with the files of its family."""
    folder = tmp_path_factory.mktemp(request.param)
    texts = sentences("train", 8)
    every = [text for language in texts.values() for text in language]
    if request.param.startswith("nllb"):
        tokenizer = nllb_tokenizer(every, request.param.endswith("legacy"))
        size = len(tokenizer)
    else:
        tokenizer = m2m_tokenizer(folder, every)
        # Languages have the ids behind the pieces; then come some of no meaning.
        size = tokenizer.encoder_size + len(tokenizer.lang_code_to_id) + 8
    config = M2M100Config(
        vocab_size=size, d_model=48, max_position_embeddings=200, dropout=0.0, init_std=0.1,
        encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=48, encoder_layerdrop=0.0,
        decoder_layers=1, decoder_attention_heads=2, decoder_ffn_dim=40, decoder_layerdrop=0.0,
    )  # fmt: skip
    model = trained_a_little(request.param, config, tokenizer, texts)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    if request.param == "small":  # its own class is code that nobody runs
        path = folder / "model" / "tokenizer_config.json"
        settings = json.loads(path.read_text()) | {"tokenizer_class": "SMALL100Tokenizer"}
        settings["auto_map"] = {"AutoTokenizer": ["tokenization_small100.SMALL100Tokenizer", None]}
        path.write_text(json.dumps(settings))
    return request.param, folder / "model"


def test_every_direction_is_the_same_in_plain_transformers(peer, tmp_path):
    kind, folder = peer
    report = import_model(read_m2m100(folder), tmp_path / "ours", sources=50)
    assert (report.greedy, report.beam) == (50, 50)
    theirs = M2M100ForConditionalGeneration.from_pretrained(folder).eval()
    ours = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours").eval()
    family = NllbTokenizer if kind.startswith("nllb") else M2M100Tokenizer
    before, after = (
        family.from_pretrained(folder),
        AutoTokenizer.from_pretrained(tmp_path / "ours"),
    )
    assert type(after) is family
    texts = {code: some[:4] for code, some in sentences("train", 8).items()}
    ended = 0
    for source, target in DIRECTIONS:
        batch, tag = tagged(kind, before, texts[source], source, target)
        again, _ = tagged(kind, after, texts[source], source, target)
        assert batch.input_ids.tolist() == again.input_ids.tolist()
        options = {"num_beams": 4, "max_new_tokens": 40, "forced_bos_token_id": tag}
        found = ours.generate(**again, **options)
        assert found.tolist() == theirs.generate(**batch, **options).tolist()
        ended += int((found == 2).sum(1).gt(1).sum())
    assert ended > 12  # of 48


def test_a_mixture_of_experts_is_refused(tmp_path):
    config = NllbMoeConfig(
        vocab_size=20, d_model=8, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=8, decoder_ffn_dim=8, num_experts=2,
        encoder_sparse_step=2, decoder_sparse_step=2,
    )  # fmt: skip
    NllbMoeForConditionalGeneration(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="nllb-moe"):
        read_m2m100(tmp_path)


def test_translator_mixes_directions_as_generate_does_each(peer, tmp_path):
    """Scores too: the first token, the language's tag, has the probability 1."""
    kind, folder = peer
    import_model(read_m2m100(folder), tmp_path / "ours", sources=2)
    translator = Translator.from_pretrained(tmp_path / "ours")
    model = M2M100ForConditionalGeneration.from_pretrained(folder).eval()
    tokenizer = (NllbTokenizer if kind.startswith("nllb") else M2M100Tokenizer).from_pretrained(
        folder
    )
    names = CODES if kind.startswith("nllb") else dict(zip(CODES, CODES, strict=True))
    assert set(names.values()) <= set(translator.languages)
    texts = {code: some[:4] for code, some in sentences("train", 8).items()}
    compared = 0
    options = {"length_normalization": "power", "max_length_factor": 0.0, "max_length_offset": 40}
    for source in CODES:
        targets = [target for target in CODES if target != source]
        given = [texts[source][n] for n, _ in enumerate(targets)]
        mixed = translator(
            given, source_lang=names[source], target_lang=[names[code] for code in targets],
            num_beams=4, length_penalty=1.0, **options,
        )  # fmt: skip
        for text, target, found in zip(given, targets, mixed, strict=True):
            batch, tag = tagged(kind, tokenizer, [text], source, target)
            ids = model.generate(
                **batch, forced_bos_token_id=tag, num_beams=4, length_penalty=1.0, max_length=41
            )
            if int((ids == 2).sum()) > 1:  # at the limit, ours adds an end
                first = 1 if tag is None else 2
                assert found == tokenizer.decode(ids[0, first:], skip_special_tokens=True)
                compared += 1
    assert compared > 6  # of 12


def test_the_command_takes_the_languages_and_refuses_others(peer, tmp_path, run):
    kind, folder = peer
    import_model(read_m2m100(folder), tmp_path / "ours", sources=2)
    source, target = [CODES[code] if kind.startswith("nllb") else code for code in ("en", "ru")]
    texts = sentences("train", 8)["en"][:3]
    (tmp_path / "texts").write_text("\n".join([*texts, ""]))
    flags = ["--model", str(tmp_path / "ours"), "--input", str(tmp_path / "texts")]
    flags += ["--output", str(tmp_path / "out"), "--num_beams", "2"]
    code, _, err = run("translate.py", *flags, "--source_lang", source, "--target_lang", target)
    assert code == 0, err
    translator = Translator.from_pretrained(
        tmp_path / "ours", source_lang=source, target_lang=target
    )
    expected = translator(texts, num_beams=2)
    assert (tmp_path / "out").read_text().splitlines() == expected
    assert translator(texts, target_lang=[target] * 3, num_beams=2) == expected
    for languages in (
        {"source_lang": "Klingon"},
        {"target_lang": "xx"},
        {"target_lang": ["ru", "de", "xx"]},
    ):
        with pytest.raises(ValueError, match=f"of the model's {len(translator.languages)} lang"):
            translator(texts, **languages)
    with pytest.raises(ValueError, match=r"such as .*got None"):
        Translator.from_pretrained(tmp_path / "ours")(texts)
    with pytest.raises(ValueError, match="has one direction"):
        Translator.from_pretrained("aiayn-en-de")(texts, target_lang=target)


def imported(peer, folder, source="en", target="ru", **options):
    """A translator of the imported peer, its names of languages, and the peer with its tokenizer."""
    kind, original = peer
    import_model(read_m2m100(original), folder / "ours", sources=2)
    is_nllb = kind.startswith("nllb")
    names = CODES if is_nllb else {code: code for code in CODES}
    translator = Translator.from_pretrained(
        folder / "ours", source_lang=names[source], target_lang=names[target], **options
    )
    tokenizer = (NllbTokenizer if is_nllb else M2M100Tokenizer).from_pretrained(original)
    model = M2M100ForConditionalGeneration.from_pretrained(original).eval()
    return translator, names, model, tokenizer


def test_given_translations_are_scored_as_by_the_peer(peer, tmp_path):
    """The tag of the target has the probability 1: nobody has a choice."""
    translator, _, model, tokenizer = imported(peer, tmp_path)
    texts = sentences("train", 8)
    sources, targets = texts["en"][:5], texts["ru"][:5]
    found = translator.score(sources, targets)
    for source, target, scored in zip(sources, targets, found, strict=True):
        batch, tag = tagged(peer[0], tokenizer, [source], "en", "ru")
        ids = tokenizer(target, add_special_tokens=False).input_ids
        inputs = [2, *([] if tag is None else [tag]), *ids]
        logits = model(**batch, decoder_input_ids=torch.tensor([inputs])).logits[0]
        wanted = [*ids, 2]
        picked = logits[-len(wanted) :].log_softmax(-1)[range(len(wanted)), wanted]
        assert scored.log_probability == pytest.approx(picked.sum().item(), rel=1e-5)
        assert list(scored.token_ids) == [*inputs[1:], 2]
    tokens = sum(len(x.token_ids) - (peer[0] != "small") for x in found)
    total = sum(x.log_probability for x in found)
    pairs = Dataset.from_dict({"source": sources, "target": targets})
    assert perplexity(translator, pairs) == pytest.approx(math.exp(-total / tokens))
    (best,) = next(translator.stream(sources[:1]))
    (again,) = translator.score(sources[:1], [best.text])
    if again.token_ids == best.token_ids:
        assert again.log_probability == pytest.approx(best.log_probability, rel=1e-5)


def test_attention_belongs_to_words_and_never_to_tags(peer, tmp_path):
    translator, *_ = imported(peer, tmp_path)
    source, target = (sentences("train", 8)[code][1] for code in ("en", "ru"))
    words = (source.split(), target.split())
    given = maps_with_words(translator, source, target, words)
    shown = attention_maps(translator, source, target)
    tags = 2 if peer[0] == "nllb-legacy" else 1
    for tokens, text in ((given.source, source), (given.target, target), (shown.source, source)):
        spelt = [""] * len(text.split())
        for token, word in zip(tokens.tokens, tokens.word_of, strict=True):
            if word is not None:
                spelt[word] += token.removeprefix("▁")
        assert spelt == text.split()
    legacy, small = peer[0] == "nllb-legacy", peer[0] == "small"
    assert [word is None for word in shown.source.word_of[:1]] == [not legacy]
    assert shown.source.word_of[-tags:] == [None] * tags
    assert [word is None for word in given.target.word_of[:1]] == [not small]
    (best,) = next(translator.stream([source]))
    links = aligner(translator, AttentionChoice())(best).split()
    last = len(source.split()) - 1, len(best.text.split()) - 1
    assert links and all(
        int(n) <= end for link in links for n, end in zip(link.split("-"), last, strict=True)
    )
    document = Document(f"<p>the <b>dog</b> {source}</p>", "html", "en")
    attention = partial(word_attention, translator)
    html = document.translated(translator(document.sentences), attention)
    assert html.count("<b>") == 1


def test_ctranslate2_gives_the_same_in_every_direction(peer, tmp_path):
    translator, names, *_ = imported(peer, tmp_path)
    export_ctranslate2(translator, tmp_path / "ct2", "float32")
    other = Translator.from_pretrained(tmp_path / "ct2", engine="ctranslate2")
    assert other.languages == translator.languages
    texts, same = sentences("train", 8), 0
    for source, target in DIRECTIONS:
        languages = (names[source], names[target])
        ours, theirs = translator.directed(languages), other.directed(languages)
        mine, found = ours(texts[source][:4]), theirs(texts[source][:4])
        same += sum(map(str.__eq__, mine, found))
        for a, b in zip(
            ours.score(texts[source][:4], mine), theirs.score(texts[source][:4], mine), strict=True
        ):
            assert b.log_probability == pytest.approx(a.log_probability, rel=1e-5)
    assert same > 40  # of 48; its search may end earlier


def test_ctranslate2s_own_converter_writes_the_same_model(tmp_path):
    nllb_folder(tmp_path / "peer")
    import_model(read_m2m100(tmp_path / "peer"), tmp_path / "ours", sources=2)
    languages = {"source_lang": "eng_Latn", "target_lang": "deu_Latn"}
    translator = Translator.from_pretrained(tmp_path / "ours", **languages)
    export_ctranslate2(translator, tmp_path / "ct2", "float32")
    TransformersConverter(str(tmp_path / "peer")).convert(str(tmp_path / "own"))
    tokenizer = translator.source_tokenizer
    texts = [pair.source for pair in generate_pairs("test", 20)]
    sources = [tokenizer.convert_ids_to_tokens(translator.encode(text)) for text in texts]
    found = [
        ctranslate2.Translator(str(tmp_path / name)).translate_batch(
            sources, [["deu_Latn"]] * 20, beam_size=4, max_decoding_length=15, return_scores=True
        )
        for name in ("ct2", "own")
    ]
    for ours, theirs in zip(*found, strict=True):
        assert ours.hypotheses == theirs.hypotheses
        assert ours.scores == pytest.approx(theirs.scores, rel=1e-5)


@pytest.mark.parametrize("peer", [LEGACY, "small"], indirect=True)
def test_training_reads_and_writes_the_tags_of_its_direction(peer, tmp_path, run):
    translator, names, _, tokenizer = imported(peer, tmp_path)
    texts = sentences("train", 40)
    pairs = Dataset.from_dict({"source": texts["de"], "target": texts["el"]})
    source = AutoTokenizer.from_pretrained(tmp_path / "ours")
    set_languages(source, names["de"], names["el"])
    encoded = encode_pairs(pairs, source, source, 256, "pairs")
    batch, tag = tagged(peer[0], tokenizer, texts["de"][:1], "de", "el")
    assert encoded["input_ids"][0] == batch.input_ids[0].tolist()
    end = tokenizer(texts["el"][0], add_special_tokens=False).input_ids
    assert encoded["labels"][0] == [*([] if tag is None else [tag]), *end, 2]
    for code in ("de", "el"):
        (tmp_path / f"train.{names[code]}").write_text("\n".join([*texts[code], ""]))
    flags = ["--start_from", str(tmp_path / "ours"), "--lora_rank", "2", "--max_steps", "20"]
    for name in ("train", "validation", "test"):
        flags += [f"--{name}_file", str(tmp_path / "train")]
    flags += ["--source_lang", names["de"], "--target_lang", names["el"], "--use_cpu", "true"]
    flags += ["--predict_with_generate", "true", "--output_dir", str(tmp_path / "adapter")]
    flags += ["--learning_rate", "1e-2", "--lr_scheduler_type", "linear", "--seed", "1"]
    code, out, err = run("train_translation.py", *flags)
    assert code == 0, err
    assert "before" in out
    trained = Translator.from_pretrained(tmp_path / "adapter")  # it knows its direction
    assert trained.direction() == (names["de"], names["el"])
    before, after = (x.directed(trained.direction()) for x in (translator, trained))
    given = (texts["de"], texts["el"])
    worse, better = (
        sum(found.log_probability for found in some.score(*given)) for some in (before, after)
    )
    assert better > worse + 1
    # The tokenizer says so to transformers alone, too.
    alone = AutoTokenizer.from_pretrained(tmp_path / "adapter")
    assert alone("a").input_ids == translator.directed(trained.direction()).encode("a")
    # Other directions are still there.
    assert len(trained(texts["en"][:1], source_lang=names["en"], target_lang=names["ru"])) == 1


@pytest.mark.parametrize("peer", [M2M], indirect=True)
def test_a_forced_first_token_is_a_language_and_only_one(peer, tmp_path):
    translator, _, _, tokenizer = imported(peer, tmp_path)
    texts = sentences("train", 8)["en"][:4]
    expected = translator(texts)
    translator.model.generation_config.forced_bos_token_id = tokenizer.get_lang_id("ru")
    translator.model.save_pretrained(tmp_path / "forced")
    tokenizer.save_pretrained(tmp_path / "forced")
    forced = Translator.from_pretrained(tmp_path / "forced", source_lang="en")
    assert forced.direction() == ("en", "ru")
    assert forced(texts) == expected != forced(texts, target_lang="de")
    # A model without languages begins with the token, too.
    plain = Translator(forced.model, train_word_tokenizer(texts, min_frequency=1))
    best = [best for best, *_ in plain.stream(texts)]
    assert {found.token_ids[0] for found in best} == {tokenizer.get_lang_id("ru")}
    (scored,) = plain.score(texts[:1], ["the dog"])
    assert scored.token_ids[0] == tokenizer.get_lang_id("ru")
    batch = tokenizer(texts[:2], return_tensors="pt", padding=True)
    tags = [tokenizer.get_lang_id(code) for code in ("de", "ru")]
    with pytest.raises(ValueError, match="forced_bos_token_id must be one id"):
        forced.model.generate(**batch, forced_bos_token_id=tags)


@pytest.mark.parametrize("peer", ["nllb"], indirect=True)
def test_a_shortlist_is_for_one_direction(peer, tmp_path, run):
    translator, names, *_ = imported(peer, tmp_path, target="de")
    texts = sentences("train", 8)
    for code in ("en", "de"):
        (tmp_path / f"pairs.{names[code]}").write_text("\n".join([*texts[code], ""]))
    languages = ["--source_lang", names["en"], "--target_lang", names["de"]]
    flags = ["--model", str(tmp_path / "ours"), *languages, "--file", str(tmp_path / "pairs")]
    code, _, err = run("make_shortlist.py", *flags, "--output", str(tmp_path / "s.safetensors"))
    assert code == 0, err
    short = Translator.from_pretrained(tmp_path / "ours", shortlist=tmp_path / "s.safetensors")
    short = short.directed((names["en"], names["de"]))
    assert short(texts["en"]) == translator(texts["en"])
    with pytest.raises(ValueError, match=r"is for .*eng_Latn.*deu_Latn.*, got"):
        short(texts["en"], target_lang=names["ru"])


def test_a_tag_in_a_text_is_text(peer, tmp_path):
    translator, names, _, tokenizer = imported(peer, tmp_path)
    tag = names["de"] if peer[0].startswith("nllb") else "__de__"
    for text in (f"{tag} the dog", f"the {tag} dog </s>"):
        ids = translator.encode(text)
        assert tokenizer.convert_tokens_to_ids(tag) not in ids and ids.count(2) == 1
    (best,) = next(translator.stream(["the dog"], prefixes=[f"{tag} kind </s> das"]))
    start = len(translator.first_ids(translator.direction()))
    written = best.token_ids[start:-1]
    assert tokenizer.convert_tokens_to_ids(tag) not in written[:6] and 2 not in written
    words = maps_with_words(translator, f"{tag} the dog", "der hund", (["the", "dog"], ["der"]))
    assert {0, 1} <= {*words.source.word_of}
    for languages in ((names["en"], names["en"]), ("xx", names["en"]), (names["en"], "zz")):
        with pytest.raises(ValueError, match=r"must be (different|one of)"):
            translator.directed(languages)(["the dog"])
    long = translator.encode("the dog " * 600)
    assert len(long) == 512
    legacy = peer[0] == "nllb-legacy"
    assert (long[-2:] if legacy else long[:1] + long[-1:]) == (
        [2, translator.encode("a")[-1]] if legacy else [translator.encode("a")[0], 2]
    )


@pytest.mark.parametrize("peer", ["nllb"], indirect=True)
def test_a_glossary_is_for_one_direction(peer, tmp_path):
    term = "hund der hund der"  # which no model writes by itself
    translator, *_ = imported(peer, tmp_path, target="de")
    (found,) = translator(["the dog"])
    translator.use_glossary({"dog": f"={term}", "hund": f"={term}"})
    assert translator(["the dog"])[0].count(term) == 1
    assert term not in found
    for source, target in (("de", "en"), ("en", "ru")):
        languages = {"source_lang": CODES[source], "target_lang": CODES[target]}
        assert term not in translator(["dog hund"], **languages)[0]
    with pytest.raises(
        ValueError, match="The vocabulary cannot write 'Hund'"
    ):  # it has no capitals
        translator.use_glossary({"dog": "Hund"})


@pytest.mark.parametrize("peer", ["nllb"], indirect=True)
def test_a_server_has_every_direction_and_one_queue(peer, tmp_path):
    _, folder = peer
    import_model(read_m2m100(folder), tmp_path / "ours", sources=2)
    translator = Translator.from_pretrained(tmp_path / "ours")
    translator.set_languages("eng_Latn", "deu_Latn")
    thread, limit = ModelThread(), 99
    served = served_model(
        translator, thread, lambda text, _="": text, limit, "all", batch_size=8, num_beams=2
    )
    assert len(translator.directions) == 202 * 201
    directions = [(CODES[source], CODES[target]) for source, target in DIRECTIONS]
    service = Service(every_direction(served, directions), 9000)
    texts = sentences("train", 8)
    with TestClient(make_app(service)) as client:
        listed = {found["code"]: found["targets"] for found in client.get("/languages").json()}
        assert listed == {code: [c for c in CODES.values() if c != code] for code in CODES.values()}

        def ask(source, target):
            fields = {"q": texts[source][:2], "source": source, "target": target}
            return client.post("/translate", json=fields)

        def translated(direction):
            return ask(*direction).json()["translatedText"]

        with ThreadPoolExecutor(len(DIRECTIONS)) as pool:
            found = list(pool.map(translated, DIRECTIONS))
        for (source, target), answer in zip(DIRECTIONS, found, strict=True):
            names = {"source_lang": CODES[source], "target_lang": CODES[target]}
            assert answer == translator(texts[source][:2], num_beams=2, **names)
        assert ask("en", "en").status_code == 400
        assert served.attention("the dog", "der hund", languages=directions[0]).shape == (2, 2)
        refused = ask("en", "fr").json()["error"]
        assert "and 10 more (GET /languages), got source 'en' and target 'fr'" in refused
        fields = {"q": "the dog sees the cat", "source": "auto", "target": "de", "format": "text"}
        detected = client.post("/translate", json=fields).json()["detectedLanguage"]
        assert detected["language"] == CODES["en"] and detected["confidence"] > 99
        fields |= {"q": f"the <i>dog</i> {texts['en'][0]}", "source": "en", "format": "html"}
        (answer,) = client.post("/translate", json=fields).json().values()
        assert answer.count("<i>") == 1


@pytest.mark.parametrize("peer", [LEGACY], indirect=True)
def test_a_vocabulary_is_cut_to_the_pieces_of_texts(peer, tmp_path, run, caplog):
    translator, names, model, tokenizer = imported(peer, tmp_path)
    caplog.set_level("INFO")
    texts, files = sentences("train", 12), []
    for code in ("en", "ru"):
        files.append(tmp_path / f"texts.{names[code]}")
        files[-1].write_text("\n".join([*texts[code][:3], ""]))
    flags = ["--system", "m2m100", "--source", str(peer[1]), "--sources", "5"]
    flags += ["--output", str(tmp_path / "small"), "--keep_tokens_of", *map(str, files)]
    code, out, err = run("import_weights.py", *flags)
    assert code == 0, err
    assert "same beam-4 output      5 of 5" in out
    assert re.search(r"of 453 embeddings are left; \d of 6 translations", caplog.text)
    small = Translator.from_pretrained(tmp_path / "small", source_lang="en", target_lang="ru")
    size, whole = small.model.config.vocab_size, translator.model.config.vocab_size
    assert size == len(small.source_tokenizer) < whole - 30
    assert small.languages == translator.languages
    vocabulary, known = tokenizer.get_vocab(), small.source_tokenizer
    rows = [vocabulary[piece] for piece in known.convert_ids_to_tokens(range(size))]
    # It translates as the peer if the pieces that are gone are forbidden.
    options = {"length_normalization": "power", "max_length_factor": 0, "max_length_offset": 40}
    gone = sorted({*range(whole)} - {*rows})
    for text in texts["en"][:3]:
        batch, tag = tagged(peer[0], tokenizer, [text], "en", "ru")
        (ids,) = model.generate(
            **batch, forced_bos_token_id=tag, suppress_tokens=gone, num_beams=2, max_length=41
        )
        (found,) = small([text], num_beams=2, length_penalty=1.0, **options)
        assert found == tokenizer.decode(ids[2:], skip_special_tokens=True)
    for text in texts["en"][:3] + texts["ru"][:3]:
        assert [rows[token] for token in small.encode(text)] == translator.encode(text)
    # A text that was not among them has smaller pieces, and unknown ones for unknown letters only.
    ids = small.encode(f"{texts['en'][7]} ы")
    letters = {letter for text in texts["en"][:3] + texts["ru"][:3] for letter in text}
    unknown = {letter for letter in texts["en"][7] if letter not in letters | {" "}}
    assert ids.count(3) <= 1 + sum(map(texts["en"][7].count, unknown))
    assert len(ids) >= len(translator.encode(f"{texts['en'][7]} ы"))
    # The embeddings are the peer's.
    found = small.model.model.encoder.embed_tokens.weight
    expected = translator.model.model.encoder.embed_tokens.weight
    torch.testing.assert_close(found, expected[rows], rtol=0, atol=0)
    with pytest.raises(ValueError, match="in at least two languages"):
        read_m2m100(peer[1], M2M100Options(keep_tokens_of=[str(files[0])]))
    with pytest.raises(ValueError, match="The ending must be one of the model's 202 languages"):
        read_m2m100(peer[1], M2M100Options(keep_tokens_of=[str(tmp_path / "texts.txt")]))


def test_the_tag_of_opus_mt_is_written_or_given(tmp_path):
    marian_tokenizer(tmp_path / "parts", is_separate=False)
    path = tmp_path / "parts" / "vocab.json"
    vocabulary = json.loads(path.read_text())
    tags = {tag: len(vocabulary) + n for n, tag in enumerate((">>deu<<", ">>cmn_Hans<<"))}
    path.write_text(json.dumps(vocabulary | tags))
    files = [str(tmp_path / "parts" / name) for name in ("source.spm", "target.spm", "vocab.json")]
    tokenizer = MarianTokenizer(*files, source_lang="en", target_lang="mul")
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 8}
    torch.manual_seed(0)
    model = MarianMTModel(
        MarianConfig(**sizes, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id,
                     decoder_start_token_id=tokenizer.pad_token_id, decoder_ffn_dim=8,
                     encoder_attention_heads=2, decoder_attention_heads=2)
    )  # fmt: skip
    model.save_pretrained(tmp_path / "opus")
    tokenizer.save_pretrained(tmp_path / "opus")
    import_model(read_marian(tmp_path / "opus"), tmp_path / "ours", sources=2)
    translator = Translator.from_pretrained(tmp_path / "ours")
    assert translator.languages == ["cmn_Hans", "deu"]
    assert translator.directions == [("en", "cmn_Hans"), ("en", "deu")]
    text = "The dog sees."
    for language, tag in (("de", ">>deu<<"), ("zh", ">>cmn_Hans<<")):
        given = translator.directed((None, language))
        assert given.encode(text) == tokenizer(f"{tag} {text}").input_ids
        assert given.encode(text) == translator.encode(f"{tag} {text}")
        assert given([text]) == translator([f"{tag} {text}"])
        # In a text it is text then.
        ids = given.encode(f">>deu<< {text}")
        assert (ids[0], ids.count(tags[">>deu<<"])) == (tags[tag], int(language == "de"))
    assert translator.encode(text) == tokenizer(text).input_ids
    for translator_, text_ in (
        (given, text),
        (translator, f">>deu<< {text}"),
        (given, f">>a {text}"),
    ):
        words = maps_with_words(translator_, text_, "Der Hund", (text.split(), ["Der", "Hund"]))
        tokens = list(zip(words.source.tokens, words.source.word_of, strict=True))
        assert tokens[0][1] is None and ("▁The", 0) in tokens and ("▁dog", 1) in tokens
    assert aligner(translator, AttentionChoice())(Translation(">>deu<<", "x", 0, 0, (2,))) == ""


@pytest.mark.parametrize("peer", ["nllb"], indirect=True)
def test_a_translation_resumes_in_its_own_languages_alone(peer, tmp_path):
    translator, names, *_ = imported(peer, tmp_path)
    (tmp_path / "in").write_text("the dog\n" * 4)
    (tmp_path / "out.partial").write_text("")
    texts = iter([["the dog"]])
    with pytest.raises(RuntimeError):
        translate_file(
            translator, tmp_path / "in", tmp_path / "out",
            translate_pools=lambda *_, **__: (_ for _ in _stopped(texts)),
        )  # fmt: skip
    other = translator.directed((names["en"], names["de"]))
    with pytest.raises(ValueError, match="was written with the languages="):
        translate_file(other, tmp_path / "in", tmp_path / "out", resume=True)
    translate_file(translator, tmp_path / "in", tmp_path / "out", resume=True)
    assert (tmp_path / "out").read_text().count("\n") == 4


def _stopped(texts):
    for text in texts:
        yield [Translation(text[0], "x", 0.0, 0.0, ())]
    raise RuntimeError


def test_codes_mean_the_language_of_the_model():
    names = ("eng_Latn", "deu_Latn", "zho_Hans", "zho_Hant", "nob_Latn", "srp_Cyrl")
    names += ("kor_Hang", "aka_Latn", "twi_Latn")
    for code, name in {
        "en": "eng_Latn", "eng": "eng_Latn", "zh": "zho_Hans", "zh-TW": "zho_Hant",
        "no": "nob_Latn", "deu_Latn": "deu_Latn", "sr": "srp_Cyrl",
        # Swiss German, Serbian in Latin letters, and no codes.
        "ko": "kor_Hang", "twi": "twi_Latn", "kor": "kor_Hang",
        "gsw": None, "sr-Latn": None, "German": None, "": None, "xx": None,
    }.items():  # fmt: skip
        assert known_language(code, names) == name
    assert known_language("__de__", ("en", "de")) == "de"


def test_names_of_languages_mean_codes_for_other_libraries():
    names = {"deu_Latn": "de", "zho_Hans": "zh", "en": "en", "mul": "mul", "ROMANCE": "ROMANCE"}
    assert {name: iso_639(name) for name in names} == names
    # German titles are ordinary German, in a model of many languages too.
    flags = SourceFlags(source_lang="deu_Latn", restore_case=True)
    language, prepare = sentence_preparation(flags, ModelFlags())
    assert (language, prepare("Der Hund Sieht Katzen.")) == ("deu_Latn", "Der Hund Sieht Katzen.")
