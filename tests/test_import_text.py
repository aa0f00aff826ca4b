"""Imported models with their tokenizers, exports, and errors of the importers."""

import argparse
import dataclasses
import itertools
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import types

import pytest
import torch
from conftest import ROOT, small_model
from foreign_peers import (
    VOCAB,
    annotated_state,
    fairseq_checkpoint,
    in_old_style,
    marian_tokenizer,
    opennmt_checkpoint,
    paper_positions,
)
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from test_import import (
    HEADS_OF_ANNOTATED,
    NO_POSITIONS,
    SIZES,
    TORCH_FIELDS,
    TORCH_NAMES,
    TorchTranslator,
    annotated,
    fsmt_peer,
    marian_peer,
    randomised,
    read_torch,
    saved,
)
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    FSMTTokenizer,
    MarianConfig,
    MarianMTModel,
    MarianTokenizer,
    pipeline,
)

from modeling_aiayn.commands.push_to_hub import check_works
from modeling_aiayn.data.embedded_corpus import generate_pairs
from modeling_aiayn.inspection.alignment import aligner
from modeling_aiayn.inspection.attention_weights import AttentionChoice
from modeling_aiayn.interop.annotated import AnnotatedOptions, read_annotated
from modeling_aiayn.interop.ctranslate2_export import compare_engines, export_ctranslate2
from modeling_aiayn.interop.fairseq import FairseqOptions, read_fairseq
from modeling_aiayn.interop.foreign_model import convert
from modeling_aiayn.interop.fsmt import read_fsmt
from modeling_aiayn.interop.importing import import_model
from modeling_aiayn.interop.marian import read_marian
from modeling_aiayn.interop.marian_export import export_marian, to_marian
from modeling_aiayn.interop.opennmt import read_opennmt
from modeling_aiayn.interop.pickled import read_checkpoint_file
from modeling_aiayn.interop.vocabularies import (
    OPENNMT_SPECIALS,
    moses_tokenizer,
    read_fairseq_dictionary,
    tokenizer_of_pieces,
)
from modeling_aiayn.saved.languages import saved_languages
from modeling_aiayn.saved.whole_files import unfinished_path
from modeling_aiayn.tokenization import decode_lines
from modeling_aiayn.translation import Translator
from modeling_aiayn.translation.options import SearchOptions
from modeling_aiayn.translation.segments.token_words import words_of_tokens

pytestmark = [
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
]
TEXTS = [pair.source for pair in generate_pairs("test", 20)]
LIKE_GENERATE = {
    "num_beams": 4,
    "length_normalization": "power",
    "length_penalty": 1.0,
    "max_length_factor": 0.0,
    "max_length_offset": 30,
}


def trained_a_little(config: MarianConfig, tokenizer: MarianTokenizer) -> MarianMTModel:
    """Train until most sentences end before the length limit."""
    torch.manual_seed(0)
    peer = MarianMTModel(config)
    pairs = generate_pairs("train", 32)
    batch = tokenizer(
        [pair.source for pair in pairs],
        text_target=[pair.target for pair in pairs],
        return_tensors="pt",
        padding=True,
    )
    batch["labels"][batch["labels"] == tokenizer.pad_token_id] = -100
    optimizer = torch.optim.Adam(peer.parameters(), 5e-3)
    peer.train()
    for _ in range(100):
        optimizer.zero_grad()
        peer(**batch).loss.backward()
        optimizer.step()
    return peer.eval()


# For tests that do not depend on the kind of the vocabularies.
ONE_KIND = pytest.mark.parametrize("opus", ["separate"], indirect=True)


@pytest.fixture(scope="module", params=["shared", "separate"])
def opus(request, tmp_path_factory):
    """Return a small model's folder with the same files as OPUS-MT's."""
    folder = tmp_path_factory.mktemp("opus")
    is_separate = request.param == "separate"
    tokenizer = marian_tokenizer(folder / "parts", is_separate)
    size = len(tokenizer.encoder)
    pad = tokenizer.pad_token_id
    separate = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": size}
    config = MarianConfig(
        **SIZES | {"d_model": 36, "encoder_layers": 1, "decoder_layers": 2, "dropout": 0.0},
        vocab_size=size,
        eos_token_id=0,
        scale_embedding=True,
        activation_function="swish",
        pad_token_id=pad,
        decoder_start_token_id=pad,
        forced_eos_token_id=None,
        **(separate if is_separate else {}),
    )
    peer = trained_a_little(config, tokenizer)
    peer.generation_config.bad_words_ids = [[pad]]
    peer.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return folder / "model"


