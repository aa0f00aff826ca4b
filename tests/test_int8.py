"""Weights in 8 bits: folders that hold them, and translators that compute with them."""

import json
import os
import shutil

import pytest
import torch
import yaml
from conftest import small_model
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM

from modeling_aiayn.commands.push_to_hub import check_works
from modeling_aiayn.interop.int8_export import export_int8
from modeling_aiayn.saved.folders import INT8_WEIGHTS_NAME
from modeling_aiayn.saved.int8 import SCALES, read_int8_weights, rounded_to_int8, save_int8_weights
from modeling_aiayn.saved.loading import BUNDLED_MODEL, find_model, load_model
from modeling_aiayn.saved.publishing import files_to_publish
from modeling_aiayn.translation import Translator

BUNDLED = find_model(BUNDLED_MODEL)
TEXTS = ["The dog sees my black cat.", "We must see the key."]
SIZES = [
    {},
    {"tie_word_embeddings": False, "lm_head_bias": True, "attention_bias": True},
    {"decoder_vocab_size": 23},
    {"position_type": "learned"},
]


@pytest.fixture(scope="module")
def int8_folder(tmp_path_factory):
    """The bundled model in 8 bits: unlike random weights, it does not magnify rounding."""
    folder = tmp_path_factory.mktemp("int8") / "bundled"
    export_int8(Translator.from_pretrained(BUNDLED_MODEL), folder, BUNDLED / "README.md")
    return folder


def as_rounded(weight):
    if weight.dim() != 2:
        return weight.detach()
    numbers, scales = rounded_to_int8(weight)
    return numbers * scales[:, None]


@pytest.mark.parametrize("options", SIZES, ids=str)
def test_each_weight_is_rounded_and_tied_ones_are_written_once(tmp_path, options):
    model = small_model(**options)
    save_int8_weights(model, tmp_path / "weights.safetensors")
    written = load_file(tmp_path / "weights.safetensors")
    weights = read_int8_weights(tmp_path / "weights.safetensors")
    named = dict(model.named_parameters())
    assert weights.keys() == named.keys()
    assert ("lm_head.weight" in weights) == (not model.config.tie_word_embeddings)
    for name, weight in named.items():
        assert torch.equal(weights[name], as_rounded(weight))
        if weight.dim() == 2:
            assert torch.equal(written[name], rounded_to_int8(weight)[0])


@pytest.mark.parametrize("options", [SIZES[0], SIZES[1], SIZES[3]], ids=str)
def test_a_folder_gives_the_rounded_model(tokenizer, tmp_path, options):
    model = small_model(**(options | {"vocab_size": len(tokenizer)}))
    export_int8(Translator(model, tokenizer), tmp_path / "int8")
    found = Translator.from_pretrained(tmp_path / "int8", dtype="float32")
    assert not found.engine.int8
    for name, weight in model.named_parameters():
        assert torch.equal(found.model.get_parameter(name), as_rounded(weight)), name
    assert not found.model.training


def test_a_translator_of_a_folder_computes_in_int8(int8_folder):
    whole, small = (Translator.from_pretrained(each) for each in (BUNDLED_MODEL, int8_folder))
    rounded = Translator.from_pretrained(BUNDLED_MODEL, dtype="int8")
    assert (whole.engine.int8, small.engine.int8, rounded.engine.int8) == (False, True, True)
    assert small.model.generation_config.to_dict() == whole.model.generation_config.to_dict()
    scores = []
    for translator in (whole, small, rounded):
        (best, *_), *_ = translator.stream(["A dog runs across the grass."])
        assert best.text == "Ein Hund rennt über das Gras."
        scores.append(best.log_probability)
    # The folder's embeddings are rounded too.
    assert len(set(scores)) == 3 and scores == pytest.approx(scores[:1] * 3, rel=0.05)


def test_a_folder_is_a_quarter_of_the_size_and_can_be_published(int8_folder):
    size = (int8_folder / INT8_WEIGHTS_NAME).stat().st_size
    weights = Translator.from_pretrained(int8_folder).model.num_parameters()
    assert weights < size < 1.05 * weights
    assert ModelCard.load(int8_folder / "README.md").data.license == "cc-by-2.0"
    assert INT8_WEIGHTS_NAME in {path.name for path in files_to_publish(int8_folder)}
    check_works(str(int8_folder))
    for path in int8_folder.glob("*.json"):
        assert str(int8_folder.parent) not in path.read_text("utf-8"), path
    with pytest.raises(OSError, match=r"no file named model\.safetensors"):
        AutoModelForSeq2SeqLM.from_pretrained(int8_folder)


