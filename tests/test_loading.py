"""Damaged, foreign and incomplete folders are refused by name; nothing of them is run."""

import json
import os
import pickle
import random
import re
import resource
import struct
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import small_config, small_model
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM, modeling_utils

from modeling_aiayn import AiaynForConditionalGeneration
from modeling_aiayn.checks import check_readable
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


def refused(folder, error, message):
    with pytest.raises(error, match=message):
        AutoModelForSeq2SeqLM.from_pretrained(folder)


def change(weights, **tensors):
    """Replace tensors of a file; None takes one away."""
    kept = load_file(weights) | {name.replace("__", "."): value for name, value in tensors.items()}
    save_file({name: value for name, value in kept.items() if value is not None}, weights)


def test_truncated_weights_are_refused_with_their_name(folder, weights):
    os.truncate(weights, weights.stat().st_size // 2)
    refused(
        folder, OSError, r"model\.safetensors .*truncated or corrupt.*copy or download it again"
    )


def test_a_header_of_absurd_length_is_refused_at_once(folder, weights):
    weights.write_bytes(struct.pack("<Q", 2**63) + weights.read_bytes()[8:])
    started = time.monotonic()
    refused(folder, OSError, r"model\.safetensors .*truncated or corrupt")
    assert time.monotonic() - started < 5


def test_a_pointer_to_weights_is_no_weights(folder, weights):
    weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n")
    refused(folder, OSError, r"model\.safetensors .*Git LFS pointer.*git lfs pull")


def test_weights_that_may_not_be_read_are_not_called_corrupt(folder, weights, monkeypatch):
    def denied(*args, **kwargs):
        raise PermissionError(f"Permission denied: {weights}")

    monkeypatch.setattr("modeling_aiayn.checks.safe_open", denied)
    refused(folder, PermissionError, r"Permission denied: .*model\.safetensors")


def test_a_missing_weight_is_refused_before_translating(folder, weights):
    change(weights, model__encoder__layers__0__fc1__weight=None)
    with pytest.raises(ValueError, match=r"weight model\.encoder\.layers\.0\.fc1\.weight is miss"):
        Translator.from_pretrained(folder)


def test_a_weight_too_many_is_refused_before_translating(folder, weights):
    change(weights, model__encoder__layers__7__fc1__weight=torch.zeros(1), other=torch.zeros(1))
    with pytest.raises(ValueError, match=r"layers\.7\.fc1\.weight \(and 1 others\) is unexpected"):
        Translator.from_pretrained(folder)


def test_weights_that_are_no_numbers_are_refused_before_translating(folder, weights):
    wrong = load_file(weights)["model.decoder.layers.1.fc2.weight"].fill_(float("nan"))
    change(weights, model__decoder__layers__1__fc2__weight=wrong)
    with pytest.raises(ValueError, match=r"model\.decoder\.layers\.1\.fc2\.weight is not finite"):
        Translator.from_pretrained(folder)


def test_a_weight_of_another_shape_is_refused_with_both(folder, weights):
    change(weights, model__encoder__layers__0__fc1__weight=torch.zeros(3, 3))
    message = r"model\.encoder\.layers\.0\.fc1\.weight must have shape \(13, 12\).* got \(3, 3\)"
    refused(folder, ValueError, message)
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
    refused(folder, OSError, r"model\.safetensors")
    assert not (folder / "PWNED").exists()


def test_an_index_may_not_lead_out_of_the_folder(folder, weights):
    names = list(load_file(weights))
    weights.rename(folder.parent / "secret.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "../secret.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, OSError, r"index names a file outside the folder, .*secret\.safetensors")


def test_a_relative_folder_with_shards_is_inside_itself(folder, monkeypatch):
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    model.save_pretrained(folder.parent / "shards", max_shard_size="20KB")
    (folder.parent / "elsewhere").mkdir()
    monkeypatch.chdir(folder.parent / "elsewhere")
    again = AutoModelForSeq2SeqLM.from_pretrained("../shards")
    assert torch.equal(again.lm_head.weight, model.lm_head.weight)


def test_a_config_that_is_none_is_refused(folder):
    (folder / "config.json").write_text("")
    refused(folder, OSError, r"config.*not a valid JSON")


def test_a_misspelt_field_in_a_config_is_refused(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"droput": 0.5}))
    refused(folder, ValueError, r"no field 'droput', did you mean 'dropout'")


def test_a_tokenizer_with_other_ids_is_announced(folder, tokenizer, caplog):
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
    assert "tokenizer is not the one that the model was trained with" in caplog.text


def test_mutated_weights_give_typed_errors_alone(folder, weights):
    """Catalogue A-L12, with fewer mutations: flipped, cut, and edited headers."""
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
            check_readable(weights)
            outcomes.add("read")
        except OSError as error:
            outcomes.add(
                re.sub(r"^.*(model\.safetensors holds no safetensors).*$", r"\1", str(error))
            )
    assert outcomes == {"read", "model.safetensors holds no safetensors"}
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024