@pytest.fixture(scope="module")
def imported(opus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("imported") / "opus-en-de"
    import_model(read_marian(opus), folder, sources=8)
    return folder


@pytest.mark.parametrize("padding_bias", [0.0, 20.0], ids=["", "would pad"])
def test_opus_folder_translates_as_generate_does(opus, imported, padding_bias):
    peer = MarianMTModel.from_pretrained(opus).eval()
    pad = peer.config.pad_token_id
    tokenizer = MarianTokenizer.from_pretrained(opus)
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True)
    translator = Translator.from_pretrained(imported)
    # Without bad_words_ids this bias would make the model generate padding.
    peer.final_logits_bias[0, pad] += padding_bias
    with torch.no_grad():
        translator.model.lm_head.bias[pad] += padding_bias
    ids = peer.generate(**batch, num_beams=4, max_new_tokens=30)
    expected = decode_lines(tokenizer, ids.tolist())
    # At the length limit generate() stops, while Translator adds an end token.
    has_ended = (ids == peer.config.eos_token_id).any(1).tolist()
    assert sum(has_ended) > 8
    found = translator(TEXTS, **LIKE_GENERATE)
    for ended, mine, theirs in zip(has_ended, found, expected, strict=True):
        assert not ended or mine == theirs
    for best, *_ in translator.stream(TEXTS):
        assert pad not in best.token_ids


@ONE_KIND
def test_an_imported_model_searches_as_its_generation_config_says(opus, tmp_path):
    """Beams and penalty of its own, where the user gives none."""
    source = shutil.copytree(opus, tmp_path / "opus")
    config = json.loads((source / "generation_config.json").read_text())
    own = {"num_beams": 3, "length_penalty": 2.5, "no_repeat_ngram_size": 4}
    (source / "generation_config.json").write_text(json.dumps(config | own))
    folder = tmp_path / "imported"
    import_model(read_marian(source), folder, sources=4)
    translator = Translator.from_pretrained(folder)
    assert translator.search_options() == SearchOptions(length_normalization="power", **own)
    assert translator.search_options(num_beams=1).num_beams == 1
    tokenizer = MarianTokenizer.from_pretrained(source)
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True)
    ids = MarianMTModel.from_pretrained(source).eval().generate(**batch, max_new_tokens=30)
    has_ended = (ids == translator.model.config.eos_token_id).any(1).tolist()
    assert sum(has_ended) > 8
    expected = decode_lines(tokenizer, ids.tolist())
    found = translator(TEXTS, max_length_factor=0, max_length_offset=30)
    for ended, mine, theirs in zip(has_ended, found, expected, strict=True):
        assert not ended or mine == theirs
    # generate() searches with one beam and the exponent 1 where it is given neither.
    for name in ("num_beams", "length_penalty", "no_repeat_ngram_size"):
        setattr(translator.model.generation_config, name, None)
    assert translator.search_options() == SearchOptions(
        num_beams=1, length_penalty=1.0, length_normalization="power"
    )
    # A model of ours has other defaults.
    translator.model.generation_config.length_normalization = None
    assert translator.search_options() == SearchOptions()


def test_opus_tokenizers_give_the_same_ids(opus, imported):
    whole = MarianTokenizer.from_pretrained(opus)
    translator = Translator.from_pretrained(imported)
    strange = "Zoë's ¿naïve? dog 中文 😀 §§ zebra"
    for text in [*TEXTS, strange, strange * 3]:
        assert translator.source_tokenizer(text).input_ids == whole(text).input_ids
        expected = whole(text_target=text).input_ids
        assert translator.target_tokenizer(text).input_ids == expected
    assert isinstance(AutoTokenizer.from_pretrained(imported), MarianTokenizer)


def test_imported_opus_model_works_in_the_pipeline(imported):
    translate = pipeline("aiayn-translation", model=str(imported))
    expected = Translator.from_pretrained(imported)(TEXTS[:3])
    assert [found["translation_text"] for found in translate(TEXTS[:3])] == expected


def test_imported_opus_model_can_be_exported_to_ctranslate2(imported, tmp_path):
    translator = Translator.from_pretrained(imported)
    export_ctranslate2(translator, tmp_path / "ct2", "float32")
    exported = Translator.from_pretrained(tmp_path / "ct2", engine="ctranslate2")
    # At the length limit our engine adds an end token and CTranslate2 does not.
    limit = 60
    options = SearchOptions(num_beams=1, max_length_factor=0.0, max_length_offset=limit)
    report = compare_engines(translator, exported, TEXTS, options)
    ended = sum(len(best.token_ids) < limit for best, *_ in translator.stream(TEXTS, options))
    assert report.texts == 20
    assert report.identical >= ended >= 15
    assert report.score_difference < 1e-4
    pad = translator.model.config.pad_token_id
    for best, *_ in exported.stream(TEXTS):
        assert pad not in best.token_ids


