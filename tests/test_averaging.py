"""Section 6.1: the mean of checkpoints."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT, small_model
from huggingface_hub import ModelCard
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from training_setup import make_trainer
from transformers import AutoModelForSeq2SeqLM

from modeling_aiayn.saved.publishing import files_to_publish
from modeling_aiayn.training import averaging
from modeling_aiayn.training.averaging import (
    average_weights,
    best_checkpoints,
    last_checkpoints,
    write_average,
)
from modeling_aiayn.translation import Translator


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory, encoded, tokenizer):
    """A run of five checkpoints, each evaluated."""
    folder = tmp_path_factory.mktemp("run")
    trainer = make_trainer(
        folder, encoded, tokenizer, predict_with_generate=False, max_steps=10, save_steps=2,
        save_strategy="steps", eval_strategy="steps", eval_steps=2, learning_rate=300.0,
        warmup_steps=100,
    )  # fmt: skip
    trainer.train()
    return folder, [entry for entry in trainer.state.log_history if "eval_loss" in entry]


def names(folders):
    return [int(folder.name.split("-")[1]) for folder in folders]


def test_the_weights_are_means_and_stay_tied(evaluated, tmp_path):
    folders = last_checkpoints(evaluated[0], 3)
    assert names(folders) == [6, 8, 10]
    write_average(folders, tmp_path / "mean")
    saved = load_file(tmp_path / "mean" / "model.safetensors")
    parts = [load_file(folder / "model.safetensors") for folder in folders]
    assert saved.keys() == parts[0].keys()
    assert "lm_head.weight" not in saved
    for name, weight in saved.items():
        expected = torch.stack([part[name] for part in parts]).double().mean(0)
        torch.testing.assert_close(weight.double(), expected, rtol=1e-6, atol=1e-7)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "mean")
    assert model.lm_head.weight is model.get_input_embeddings().weight
    assert oct((tmp_path / "mean" / "model.safetensors").stat().st_mode & 0o777) == "0o644"
    assert len(Translator.from_pretrained(tmp_path / "mean")(["We see."])) == 1
    assert not (tmp_path / "mean" / "optimizer.pt").exists()


def test_the_best_checkpoints_are_chosen_by_the_run_s_own_evaluations(evaluated):
    folder, evaluations = evaluated
    by_loss = sorted(evaluations, key=lambda entry: entry["eval_loss"])
    assert names(best_checkpoints(folder, 3, "loss")) == [entry["step"] for entry in by_loss[:3]]
    by_rate = sorted(evaluations, key=lambda entry: -entry["eval_samples_per_second"])
    assert names(best_checkpoints(folder, 2, "samples_per_second")) == [
        entry["step"] for entry in by_rate[:2]
    ]


@pytest.fixture
def changed(evaluated, tmp_path, monkeypatch):
    """A copy of the run whose states may be changed."""
    monkeypatch.setattr(averaging, "check_checkpoint", lambda folder: None)  # of the manifest
    return Path(shutil.copytree(evaluated[0], tmp_path / "run"))


def test_losses_of_several_sets_are_better_if_they_are_smaller(evaluated, changed):
    for path in changed.rglob("trainer_state.json"):
        path.write_text(path.read_text().replace('"eval_loss"', '"eval_news_loss"'))
    expected = names(best_checkpoints(evaluated[0], 3, "loss"))
    assert names(best_checkpoints(changed, 3, "news_loss")) == expected
    assert names(best_checkpoints(changed, 3, "eval_news_loss")) == expected


def test_an_evaluation_that_a_signal_postponed_counts(evaluated, changed):
    """It is in the log of the next checkpoint."""
    path = changed / "checkpoint-4" / "trainer_state.json"
    state = json.loads(path.read_text())
    state["log_history"] = [entry for entry in state["log_history"] if entry["step"] != 4]
    path.write_text(json.dumps(state))
    expected = names(best_checkpoints(evaluated[0], 5, "loss"))
    assert names(best_checkpoints(changed, 5, "loss")) == expected


def test_too_few_and_damaged_checkpoints_are_rejected(evaluated, tmp_path):
    folder, _ = evaluated
    with pytest.raises(ValueError, match=r"has 5 checkpoints, 6 were asked for.*save_total_limit"):
        last_checkpoints(folder, 6)
    with pytest.raises(ValueError, match=r"has 0 checkpoints evaluated by bleu, 1 were asked for"):
        best_checkpoints(folder, 1, "bleu")
    (tmp_path / "checkpoint-3").mkdir()
    with pytest.raises(ValueError, match=r"checkpoint-3: manifest\.json is missing"):
        last_checkpoints(tmp_path, 1)


def test_folders_that_cannot_be_averaged_are_rejected(tmp_path):
    for name, options in (("a", {}), ("b", {"d_model": 24}), ("c", {"attention_bias": True})):
        small_model(**options).save_pretrained(tmp_path / name)
    for other in ("b", "c"):
        with pytest.raises(ValueError, match=f"{other}: .* is missing or has another shape"):
            average_weights([tmp_path / "a", tmp_path / other])
    with pytest.raises(FileExistsError, match="b exists and is not empty"):
        write_average([tmp_path / "a"], tmp_path / "b")
    (tmp_path / "a" / "model.safetensors").rename(tmp_path / "a" / "model.int8.safetensors")
    with pytest.raises(ValueError, match=r"a holds weights in 8 bits\. Average the models"):
        write_average([tmp_path / "a"], tmp_path / "mean")
    (tmp_path / "b" / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"b holds an adapter\. Merge it: --merge_lora true"):
        write_average([tmp_path / "b"], tmp_path / "mean")


KILLED_WHILE_WRITING = """
import os, signal, sys
from pathlib import Path
from modeling_aiayn.training import averaging
def kill(tensors, path, **_):
    Path(path).write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