@pytest.mark.parametrize("size", ["10GB", "1KB"])
def test_a_folder_with_other_weights_beside_is_an_error(int8_folder, tmp_path, size):
    """The weights in 8 bits would hide the newer ones."""
    both = shutil.copytree(int8_folder, tmp_path / "both")
    Translator.from_pretrained(both).model.save_pretrained(both, max_shard_size=size)
    for use in (Translator.from_pretrained, files_to_publish):
        with pytest.raises(OSError, match=r"two models, in model\.safetensors\S* and model\.int8"):
            use(both)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_model_in_half_precision_gives_a_folder_that_opens(tokenizer, tmp_path, dtype):
    model = small_model(vocab_size=len(tokenizer)).to(getattr(torch, dtype))
    model.config.dtype = model.dtype
    model.save_pretrained(tmp_path / "halves")
    tokenizer.save_pretrained(tmp_path / "halves")
    export_int8(Translator.from_pretrained(tmp_path / "halves"), tmp_path / "int8")
    opened = Translator.from_pretrained(tmp_path / "int8")
    assert opened.engine.int8 and opened.model.dtype == torch.float32
    weights = read_int8_weights(tmp_path / "int8" / INT8_WEIGHTS_NAME)
    for name, weight in opened.model.named_parameters():
        assert torch.equal(weight, weights[name])


def test_a_folder_takes_the_rates_of_a_further_training(int8_folder):
    model = load_model(int8_folder, False, dropout=0.35)
    assert model.config.dropout == 0.35
    with pytest.raises(ValueError, match="dropout must be in"):
        load_model(int8_folder, False, dropout=1.5)


def test_models_on_other_devices_do_not_compute_in_int8(int8_folder):
    """As with device_map="cuda", which this machine may not have."""
    assert not Translator.from_pretrained(int8_folder, device_map="meta").engine.int8


def test_all_files_of_a_repository_are_of_the_given_revision(int8_folder, hub):
    files = {path.name: path.read_bytes() for path in int8_folder.iterdir()}
    main = ("0" * 40, dict.fromkeys(files, b"{"))
    hub.repositories["me/older"] = {"main": main, "v2": ("1" * 40, files)}
    translator = Translator.from_pretrained("me/older", hub=True, revision="v2")
    assert translator.engine.int8
    assert translator(TEXTS) == Translator.from_pretrained(int8_folder)(TEXTS)


MATRIX = "model.encoder.layers.0.fc1.weight"


def test_damaged_weights_are_rejected(int8_folder, tmp_path):
    folder = shutil.copytree(int8_folder, tmp_path / "int8")
    weights = folder / INT8_WEIGHTS_NAME
    tensors = load_file(weights)
    poisoned = {MATRIX + SCALES: tensors[MATRIX + SCALES] * torch.nan}
    bias = "model.encoder.layers.0.fc1.bias"
    for damaged, message in (
        (tensors | poisoned, "fc1.weight is not finite"),
        ({name: tensors[name] for name in tensors if name != bias}, "fc1.bias is missing"),
        (tensors | {"other": torch.ones(2)}, "other does not fit the model"),
    ):
        save_file(damaged, weights)
        with pytest.raises(ValueError, match=message):
            Translator.from_pretrained(folder)
    os.truncate(weights, weights.stat().st_size // 2)
    with pytest.raises(OSError, match="weights are damaged"):
        Translator.from_pretrained(folder)


def test_the_script_writes_a_folder_and_compares(run, model_folder, tmp_path):
    for language, line in (("en", "The dog sees."), ("de", "Der Hund sieht.")):
        (tmp_path / f"t.{language}").write_text(f"{line}\n" * 3)
    output = tmp_path / "int8"
    flags = ("--model", model_folder, "--output", output)
    code, out, err = run("quantize.py", *flags, "--file", tmp_path / "t")
    assert code == 0, err
    first, before, after, same = out.splitlines()
    assert first.startswith(f"{output}: ") and "MB; in float32" in first
    assert before.startswith("before    BLEU ") and after.startswith("int8      BLEU ")
    assert same.endswith(" of 3 sentences.")
    assert json.loads((output / "config.json").read_text()).get("auto_map") is None
    assert not list(output.glob("*.py"))
    code, _, err = run("quantize.py", *flags)
    assert code == 1 and f"{output} exists and is not empty" in err


def test_a_model_of_the_hub_keeps_the_licence_of_its_card(run, hub, model_folder, tmp_path):
    files = {path.name: path.read_bytes() for path in model_folder.iterdir() if path.is_file()}
    files["README.md"] = b"---\nlicense: cc-by-2.0\nlanguage: [en, de]\n---\nA model.\n"
    hub.repositories["me/base"] = {"main": ("0" * 40, files)}
    flags = ("--hub", "true", "--model", "me/base", "--output", tmp_path / "int8")
    code, _, err = run("quantize.py", *flags)
    assert code == 0, err
    metadata = yaml.safe_load((tmp_path / "int8" / "README.md").read_text().split("---")[1])
    assert (metadata["license"], metadata["language"]) == ("cc-by-2.0", ["en", "de"])