def fine_tune(run, folder, output):
    """Train an imported folder for 8 updates by the command; return the scores of the run."""
    code, _, err = run(
        *("train_translation.py", "--start_from", folder, "--output_dir", output),
        *("--lr_scheduler_type", "linear", "--learning_rate", 0.01, "--warmup_steps", 0),
        *("--embedded_train_size", 60, "--max_steps", 8, "--max_tokens_per_batch", 2000),
        *("--predict_with_generate", "false", "--report_to", "none", "--use_cpu", "true"),
    )
    assert code == 0, err
    return json.loads((output / "scores.json").read_text())


@ONE_KIND
def test_imported_model_is_fine_tuned_with_both_tokenizers(imported, tmp_path, run, monkeypatch):
    monkeypatch.setattr("modeling_aiayn.training.data.EMBEDDED_HELD_OUT_SIZE", 12)
    scores = fine_tune(run, imported, tmp_path / "tuned")
    assert scores["perplexity"] < 0.9 * scores["before"]["perplexity"]
    before, after = (Translator.from_pretrained(each) for each in (imported, tmp_path / "tuned"))
    for name in ("source_tokenizer", "target_tokenizer"):
        ids = [getattr(each, name)("The dog sees.").input_ids for each in (before, after)]
        assert ids[0] == ids[1]
    assert (
        after.model.generation_config.bad_words_ids == before.model.generation_config.bad_words_ids
    )
    assert AutoTokenizer.from_pretrained(tmp_path / "tuned" / "target_tokenizer")


@pytest.mark.long
def test_export_to_marian_restores_the_imported_weights(opus, imported, tmp_path):
    report = export_marian(Translator.from_pretrained(imported), tmp_path / "back", sources=8)
    report.check()
    ours, theirs = (MarianMTModel.from_pretrained(path) for path in (tmp_path / "back", opus))
    for name, tensor in theirs.state_dict().items():
        if "embed_positions" not in name:
            assert torch.equal(ours.state_dict()[name], tensor), name
    assert ours.generation_config.bad_words_ids == theirs.generation_config.bad_words_ids
    check_works(tmp_path / "back")
    again, before = read_marian(tmp_path / "back"), Translator.from_pretrained(imported)
    for name, tensor in before.model.state_dict().items():
        assert torch.equal(convert(again).state_dict()[name], tensor), name
    # Marian's own class, which holds both vocabularies, reads the folder as it reads OPUS-MT's.
    whole, original = (MarianTokenizer.from_pretrained(path) for path in (tmp_path / "back", opus))
    ids = [7, 9, 12, 20]
    assert whole.decode(ids) == original.decode(ids) == before.target_tokenizer.decode(ids)
    assert whole("The dog sees.").input_ids == original("The dog sees.").input_ids
    assert again.target_tokenizer.get_vocab() == before.target_tokenizer.get_vocab()


@ONE_KIND
def test_pickled_weights_of_marian_run_no_code(opus, tmp_path):
    folder = shutil.copytree(opus, tmp_path / "pickled")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    assert read_marian(folder).source_tokenizer is not None
    torch.save(weights | {"x": Harmful(tmp_path / "ran")}, folder / "pytorch_model.bin")
    with pytest.raises(pickle.UnpicklingError):
        read_marian(folder)
    assert not (tmp_path / "ran").exists()


@ONE_KIND
def test_a_vocabulary_of_another_model_is_rejected(opus, tmp_path):
    folder = shutil.copytree(opus, tmp_path / "larger")
    vocabulary = json.loads((folder / "vocab.json").read_text())
    (folder / "vocab.json").write_text(json.dumps(vocabulary | {"<new>": len(vocabulary)}))
    with pytest.raises(
        ValueError, match=rf"ids below {len(vocabulary)} and pads with .* ids up to"
    ):
        read_marian(folder)
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"pad_token_id": 5}))
    with pytest.raises(ValueError, match="pads with 5; got ids up to"):
        read_marian(folder)


@ONE_KIND
def test_the_card_names_languages_and_original(opus, tmp_path):
    foreign = dataclasses.replace(read_marian(opus), repo_id="me/opus")
    import_model(foreign, tmp_path / "imported", sources=2, license="a: b")
    card = ModelCard.load(tmp_path / "imported" / "README.md").data
    assert (card.license, card.language, card.base_model) == ("a: b", ["en", "de"], "me/opus")


