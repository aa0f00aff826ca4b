"""Folders with damaged weights are rejected by each task, with an error of one line."""

import json
import os
import shutil

import pytest
import torch
from conftest import small_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from modeling_aiayn import (
    AiaynForCausalLM,
    AiaynForConditionalGeneration,
    AiaynForSequenceClassification,
)
from modeling_aiayn.saved.folders import check_weight_file, check_weight_files
from modeling_aiayn.saved.loading import load_checked
from modeling_aiayn.tokenization import byte_tokenizer

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"
TASKS = {
    "translate": (AiaynForConditionalGeneration, ("translate.py", "--text", "a")),
    "classify": (AiaynForSequenceClassification, ("classify.py", "--text", "a")),
    "complete": (AiaynForCausalLM, ("complete.py", "--text", "a")),
    "start_from": (AiaynForConditionalGeneration, ("train_classifier.py",)),
}
# A weight that each of the models has and needs.
WEIGHT = dict.fromkeys(TASKS, "model.encoder.layers.0.fc1.weight")
WEIGHT["complete"] = "model.decoder.layers.0.fc1.weight"


@pytest.fixture(params=TASKS)
def task(request, tmp_path, run):
    """A folder, the name of a weight in it, and a function that runs the task on the folder."""
    head, (script, *flags) = TASKS[request.param]
    small_model(head, vocab_size=260).save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")
    flags += ["--model", tmp_path / "model"]
    if request.param == "start_from":
        (tmp_path / "a.tsv").write_text("x\ta\ny\tb\n" * 20)
        flags = ["--train_file", tmp_path / "a.tsv", "--output_dir", tmp_path / "run"]
        flags += ["--start_from", tmp_path / "model", "--use_cpu", "true"]

    def run_task():
        code, out, err = run(script, *flags)
        assert (code, out) == (1, "")
        return err.splitlines()[-1]

    return tmp_path / "model", WEIGHT[request.param], run_task


def test_truncated_weights_and_pointers_are_named(task):
    folder, _, run_task = task
    weights = folder / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    assert "model.safetensors holds no safetensors weights; it is truncated" in run_task()
    weights.write_text(POINTER)
    assert "it is a Git LFS pointer. Download the file itself: git lfs pull." in run_task()


def test_a_weight_of_the_wrong_shape_is_named(task):
    folder, name, run_task = task
    weights = load_file(folder / "model.safetensors") | {name: torch.zeros(3, 3)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    error = run_task()
    assert f"{name} must have shape (1" in error and "got (3, 3). Use the configuration" in error


def test_a_missing_weight_is_named(task):
    folder, name, run_task = task
    weights = load_file(folder / "model.safetensors")
    del weights[name]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert f"the weight {name} is missing" in run_task()


def test_an_index_must_not_name_a_file_outside_the_folder(tmp_path):
    model = small_model(AiaynForCausalLM)
    model.save_pretrained(tmp_path / "model", max_shard_size="5kB")
    folder, index = tmp_path / "model", tmp_path / "model" / "model.safetensors.index.json"
    loaded = load_checked(AutoModelForCausalLM, folder)
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)
    shard = next(folder.glob("model-00001-*"))
    shutil.move(shard, tmp_path / "secret.safetensors")
    with pytest.raises(OSError, match=shard.name):
        load_checked(AutoModelForCausalLM, folder)
    for secret in ("../secret.safetensors", str(tmp_path / "secret.safetensors")):
        content = json.loads(index.read_text())
        content["weight_map"]["lm_head.weight"] = secret
        index.write_text(json.dumps(content))
        with pytest.raises(OSError, match=r"names a file outside the folder, .*secret\.safeten"):
            load_checked(AutoModelForCausalLM, folder)
    index.write_text("{}")
    with pytest.raises(OSError, match=r"index\.json is damaged"):
        load_checked(AutoModelForCausalLM, folder)


def test_a_file_without_read_permission_is_not_called_corrupt(tmp_path, monkeypatch):
    def deny(*args, **kwargs):
        raise PermissionError("Permission denied: model.safetensors")

    monkeypatch.setattr("modeling_aiayn.saved.folders.safe_open", deny)
    with pytest.raises(PermissionError, match="Permission denied"):
        check_weight_file(tmp_path / "model.safetensors")


def test_only_the_files_that_would_be_read_are_checked(tmp_path):
    """transformers prefers a whole file to an index, and reads no backups."""
    small_model().save_pretrained(tmp_path, max_shard_size="10kB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    small_model().save_pretrained(tmp_path)
    (tmp_path / "backup.safetensors").write_text("nothing")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "absent"}}')
    check_weight_files(tmp_path)


def test_options_that_the_checks_set_are_rejected(tmp_path):
    small_model().save_pretrained(tmp_path)
    for name in ("use_safetensors", "ignore_mismatched_sizes", "output_loading_info"):
        with pytest.raises(ValueError, match=f"{name} cannot be set"):
            load_checked(AutoModelForSeq2SeqLM, tmp_path, **{name: False})
