"""Damaged and incomplete folders give errors that name the file; no code in them is run."""

import json
import os
import pickle
import random
import re
import resource
import struct
import time

import pytest
import torch
from conftest import small_config, small_model
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM

from modeling_aiayn import AiaynForConditionalGeneration
from modeling_aiayn.saved.folders import check_weight_file
from modeling_aiayn.saved.loading import load_model
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


def change(weights, **tensors):
    """Replace tensors of a file; None removes one."""
    kept = load_file(weights) | {name.replace("__", "."): value for name, value in tensors.items()}
    save_file({name: value for name, value in kept.items() if value is not None}, weights)


def test_truncated_weights_raise_an_error_with_the_file_name(folder, weights):
    os.truncate(weights, weights.stat().st_size // 2)
    check_that_loading_raises(
        folder, OSError, r"model\.safetensors .*truncated or corrupt.*Copy or download it again"
    )


def test_a_header_of_impossible_length_raises_an_error_quickly(folder, weights):
    weights.write_bytes(struct.pack("<Q", 2**63) + weights.read_bytes()[8:])
    started = time.monotonic()
    check_that_loading_raises(folder, OSError, r"model\.safetensors .*truncated or corrupt")
    assert time.monotonic() - started < 5


def test_a_git_lfs_pointer_raises_an_error(folder, weights):
    weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n")
    check_that_loading_raises(
        folder, OSError, r"model\.safetensors .*Git LFS pointer.*git lfs pull"
    )


def test_unreadable_weights_raise_a_permission_error(folder, weights, monkeypatch):
    def denied(*args, **kwargs):
        raise PermissionError(f"Permission denied: {weights}")

    monkeypatch.setattr("modeling_aiayn.saved.folders.safe_open", denied)
    check_that_loading_raises(folder, PermissionError, r"Permission denied: .*model\.safetensors")


def test_a_missing_weight_raises_an_error_before_translating(folder, weights):
    change(weights, model__encoder__layers__0__fc1__weight=None)
    with pytest.raises(ValueError, match=r"weight model\.encoder\.layers\.0\.fc1\.weight is miss"):
        Translator.from_pretrained(folder)


def test_an_unexpected_weight_raises_an_error_before_translating(folder, weights):
    change(weights, model__encoder__layers__7__fc1__weight=torch.zeros(1), other=torch.zeros(1))
    with pytest.raises(
        ValueError, match=r"layers\.7\.fc1\.weight \(and 1 others\) does not fit the model"
    ):
        Translator.from_pretrained(folder)


def test_nan_weights_raise_an_error_before_translating(folder, weights):
    wrong = load_file(weights)["model.decoder.layers.1.fc2.weight"].fill_(float("nan"))
    change(weights, model__decoder__layers__1__fc2__weight=wrong)
    with pytest.raises(ValueError, match=r"model\.decoder\.layers\.1\.fc2\.weight is not finite"):
        Translator.from_pretrained(folder)


def test_a_weight_of_the_wrong_shape_raises_an_error(folder, weights):
    change(weights, model__encoder__layers__0__fc1__weight=torch.zeros(3, 3))
    message = r"model\.encoder\.layers\.0\.fc1\.weight must have shape \(13, 12\).* got \(3, 3\)"
    check_that_loading_raises(folder, ValueError, message)
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        AutoModelForSeq2SeqLM.from_pretrained(folder)
    options = {"ignore_mismatched_sizes": True}
    assert AutoModelForSeq2SeqLM.from_pretrained(folder, **options)


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


def test_an_index_must_not_name_files_outside_the_folder(folder, weights):
    names = list(load_file(weights))
    weights.rename(folder.parent / "secret.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "../secret.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    message = r"names a file outside the folder, .*secret\.safetensors"
    check_that_loading_raises(folder, OSError, message)


def test_shards_load_from_a_relative_path(folder, monkeypatch):
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    model.save_pretrained(folder.parent / "shards", max_shard_size="20KB")
    (folder.parent / "elsewhere").mkdir()
    monkeypatch.chdir(folder.parent / "elsewhere")
    again = load_model("../shards", hub=False)
    assert torch.equal(again.lm_head.weight, model.lm_head.weight)


def test_an_empty_config_raises_an_error(folder):
    (folder / "config.json").write_text("")
    check_that_loading_raises(
        folder, OSError, r"config\.json: not valid JSON .* Copy or download it again"
    )


def test_a_folder_without_a_tokenizer_raises_an_error(folder):
    """As the importers write it if the source has no vocabulary."""
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(
        OSError, match=r"holds no tokenizer: there is no tokenizer_config\.json in it"
    ):
        Translator.from_pretrained(folder)


def test_a_tokenizer_with_other_ids_gives_a_warning(folder, tokenizer, caplog):
    config = json.loads((folder / "config.json").read_text())
    config["vocabulary_sha256"] = [vocabulary_sha256(tokenizer)] * 2
    (folder / "config.json").write_text(json.dumps(config))
    Translator.from_pretrained(folder)
    assert "not the one" not in caplog.text
    saved = json.loads((folder / "tokenizer.json").read_text())
    vocab = saved["model"]["vocab"]
    last = sorted(vocab, key=vocab.get)[-2:]
    vocab[last[0]], vocab[last[1]] = vocab[last[1]], vocab[last[0]]
    (folder / "tokenizer.json").write_text(json.dumps(saved))
    Translator.from_pretrained(folder)
    assert "The model was trained with another tokenizer" in caplog.text


def test_mutated_weights_raise_only_os_errors(folder, weights):
    """Flip bits, cut the file, and change bytes of the header."""
    sound = weights.read_bytes()
    draw = random.Random(0)
    header = struct.unpack("<Q", sound[:8])[0] + 8
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes = set()
    for _ in range(400):
        damaged = bytearray(sound)
        kind = draw.choice(["flip", "cut", "edit"])
        if kind == "flip":
            damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        elif kind == "cut":
            del damaged[draw.randrange(len(damaged)) :]
        else:
            damaged[draw.randrange(header)] = draw.randrange(256)
        weights.write_bytes(damaged)
        try:
            check_weight_file(weights)
            outcomes.add("read")
        except OSError as error:
            outcomes.add(
                re.sub(r"^.*(model\.safetensors holds no safetensors).*$", r"\1", str(error))
            )
    assert outcomes == {"read", "model.safetensors holds no safetensors"}
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024


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


def test_saving_with_is_main_process_false_changes_no_file(tmp_path):
    small_model().save_pretrained(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    second = small_model()
    second.save_pretrained(tmp_path, is_main_process=False)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


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
    with pytest.raises(OSError, match=r"holds a model in model.* and an adapter\. Move adapter"):
        Translator.from_pretrained(folder)