@ONE_KIND
def test_import_script_downloads_a_hub_repository(opus, hub, tmp_path, run):
    files = {path.name: path.read_bytes() for path in opus.iterdir()}
    files["pytorch_model.bin"] = b"the same weights in a second format"
    hub.repositories["me/opus-mt-en-de"] = {"main": ("0" * 40, files)}
    code, out, err = run(
        *("import_weights.py", "--system", "marian", "--hub", "true"),
        *("--source", "me/opus-mt-en-de", "--output", tmp_path / "out", "--sources", 3),
    )
    assert code == 0, err
    assert "same beam-4 output      3 of 3" in out
    assert "model.encoder.embed_positions.weight: sinusoids are computed" in out
    assert not any("pytorch_model.bin" in path for _, path, _ in hub.requests)
    assert len(Translator.from_pretrained(tmp_path / "out")(TEXTS[:2])) == 2


FSMT_FILES = {
    "vocab": ["<s>", "<pad>", "</s>", "<unk>", "the</w>", "dog</w>", "th", "e</w>", "s", "ees</w>"],
    "merges": ["t h 10", "th e</w> 9", "d o 3", "do g</w> 2", "e e 2", "ee s</w> 2"],
}


def test_tokens_without_offsets_are_matched_to_words(imported):
    translator = Translator.from_pretrained(imported)
    assert not translator.source_tokenizer.is_fast
    for tokenizer in (translator.source_tokenizer, translator.target_tokenizer):
        for text in TEXTS:
            tokens = tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids)
            numbers = list(itertools.accumulate(token.startswith("▁") for token in tokens[:-1]))
            expected = [
                None if token in ("▁", "</s>") else number - 1
                for token, number in zip(tokens, [*numbers, 0], strict=True)
            ]
            assert words_of_tokens(tokenizer, text, text.split()) == expected
    unknown = f"{TEXTS[0]} 中文 {TEXTS[0]}"
    words = words_of_tokens(translator.source_tokenizer, unknown, unknown.split())
    count = len(TEXTS[0].split())
    assert {word for word in words if word is not None} >= {*range(2 * count + 1)} - {count}
    assert words[-2] == 2 * count
    (best,) = next(translator.stream(TEXTS[:1], SearchOptions()))
    links = aligner(translator, AttentionChoice())(best)
    assert {int(link.split("-")[0]) for link in links.split()} <= {*range(count)} and links


@pytest.fixture
def fsmt_folder(tmp_path):
    tokens = FSMT_FILES["vocab"] + [f"x{n}</w>" for n in range(VOCAB - len(FSMT_FILES["vocab"]))]
    folder = tmp_path / "fsmt"
    folder.mkdir()
    for side in ("src", "tgt"):
        entries = {token: index for index, token in enumerate(tokens)}
        (folder / f"vocab-{side}.json").write_text(json.dumps(entries))
    (folder / "merges.txt").write_text("\n".join([*FSMT_FILES["merges"], ""]))
    fsmt_peer().save_pretrained(folder)
    FSMTTokenizer(
        ["en", "de"], *(str(folder / f) for f in ("vocab-src.json", "vocab-tgt.json", "merges.txt"))
    ).save_pretrained(folder)
    return folder


def test_fsmt_folder_is_imported_with_its_tokenizer(fsmt_folder, tmp_path):
    import_model(read_fsmt(fsmt_folder), tmp_path / "imported", sources=5)
    translator = Translator.from_pretrained(tmp_path / "imported")
    assert saved_languages(tmp_path / "imported") == ("en", "de")
    whole = FSMTTokenizer.from_pretrained(fsmt_folder)
    text = "the dog sees x3"
    assert translator.source_tokenizer(text).input_ids == whole(text).input_ids
    assert translator.source_tokenizer("the dog").input_ids == [4, 5, 2]
    assert words_of_tokens(translator.source_tokenizer, "the dog", ["the", "dog"]) == [0, 1, None]
    assert translator.target_tokenizer.decode([4, 5]) == "the dog"
    (line,) = translator([text], max_length_factor=0, max_length_offset=5)
    assert "</s>" not in line


def test_fsmt_folder_may_lack_sinusoids(fsmt_folder, tmp_path):
    """The Hub's FSMT files were converted from fairseq's, which contain no sinusoids."""
    weights = load_file(fsmt_folder / "model.safetensors")
    kept = {name: each for name, each in weights.items() if "embed_positions" not in name}
    assert len(kept) == len(weights) - 2
    save_file(kept, fsmt_folder / "model.safetensors", metadata={"format": "pt"})
    import_model(read_fsmt(fsmt_folder), tmp_path / "imported", sources=5)


@pytest.mark.parametrize("text", ["t h\nth e</w>\n", "", "{}", "#version: 0.2\n"])
def test_rejects_files_without_codes_of_version_0_2(tmp_path, text):
    (tmp_path / "codes").write_text(text)
    with pytest.raises(ValueError, match=r"must hold merges after a line '#version: 0\.2'"):
        moses_tokenizer(["<s>"], tmp_path / "codes", "en")


