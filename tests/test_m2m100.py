"""Import of M2M-100, NLLB-200 and SMaLL-100: many languages in one model."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from foreign_peers import nllb_tokenizer, train_pieces
from starlette.testclient import TestClient
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    M2M100Config,
    M2M100ForConditionalGeneration,
    M2M100Tokenizer,
    NllbMoeConfig,
    NllbMoeForConditionalGeneration,
    NllbTokenizer,
)

from modeling_aiayn.data.embedded_corpus import generate_pairs
from modeling_aiayn.documents.word_attention import document_lines
from modeling_aiayn.inspection.attention_weights import attention_maps
from modeling_aiayn.interop.ctranslate2_export import export_ctranslate2
from modeling_aiayn.interop.importing import import_model
from modeling_aiayn.interop.m2m100 import read_m2m100
from modeling_aiayn.saved.languages import known_language
from modeling_aiayn.serving.batching import ModelThread
from modeling_aiayn.serving.service import Service, every_direction, make_app, served_model
from modeling_aiayn.training import AiaynTrainingArguments
from modeling_aiayn.training.fine_tuning import FineTuningArguments, SavedModel
from modeling_aiayn.training.setup import ModelArguments
from modeling_aiayn.translation import Translator

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


@pytest.fixture(scope="module", params=["nllb", "nllb-legacy", "m2m", "small"])
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
        for beams in (1, 4):
            options = {"num_beams": beams, "max_new_tokens": 40, "forced_bos_token_id": tag}
            found = ours.generate(**again, **options)
            assert found.tolist() == theirs.generate(**batch, **options).tolist()
            ended += int((found == 2).sum(1).gt(1).sum())
    assert ended > 24  # of 96


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
        {"target_lang": ["en", "ru", "xx"]},
    ):
        with pytest.raises(ValueError, match=f"of the model's {len(translator.languages)} lang"):
            translator(texts, **languages)
    with pytest.raises(ValueError, match=r"such as .*got None"):
        Translator.from_pretrained(tmp_path / "ours")(texts)
    with pytest.raises(ValueError, match="has one direction"):
        Translator.from_pretrained("aiayn-en-de")(texts, target_lang=target)


@pytest.mark.parametrize("peer", ["m2m"], indirect=True)
def test_what_has_no_languages_yet_is_refused(peer, tmp_path):
    _, folder = peer
    import_model(read_m2m100(folder), tmp_path / "ours", sources=2)
    translator = Translator.from_pretrained(tmp_path / "ours", source_lang="en", target_lang="de")
    start = FineTuningArguments(start_from=str(tmp_path / "ours"))
    arguments = AiaynTrainingArguments(
        tmp_path / "run", lr_scheduler_type="linear", learning_rate=1e-3, use_cpu=True
    )
    for refused in (
        lambda: translator.score(["the dog"], ["der hund"]),
        lambda: attention_maps(translator, "the dog", "der hund"),
        lambda: document_lines(translator, ["the <b>dog</b>"], "html", "en", str),
        lambda: export_ctranslate2(translator, tmp_path / "ct2", "float32"),
        lambda: SavedModel(start, ModelArguments(), arguments),
    ):
        with pytest.raises(ValueError, match="several languages"):
            refused()


@pytest.mark.parametrize("peer", ["nllb"], indirect=True)
def test_a_server_has_every_direction_and_one_queue(peer, tmp_path):
    _, folder = peer
    import_model(read_m2m100(folder), tmp_path / "ours", sources=2)
    translator = Translator.from_pretrained(tmp_path / "ours")
    translator.set_languages("eng_Latn", "deu_Latn")
    served = served_model(translator, ModelThread(), str, 99, "all", batch_size=8, num_beams=2)
    service = Service(every_direction(served, list(CODES.values())), 9000)
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
        refused = ask("en", "fr").json()["error"]
        assert "and 10 more (GET /languages), got source 'en' and target 'fr'" in refused
        # The server does not guess which of three languages it is.
        fields = {"q": "the dog", "source": "auto", "target": "de", "format": "text"}
        assert client.post("/translate", json=fields).status_code == 400


def test_codes_mean_the_language_of_the_model():
    names = ("eng_Latn", "deu_Latn", "zho_Hans", "zho_Hant", "nob_Latn", "srp_Cyrl")
    for code, name in {
        "en": "eng_Latn", "eng": "eng_Latn", "zh": "zho_Hans", "zh-TW": "zho_Hant",
        "no": "nob_Latn", "deu_Latn": "deu_Latn", "sr": "srp_Cyrl",
        # Swiss German, Serbian in Latin letters, and no codes.
        "gsw": None, "sr-Latn": None, "German": None, "": None, "xx": None,
    }.items():  # fmt: skip
        assert known_language(code, names) == name
    assert known_language("__de__", ("en", "de")) == "de"