def test_a_kill_while_saving_leaves_no_mixture(folder, weights, monkeypatch):
    """Another model over this one, killed before its weights are written."""

    class Killed(BaseException):
        pass

    def kill(*args, **kwargs):
        raise Killed

    monkeypatch.setattr("transformers.modeling_utils.safe_save_file", kill)
    with pytest.raises(Killed):
        small_model(norm_first=True).save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["norm_first"] is True
    refused(folder, OSError, r"no file named.* model\.safetensors")


def test_weights_may_be_read_by_whom_the_rest_may(folder, weights):
    assert weights.stat().st_mode == (folder / "config.json").stat().st_mode
    small_model().save_pretrained(folder, max_shard_size="5kB")
    shards = list(folder.glob("model-*.safetensors"))
    assert len(shards) > 1 and not weights.exists()
    assert {path.stat().st_mode for path in shards} == {(folder / "config.json").stat().st_mode}


def weights_in(folder):
    return AutoModelForSeq2SeqLM.from_pretrained(folder).state_dict()


def test_a_save_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    first, second = small_model(), small_model(d_model=16, encoder_attention_heads=4)
    first.save_pretrained(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match="not supported"):
        second.save_pretrained(tmp_path, max_shard_size="much")

    def fill_the_disk(tensors, path, **_):
        Path(path).write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(modeling_utils, "safe_save_file", fill_the_disk)
    with pytest.raises(OSError, match="No space left"):
        second.save_pretrained(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    monkeypatch.undo()
    first.save_pretrained(tmp_path, max_shard_size="5kB")
    sharded = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert "model.safetensors" not in sharded and len(sharded) > len(before)
    monkeypatch.setattr(modeling_utils, "safe_save_file", fill_the_disk)
    with pytest.raises(OSError, match="No space left"):
        second.save_pretrained(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == sharded
    monkeypatch.undo()
    (tmp_path / ".model.safetensors.earlier").touch()  # of a save that was killed
    second.save_pretrained(tmp_path)
    assert weights_in(tmp_path)["lm_head.weight"].size(1) == 16
    assert not list(tmp_path.glob(".*"))


def test_an_upload_that_fails_undoes_no_save(tmp_path, monkeypatch):
    small_model().save_pretrained(tmp_path)
    second = small_model(d_model=16, encoder_attention_heads=4)

    def upload(*_, **__):
        raise ConnectionError("no network")

    monkeypatch.setattr(type(second), "_upload_modified_files", upload)
    repository = SimpleNamespace(repo_id="me/translator")
    api = SimpleNamespace(create_repo=lambda *_, **__: repository)
    monkeypatch.setattr(modeling_utils, "hf_api", lambda: api)
    card = SimpleNamespace(save=lambda path: None)
    monkeypatch.setattr(modeling_utils, "create_and_tag_model_card", lambda *_, **__: card)
    with pytest.raises(ConnectionError):
        second.save_pretrained(tmp_path, push_to_hub=True, repo_id="me/translator")
    assert weights_in(tmp_path)["lm_head.weight"].size(1) == 16
    assert not list(tmp_path.glob(".*"))


def test_a_save_that_fails_before_its_upload_is_undone(tmp_path, monkeypatch):
    small_model().save_pretrained(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    repository = SimpleNamespace(repo_id="me/translator")
    api = SimpleNamespace(create_repo=lambda *_, **__: repository)
    monkeypatch.setattr(modeling_utils, "hf_api", lambda: api)
    for error in (OSError("No space left on device"), SystemExit(143)):

        def fill_the_disk(tensors, path, error=error, **_):
            Path(path).write_bytes(b"half")
            raise error

        monkeypatch.setattr(modeling_utils, "safe_save_file", fill_the_disk)
        with pytest.raises(type(error)):
            small_model(norm_first=True).save_pretrained(tmp_path, push_to_hub=True, repo_id="x")
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_what_is_saved_beside_the_weights_leaves_them(tmp_path):
    model = small_model()
    model.save_pretrained(tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    AiaynForConditionalGeneration(small_config()).save_pretrained(tmp_path, variant="other")
    model.add_adapter(LoraConfig(r=3, target_modules=["q_proj"]))
    model.save_pretrained(tmp_path)
    names = {path.name for path in tmp_path.glob("*.safetensors")}
    assert names == {"model.safetensors", "model.other.safetensors", "adapter_model.safetensors"}
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_what_a_killed_save_had_set_aside_is_what_a_failed_one_brings_back(tmp_path, monkeypatch):
    small_model().save_pretrained(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        (tmp_path / name).rename(tmp_path / f".{name}.earlier")
    (tmp_path / "config.json").write_text("of the killed save")

    def refuse(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(modeling_utils, "safe_save_file", refuse)
    with pytest.raises(OSError, match="No space left"):
        small_model(norm_first=True).save_pretrained(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_process_that_does_not_write_deletes_nothing(tmp_path):
    small_model().save_pretrained(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    second = small_model()
    second.save_pretrained(tmp_path, is_main_process=False)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