def test_a_mark_at_the_end_of_a_translation_is_removed():
    """A translation may end in the middle of a word."""
    tokenizer = tokenizer_of_pieces([*OPENNMT_SPECIALS.values(), "lo@@", "w"], OPENNMT_SPECIALS)
    ids = [tokenizer(text).input_ids for text in ("w lo@@", "lo@@ w w")]
    assert decode_lines(tokenizer, ids) == ["w lo", "low w"]


def test_fairseq_dictionaries_work_with_and_without_bpe_codes(tmp_path):
    path = saved(tmp_path, fairseq_checkpoint())
    pieces = ["the", "d@@", "og", "dog", *(f"x{n}" for n in range(VOCAB - 8))]
    dictionary = tmp_path / "dict.txt"
    dictionary.write_text("".join(f"{piece} {100 - n}\n" for n, piece in enumerate(pieces)))
    assert read_fairseq_dictionary(dictionary)[4:6] == ["the", "d@@"]
    foreign = read_fairseq(path, FairseqOptions(dictionary))
    assert foreign.source_tokenizer("the d@@ og nothing").input_ids == [4, 5, 6, 3, 2]
    assert foreign.target_tokenizer.decode([4, 5, 6]) == "the dog"
    codes = tmp_path / "codes"
    codes.write_text("#version: 0.2\nt h\nth e</w>\no g</w>\n")
    import_model(
        read_fairseq(
            path, FairseqOptions(dictionary, bpe_codes=codes, source_lang="de", target_lang="en")
        ),
        tmp_path / "out",
        sources=4,
    )
    assert saved_languages(tmp_path / "out") == ("de", "en")
    translator = Translator.from_pretrained(tmp_path / "out")
    # Moses splits off the full stop, and the codes split dog.
    assert translator.source_tokenizer("the dog.").input_ids == [4, 5, 6, 3, 2]
    assert translator.target_tokenizer.decode([4, 5, 6]) == "the dog"


def test_annotated_sources_get_start_and_end_tokens(tmp_path):
    state = annotated_state(target_vocab=VOCAB)
    specials = ["<s>", "</s>", "<blank>", "<unk>"]
    (tmp_path / "words").write_text(
        "\n".join([*specials, *(f"w{n}" for n in range(VOCAB - 4)), ""])
    )

    def read(*dictionaries):
        return read_annotated(state, AnnotatedOptions(HEADS_OF_ANNOTATED, *dictionaries))

    foreign = read(tmp_path / "words")
    assert foreign.source_tokenizer("w1 w2 other").input_ids == [0, 5, 6, 3, 1]
    assert foreign.target_tokenizer("w1 w2").input_ids == [5, 6, 1]
    (tmp_path / "few").write_text("<s>\n</s>\n")
    message = rf"few must have one token for each of the model's {VOCAB} embeddings, got 2 tokens"
    with pytest.raises(ValueError, match=message):
        read(tmp_path / "words", tmp_path / "few")


def test_rejects_vocabularies_with_a_repeated_or_missing_token(tmp_path):
    tokens = [*OPENNMT_SPECIALS.values(), "a", "a"]
    with pytest.raises(ValueError, match="must occur in the vocabulary once, got 'a' twice"):
        tokenizer_of_pieces(tokens, OPENNMT_SPECIALS)
    (tmp_path / "dict.txt").write_text("the 10\n")
    path = saved(tmp_path, fairseq_checkpoint())
    with pytest.raises(ValueError, match=rf"of the model's {VOCAB} embeddings, got 5 tokens"):
        read_fairseq(path, FairseqOptions(tmp_path / "dict.txt"))


# Errors name the tensor, option or file.


def without(state: dict, name: str) -> dict:
    return {key: value for key, value in state.items() if key != name}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"decoder.layers.1.src_attn.linears.2.weight": None},
            r"decoder\.layers\.1\.src_attn\.linears\.2\.weight, our model\.decoder\.layers\.1\."
            r"encoder_attn\.v_proj\.weight, is missing",
        ),
        ({"encoder.gate": torch.zeros(3)}, r"The tensor encoder\.gate has no place"),
        (
            {"encoder.norm.b_2": torch.zeros(13)},
            r"The tensor encoder\.norm\.b_2, our .* must have shape \(12,\), got \(13,\)",
        ),
        ({"encoder.norm.a_2": torch.full((12,), torch.nan)}, r"weight, is not finite"),
        (
            {"tgt_embed.1.pe": torch.zeros(1, 5000, 12)},
            r"tgt_embed\.1\.pe must be there and be equal",
        ),
        (dict.fromkeys(("src_embed.1.pe", "tgt_embed.1.pe"), torch.rand(1, 50, 12)), "positions"),
    ],
)
def test_errors_name_tensors_that_are_missing_left_over_or_wrong(changes, message):
    state = annotated_state() | changes
    with pytest.raises(ValueError, match=message):
        annotated({name: tensor for name, tensor in state.items() if tensor is not None})