averaging.save_file = kill
averaging.write_average([Path(sys.argv[1])], Path(sys.argv[2]))
"""


@pytest.mark.long
def test_an_average_whose_process_was_killed_can_be_retried(tmp_path):
    small_model().save_pretrained(tmp_path / "a")
    command = [sys.executable, "-c", KILLED_WHILE_WRITING, tmp_path / "a", tmp_path / "mean"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([*map(str, command)], env=environment, check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (tmp_path / "mean").exists()
    write_average([tmp_path / "a"], tmp_path / "mean")
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "mean")
    assert {path.name for path in tmp_path.iterdir()} == {"a", "mean"}


def test_weights_in_shards_and_in_half_precision_are_averaged_too(tmp_path):
    model = small_model().bfloat16()
    model.save_pretrained(tmp_path / "whole")
    model.save_pretrained(tmp_path / "shards", max_shard_size="5kB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    average = average_weights([tmp_path / "whole", tmp_path / "shards"])
    expected = load_file(tmp_path / "whole" / "model.safetensors")
    torch.testing.assert_close(average, expected, rtol=0, atol=0)


def test_weights_of_two_types_need_a_type_for_the_mean(tmp_path):
    small_model().save_pretrained(tmp_path / "whole")
    small_model().half().save_pretrained(tmp_path / "half")
    folders = [tmp_path / "half", tmp_path / "whole"]
    message = r"whole: .* is in torch.float32, and in torch.float16 in the first .*--dtype float32"
    with pytest.raises(ValueError, match=message):
        write_average(folders, tmp_path / "mean")
    write_average(folders, tmp_path / "mean", "float32")
    name = "model.encoder.layers.0.fc1.weight"
    half, whole, mean = (
        load_file(tmp_path / folder / "model.safetensors")[name]
        for folder in ("half", "whole", "mean")
    )
    assert not torch.equal(half.float(), whole)
    torch.testing.assert_close(mean, (half.double() + whole).div(2).float(), rtol=0, atol=0)


def test_a_damaged_member_is_rejected(evaluated, run, tmp_path):
    good = last_checkpoints(evaluated[0], 1)[0]
    flipped, broken, poisoned = (tmp_path / name for name in ("flipped", "broken", "poisoned"))
    for folder in (flipped, broken, poisoned):
        shutil.copytree(good, folder)
    for folder in (broken, poisoned):  # as a folder that is no checkpoint of a run
        (folder / "manifest.json").unlink()
    weights = bytearray((good / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (flipped / "model.safetensors").write_bytes(weights)
    (broken / "model.safetensors").write_bytes(weights[:-1])
    tensors = load_file(good / "model.safetensors")
    next(iter(tensors.values()))[0] = float("nan")
    save_file(tensors, poisoned / "model.safetensors")
    for folder, message in (
        (flipped, "model.safetensors has another checksum than when it was written."),
        (broken, "the weights are damaged"),
        (poisoned, "poisoned: the weight "),
    ):
        flags = ("--checkpoints", good, folder, "--output", tmp_path / "mean")
        code, _, err = run("average_checkpoints.py", *flags)
        assert code == 1 and message in err
        assert not (tmp_path / "mean").exists()


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(*_, **__):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (28)")

    small_model().save_pretrained(tmp_path / "a")
    with monkeypatch.context() as patch:
        patch.setattr(averaging, "save_file", full)
        with pytest.raises(SafetensorError, match="No space left on device"):
            write_average([tmp_path / "a"], tmp_path / "mean")
    assert {path.name for path in tmp_path.iterdir()} == {"a"}
    write_average([tmp_path / "a"], tmp_path / "mean")


def test_sums_do_not_lose_small_weights(tmp_path):
    for index, value in enumerate((1e8, 3.0, -1e8)):
        (tmp_path / str(index)).mkdir()
        save_file({"w": torch.tensor([value])}, tmp_path / str(index) / "model.safetensors")
    average = average_weights([tmp_path / str(index) for index in range(3)])
    assert average["w"].item() == 1.0


def test_checkpoints_with_averaged_weights_are_averaged_by_those(evaluated, tmp_path):
    checkpoints = []
    for number, folder in enumerate(last_checkpoints(evaluated[0], 2)):
        copied = shutil.copytree(folder, tmp_path / folder.name)
        (copied / "ema").mkdir()
        weights = load_file(folder / "model.safetensors")
        filled = {name: torch.full_like(weight, number + 1.0) for name, weight in weights.items()}
        save_file(filled, copied / "ema" / "model.safetensors")
        checkpoints.append(copied)
    assert all((weight == 1.5).all() for weight in average_weights(checkpoints).values())


def test_models_with_equal_shapes_and_other_options_are_rejected(tmp_path):
    small_model().save_pretrained(tmp_path / "a")
    small_model(dropout=0.3).save_pretrained(tmp_path / "b")
    write_average([tmp_path / "a", tmp_path / "b"], tmp_path / "mean")  # dropout is no weight's
    for options, message in (
        ({"norm_first": True}, "norm_first is True, and False in the first model"),
        (
            {"vocabulary_sha256": ["b"]},
            r"vocabulary_sha256 is \['b'\], and None in the first model",
        ),
    ):
        second = small_model()
        second.config.update(options)
        second.save_pretrained(tmp_path / "b")
        with pytest.raises(ValueError, match=message):
            write_average([tmp_path / "a", tmp_path / "b"], tmp_path / "other")


CARD = """---
license: cc-by-4.0
language: [en, de]
model-index:
- name: run
  results:
  - {task: {type: translation}, dataset: {type: a, name: a}, metrics: [{type: bleu, value: 12.5}]}
