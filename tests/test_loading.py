"""Damaged and incomplete folders give an error that names them; no code in them is run."""

import json
import os
import pickle

import pytest
import torch
from conftest import small_config, small_model
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)

from modeling_aiayn import (
    AiaynForCausalLM,
    AiaynForConditionalGeneration,
    AiaynForSequenceClassification,
)
from modeling_aiayn.saved.loading import load_checked, load_model
from modeling_aiayn.tokenization import vocabulary_sha256
from modeling_aiayn.translation import Translator


@pytest.fixture
def folder(tokenizer, tmp_path):
    small_model(vocab_size=len(tokenizer)).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def weights(folder):
    return folder / "model.safetensors"


def check_that_loading_raises(folder, error, message):
    with pytest.raises(error, match=message):
        load_model(folder, hub=False)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda all_, name: all_.pop(name), r"fc1\.weight is missing"),
        (lambda all_, name: all_[name].mul_(torch.nan), r"fc1\.weight is not finite"),
        (lambda all_, _: all_.update(other=torch.ones(1)), "weight other does not fit the model"),
        (
            lambda all_, name: all_.update({name: torch.ones(3, 3)}),
            r"fc1\.weight has another shape",
        ),
    ],
    ids=["missing", "nan", "unexpected", "shape"],
)
@pytest.mark.parametrize(
    ("head", "auto_class", "stack"),
    [
        (AiaynForConditionalGeneration, AutoModelForSeq2SeqLM, "encoder"),
        (AiaynForSequenceClassification, AutoModelForSequenceClassification, "encoder"),
        (AiaynForCausalLM, AutoModelForCausalLM, "decoder"),
    ],
)
def test_weights_of_another_model_are_named(tmp_path, head, auto_class, stack, damage, reason):
    small_model(head).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    damage(weights, f"model.{stack}.layers.0.fc1.weight")
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=reason):
        load_checked(auto_class, tmp_path)


def test_truncated_weights_are_named(folder, weights):
    os.truncate(weights, weights.stat().st_size // 2)
    check_that_loading_raises(folder, OSError, "model: the weights are damaged .*git lfs pull")


@pytest.mark.parametrize(
    "name", ["../secret.safetensors", "/tmp/secret.safetensors", "evil.bin", "..\\x.safetensors/y"]
)
def test_an_index_names_only_safetensors_files_in_its_folder(folder, weights, hub, name):
    """On the Hub too, where nothing else is downloaded."""
    index = {"metadata": {}, "weight_map": dict.fromkeys(load_file(weights), name)}
    weights.unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    check_that_loading_raises(folder, OSError, r"must name \.safetensors files in its folder, got")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    hub.repositories["me/evil"] = {"main": ("1" * 40, files)}
    with pytest.raises(OSError, match=r"must name \.safetensors files in its folder, got"):
        Translator.from_pretrained("me/evil", hub=True)
    assert not any(name in path for _, path, _ in hub.requests)


def test_a_folder_is_not_looked_up_on_the_hub(tmp_path, hub, monkeypatch):
    hub.repositories["me/model"] = {"main": ("1" * 40, {"config.json": b"{}"})}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "me" / "empty").mkdir(parents=True)
    check_that_loading_raises("me/model", FileNotFoundError, r"No such directory.*hub=True")
    check_that_loading_raises("me/empty", FileNotFoundError, r"there is no config\.json in it")
    assert not hub.requests


class Payload:
    def __reduce__(self):
        return os.mkdir, ("PWNED",)


@pytest.mark.parametrize("content", [{"a": torch.zeros(1)}, {"a": Payload()}], ids=["kind", "evil"])
def test_pickled_weights_are_not_opened(folder, weights, content, monkeypatch):
    monkeypatch.chdir(folder)
    weights.unlink()
    torch.save(content, folder / "pytorch_model.bin", pickle_module=pickle)
    check_that_loading_raises(folder, OSError, r"model\.safetensors")
    assert not (folder / "PWNED").exists()


def test_shards_load_from_a_relative_path(folder, monkeypatch):
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    model.save_pretrained(folder.parent / "shards", max_shard_size="20KB")
    (folder.parent / "elsewhere").mkdir()
    monkeypatch.chdir(folder.parent / "elsewhere")
    again = load_model("../shards", hub=False)
    assert torch.equal(again.lm_head.weight, model.lm_head.weight)


def test_a_folder_without_a_tokenizer_raises_an_error(folder):
    """As the importers write it if the source has no vocabulary."""
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(OSError, match=r"no tokenizer: there is no tokenizer_config\.json in it"):
        Translator.from_pretrained(folder)


def test_a_tokenizer_with_other_ids_gives_a_warning(folder, tokenizer, caplog):
    config = json.loads((folder / "config.json").read_text())
    config["vocabulary_sha256"] = [vocabulary_sha256(tokenizer)] * 2
    (folder / "config.json").write_text(json.dumps(config))
    Translator.from_pretrained(folder)
    assert "not the one" not in caplog.text
    appended = Translator.from_pretrained(folder)
    appended.source_tokenizer.add_tokens(["<new>", "<other>"])
    appended.model.resize_token_embeddings(len(appended.source_tokenizer))
    Translator(appended.model, appended.source_tokenizer)  # no old id has changed
    assert "another tokenizer" not in caplog.text
    saved = json.loads((folder / "tokenizer.json").read_text())
    vocab = saved["model"]["vocab"]
    last = sorted(vocab, key=vocab.get)[-2:]
    vocab[last[0]], vocab[last[1]] = vocab[last[1]], vocab[last[0]]
    (folder / "tokenizer.json").write_text(json.dumps(saved))
    Translator.from_pretrained(folder)
    assert "The model was trained with another tokenizer" in caplog.text


@pytest.mark.usefixtures("library_adapters")
def test_saving_a_variant_or_an_adapter_keeps_the_weights(tmp_path):
    model = small_model()
    model.save_pretrained(tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    AiaynForConditionalGeneration(small_config()).save_pretrained(tmp_path, variant="other")
    model.add_adapter(LoraConfig(r=3, target_modules=["q_proj"]))
    model.save_pretrained(tmp_path)
    names = {path.name for path in tmp_path.glob("*.safetensors")}
    assert names == {"model.safetensors", "model.other.safetensors", "adapter_model.safetensors"}
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_a_missing_tokenizer_of_the_target_is_named(tokenizer, tmp_path):
    small_model(vocab_size=len(tokenizer), decoder_vocab_size=9).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(OSError, match=r"holds no tokenizer of the target language.*Save it in"):
        Translator.from_pretrained(tmp_path)


@pytest.mark.parametrize("size", ["10GB", "1KB"])
def test_an_adapter_beside_a_whole_model_is_an_error(folder, size):
    """transformers would load both into one model."""
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    model.save_pretrained(folder, max_shard_size=size)
    get_peft_model(model, LoraConfig(target_modules=["q_proj"], r=3)).save_pretrained(folder)
    with pytest.raises(OSError, match=r"two models, in model\.safe\S+ and adapter_config\.json"):
        Translator.from_pretrained(folder)