def test_computed_positions_accept_an_offset():
    peer = randomised(TorchTranslator())
    peer.places.copy_(paper_positions(41, 12)[1:][None])
    tensors = {name: tensor for name, tensor in peer.state_dict().items() if name != "places"}
    foreign = read_torch(tensors, NO_POSITIONS, position_offset=1)
    assert foreign.config.position_offset == 1
    named = read_torch(peer.state_dict())
    for name, tensor in named.taken.weights.items():
        assert torch.equal(tensor, foreign.taken.weights[name]), name
    assert named.config.position_offset == 1


def test_short_table_of_learned_positions_is_imported(tmp_path):
    peer = randomised(TorchTranslator(learned=True))
    state = dict(peer.state_dict())
    state["places"] = state["places"][:9]
    foreign = read_torch(state)
    report = import_model(foreign, tmp_path / "short", sources=6)
    assert report.beam == 6
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "short")
    assert loaded.config.max_position_embeddings == 9


def test_only_tied_matrices_may_be_missing(tmp_path):
    apart = fairseq_checkpoint(target_vocab=VOCAB, share_output=False)
    for name in ("encoder.embed_tokens.weight", "decoder.output_projection.weight"):
        broken = apart | {"model": without(apart["model"], name)}
        with pytest.raises(ValueError, match=rf"{name}.* is missing"):
            read_fairseq(saved(tmp_path, broken))
    normed = fairseq_checkpoint(pre_norm=True)
    for half in ("encoder", "decoder"):
        for leaf in ("weight", "bias"):
            normed["model"].pop(f"{half}.layer_norm.{leaf}")
    with pytest.raises(ValueError, match=r"encoder\.layer_norm\.weight.* is missing"):
        read_fairseq(saved(tmp_path, normed))


def test_opennmt_attention_type_and_epsilon_are_read(tmp_path):
    checkpoint = opennmt_checkpoint()
    vars(checkpoint["opt"]).update(self_attn_type="scaled-dot-flash", norm_eps=1e-3)
    assert read_opennmt(saved(tmp_path, checkpoint)).config.layer_norm_eps == 1e-3
    checkpoint["opt"].self_attn_type = "average"
    with pytest.raises(ValueError, match="self_attn_type must be 'scaled-dot' or 'scaled-dot-f"):
        read_opennmt(saved(tmp_path, checkpoint))


KILLED_IMPORT = """
import os, signal, sys
from test_import import marian_peer
from modeling_aiayn.interop import importing
from modeling_aiayn.interop.marian import read_marian

# The card is written after the weights and before the folder gets its name.
importing.write_imported_card = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
importing.import_model(read_marian(marian_peer()), sys.argv[1], sources=2)
"""


@pytest.mark.long
def test_killed_import_does_not_block_its_retry(tmp_path):
    folder = tmp_path / "out"
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_IMPORT, folder], env=os.environ | {"PYTHONPATH": paths}
    )
    assert killed.returncode == -signal.SIGKILL
    assert not folder.exists()
    assert (unfinished_path(folder) / "model.safetensors").is_file()
    import_model(read_marian(marian_peer()), folder, sources=2)
    assert AutoModelForSeq2SeqLM.from_pretrained(folder).config.encoder_layers == 2
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layernorm_embedding": True}, "does not support layernorm_embedding, got True"),
        ({"decoder_normalize_before": True}, "encoder_normalize_before and decoder_norm"),
        ({"encoder_layers": 1}, r"encoder\.layers\.1\.\S+ has no place"),
        ({"encoder_layers": 3}, r"encoder\.layers\.2\.\S+, our \S+, is missing"),
    ],
)
def test_rejects_unsupported_fairseq_options(options, message, tmp_path):
    checkpoint = fairseq_checkpoint()
    vars(checkpoint["cfg"]["model"]).update(options)
    with pytest.raises(ValueError, match=message):
        read_fairseq(saved(tmp_path, checkpoint))


def test_rejects_files_that_are_not_fairseq_checkpoints(tmp_path):
    options = argparse.Namespace(arch="lstm")
    for content in ({"weights": {}}, {"model": {"a": torch.zeros(1)}, "args": options}):
        with pytest.raises(ValueError, match="must be a checkpoint of a transformer that fairseq"):
            read_fairseq(saved(tmp_path, content))