---
# run: en to de

Load it with `from_pretrained("run", trust_remote_code=True)`.
"""


def test_an_average_has_the_card_of_its_run_without_its_scores(evaluated, tmp_path):
    folders = [
        Path(shutil.copytree(checkpoint, tmp_path / "run" / checkpoint.name))
        for checkpoint in last_checkpoints(evaluated[0], 2)
    ]
    write_average(folders, tmp_path / "plain")
    assert not (tmp_path / "plain" / "README.md").exists()
    (tmp_path / "run" / "README.md").write_text(CARD)
    write_average(folders, tmp_path / "mean")
    mean = ModelCard.load(tmp_path / "mean" / "README.md")
    assert (mean.data.license, mean.data.language) == ("cc-by-4.0", ["en", "de"])
    assert "model-index" not in mean.content and "12.5" not in mean.content
    names = "`checkpoint-8`, `checkpoint-10`"
    assert mean.text.lstrip().startswith(f"# mean\n\nThe weights are the mean of {names}")
    assert files_to_publish(tmp_path / "mean")


def test_the_script_averages_the_checkpoints_that_its_flags_name(run, evaluated, tmp_path):
    code, out, err = run(
        "average_checkpoints.py", "--run", evaluated[0], "--last", 2, "--output", tmp_path / "a"
    )
    assert code == 0, err
    assert "checkpoint-8" in out and "checkpoint-10" in out
    losses = {entry["step"]: entry["eval_loss"] for entry in evaluated[1]}
    best = min(losses, key=losses.__getitem__)
    flags = ("--run", evaluated[0], "--best", 1, "--output", tmp_path / "b", "--dtype", "float16")
    code, out, err = run("average_checkpoints.py", *flags)
    assert code == 0 and f"checkpoint-{best}\n" in out
    saved = load_file(tmp_path / "b" / "model.safetensors")
    assert {weight.dtype for weight in saved.values()} == {torch.float16}
    # Trainers start in the configuration's dtype.
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "b").dtype == torch.float32