def test_rejects_files_that_are_not_opennmt_checkpoints(tmp_path):
    whole = opennmt_checkpoint()
    with pytest.raises(ValueError, match="must be a checkpoint of OpenNMT-py 3, with 'opt' and"):
        read_opennmt(saved(tmp_path, without(whole, "vocab")))
    with pytest.raises(ValueError, match=r"generator\.weight .*is missing"):
        read_opennmt(saved(tmp_path, without(whole, "generator")))
    vocabulary = whole["vocab"] | {"src": ["<blank>", "<unk>", *whole["vocab"]["src"][2:]]}
    with pytest.raises(ValueError, match="<blank> must have the same id in both vocabularies"):
        read_opennmt(saved(tmp_path, whole | {"vocab": vocabulary}))


@ONE_KIND
def test_rejects_folders_of_other_or_damaged_models(opus, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no model: there is no config\.json"):
        read_marian(tmp_path)
    with pytest.raises(ValueError, match="the type fsmt, got marian"):
        read_fsmt(opus)
    folder = shutil.copytree(opus, tmp_path / "copy")
    weights = load_file(folder / "model.safetensors")
    changed = {"model.encoder.layers.0.fc1.weight": torch.zeros(7, 12)}
    save_file(weights | changed, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"layers\.0\.fc1\.weight has another shape"):
        read_marian(folder)
    kept = without(weights, "model.decoder.layers.1.fc1.bias")
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"layers\.1\.fc1\.bias is missing"):
        read_marian(folder)


class Harmful:
    """Unpickled, it makes a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_rejects_pickles_that_run_code(tmp_path):
    path = saved(tmp_path, {"model": Harmful(tmp_path / "ran")})
    with pytest.raises(ValueError, match=r"holds posix\.mkdir\. A pickle can run code"):
        read_checkpoint_file(path)
    assert not (tmp_path / "ran").exists()


def test_training_statistics_of_fairseq_are_ignored(tmp_path, monkeypatch):
    meters = types.ModuleType("fairseq.meters")
    meters.AverageMeter = type("AverageMeter", (), {"__module__": "fairseq.meters"})
    for name, module in (("fairseq", types.ModuleType("fairseq")), ("fairseq.meters", meters)):
        monkeypatch.setitem(sys.modules, name, module)
    checkpoint = in_old_style(fairseq_checkpoint())
    meter = meters.AverageMeter()
    meter.sum = 3.0
    checkpoint["extra_state"]["train_meters"] = {"loss": meter}
    path = saved(tmp_path, checkpoint)
    monkeypatch.undo()
    assert read_fairseq(path).config.encoder_layers == 2


def test_rejects_files_that_are_not_checkpoints(tmp_path):
    half = saved(tmp_path, fairseq_checkpoint()).read_bytes()[:20000]
    for content, name in itertools.product((b"", half), ("model.pt", "model.safetensors")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(OSError, match="is damaged, or not a checkpoint"):
            read_checkpoint_file(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="none"):
        read_checkpoint_file(tmp_path / "none.pt")


def test_import_and_export_reject_a_folder_with_files(model_folder, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError, match="exists and is not empty"):
        import_model(read_marian(marian_peer()), tmp_path)
    with pytest.raises(FileExistsError, match="exists and is not empty"):
        export_marian(Translator.from_pretrained(model_folder), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_import_that_differs_from_the_original_is_not_written(tmp_path):
    foreign = read_marian(marian_peer())
    # A new tensor, because adding in place would change the original too.
    foreign.taken.weights["lm_head.bias"] = foreign.taken.weights["lm_head.bias"] + 1e-3
    with pytest.raises(ValueError, match=r"(?s)the original, but they differ.*1\.0e-03"):
        import_model(foreign, tmp_path / "out", sources=4)
    assert not (tmp_path / "out").exists()


def test_weights_keep_their_dtype_unless_another_is_asked_for(tmp_path):
    for dtype, written in ((None, "float16"), (torch.float32, "float32")):
        foreign = read_marian(marian_peer().half())
        import_model(foreign, tmp_path / written, sources=2, dtype=dtype)
        config = json.loads((tmp_path / written / "config.json").read_text())
        assert config["dtype"] == written


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"norm_first": True}, "MarianMTModel needs norm_first=False, got True"),
        ({"head_dim": 3}, "needs head_dim = d_model / encoder_attention_heads, got head_dim=3"),
        ({"layer_norm_eps": 1e-3}, "layer_norm_eps of at most 1e-05, got 0.001"),
    ],
)
def test_marian_export_names_the_unsupported_field(fields, message):
    with pytest.raises(ValueError, match=message):
        to_marian(small_model(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"tie_word_embeddings": False},
        {"decoder_vocab_size": 29},
        {"attention_bias": True, "lm_head_bias": True},
    ],
    ids=["untied", "separate", "biases"],
)
def test_model_exported_to_marian_and_imported_again_is_equal(fields):
    model = randomised(small_model(**fields))
    back = convert(read_marian(to_marian(model)))
    for name, tensor in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor), name
    assert back.config.layer_norm_eps == 1e-5


def test_marian_export_script_writes_a_folder_that_can_be_imported(run, model_folder, tmp_path):
    code, out, err = run(
        "export_marian.py", "--model", model_folder, "--output", tmp_path / "m", "--sources", 4
    )
    assert code == 0, err
    assert "same beam-4 output      4 of 4" in out
    assert AutoTokenizer.from_pretrained(tmp_path / "m")("The dog sees.").input_ids[-1] == 2
    import_model(read_marian(tmp_path / "m"), tmp_path / "back", sources=2)
    ids = [
        Translator.from_pretrained(path).source_tokenizer("The dog.").input_ids
        for path in (tmp_path / "back", model_folder)
    ]
    assert ids[0] == ids[1]


@pytest.mark.parametrize(
    ("dtype", "changed"), [(torch.float16, 0.0), (torch.bfloat16, 0.0), (torch.float32, 1e-7)]
)
def test_export_to_marian_keeps_the_type_of_the_weights(dtype, changed, model_folder, tmp_path):
    """CPUs compute with a float32 copy of float16; weights that left it stay float32."""
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    tokenizer.save_pretrained(tmp_path / "model")
    model = small_model(vocab_size=len(tokenizer)).to(torch.float16 if changed else dtype)
    model.save_pretrained(tmp_path / "model")
    translator = Translator.from_pretrained(tmp_path / "model")
    with torch.no_grad():
        translator.model.get_input_embeddings().weight[7, 3] += changed
    export_marian(translator, tmp_path / "marian", sources=2)
    exported = load_file(tmp_path / "marian" / "model.safetensors")
    assert {tensor.dtype for tensor in exported.values()} == {dtype}


def test_import_script_reads_every_kind_of_state_dict(run, tmp_path):
    state = {name: tensor.contiguous() for name, tensor in annotated_state().items()}
    torch.save(state, tmp_path / "annotated.pt")
    code, out, err = run(
        *("import_weights.py", "--system", "annotated", "--source", tmp_path / "annotated.pt"),
        *("--output", tmp_path / "a", "--sources", 3),
        *("--config", "{encoder_attention_heads: 3, decoder_attention_heads: 3}"),
    )
    assert code == 0, err
    assert "torch.nn's Transformer layers" in out
    assert "tokenizer               none was given" in out
    torch.save(randomised(TorchTranslator(bias=False)).state_dict(), tmp_path / "torch.pt")
    code, out, err = run(
        *("import_weights.py", "--system", "torch", "--source", tmp_path / "torch.pt"),
        *("--output", tmp_path / "t", "--sources", 3, "--dtype", "float16"),
        *("--config", json.dumps(TORCH_FIELDS), "--names", json.dumps(TORCH_NAMES)),
    )
    assert code == 0, err
    assert "model.encoder.layers.0.fc1.bias: torch.nn.Transformer has no such bias" in out


@pytest.mark.parametrize(
    ("system", "flag", "owner"), [("torch", "--hub", "marian"), ("fsmt", "--bpe_codes", "fairseq")]
)
def test_the_parser_knows_the_flags_of_the_chosen_system(run, system, flag, owner):
    given = ("--system", system, "--source", "x", "--output", "y")
    code, _, err = run("import_weights.py", *given, flag, "a")
    assert code == 2 and f"unrecognized arguments: {flag} a" in err
    code, out, _ = run("import_weights.py", "--system", owner, "--help")
    assert code == 0 and flag in out


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("8 heads", "config must be a YAML mapping"),
        ("{encoder_attention_heads: 3}", "decoder_attention_heads cannot be inferred"),
        ({**HEADS_OF_ANNOTATED, "norm_frist": True}, r"'norm_frist'\. Did you mean 'norm_first'"),
    ],
)
def test_config_must_be_a_mapping_of_known_fields_with_the_numbers_of_heads(config, message):
    with pytest.raises(ValueError, match=message):
        read_annotated(annotated_state(), AnnotatedOptions(config))


def test_rejects_bad_words_of_several_ids(model_folder):
    translator = Translator.from_pretrained(model_folder)
    translator.model.generation_config.bad_words_ids = [[4], [5, 6]]
    with pytest.raises(ValueError, match=r"one id each in Translator, got \[\[4\], \[5, 6\]\]"):
        translator(["The dog sees."])
