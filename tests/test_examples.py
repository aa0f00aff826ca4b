"""The examples run as a user runs them, learn, and save a folder that opens."""

import os
import runpy
import subprocess
import sys

import pytest
import torch
from conftest import ROOT
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.fixture
def corpus(dataset, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))  # of the processes
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    for name, rows in (("train", dataset), ("valid", dataset.select(range(12)))):
        for side, column in (("en", "source"), ("de", "target")):
            (tmp_path / f"{name}.{side}").write_text("".join(f"{x}\n" for x in rows[column]))
    return dataset


def loss(folder, corpus):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    texts = (list(corpus["source"]), list(corpus["target"]))
    batch = tokenizer(texts[0], text_target=texts[1], padding=True, return_tensors="pt")
    batch["labels"][batch["labels"] == tokenizer.pad_token_id] = -100
    with torch.no_grad():
        return model(**batch).loss.item()


def run_example(monkeypatch, name, *flags):
    monkeypatch.setattr(sys, "argv", [name, *map(str, flags)])
    return runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")


def test_the_library_trainer_lowers_the_loss(corpus, model_folder, monkeypatch, tmp_path):
    before = loss(model_folder, corpus)
    run_example(
        monkeypatch,
        *("finetune_with_trainer.py", "--model", model_folder, "--train", "train"),
        *("--valid", "valid", "--output_dir", "tuned", "--use_cpu", "true"),
        *("--per_device_train_batch_size", 32, "--learning_rate", 0.01, "--disable_tqdm", "true"),
    )
    assert loss(tmp_path / "tuned", corpus) < 0.9 * before
    assert (tmp_path / "tuned" / "modeling_aiayn.py").exists()


def test_a_classifier_learns_on_the_encoder(corpus, model_folder, monkeypatch, tmp_path):
    for name, rows in (("train", corpus), ("valid", corpus.select(range(12)))):
        lines = [
            f"{side}\t{row[column]}\n"
            for row in rows
            for side, column in (("English", "source"), ("German", "target"))
        ]
        (tmp_path / f"{name}.tsv").write_text("".join(lines))
    found = run_example(
        monkeypatch,
        *("finetune_classifier.py", "--model", model_folder, "--train", "train.tsv"),
        *("--valid", "valid.tsv", "--output_dir", "classes", "--use_cpu", "true"),
        *("--learning_rate", 0.01, "--disable_tqdm", "true"),
    )
    assert found["trainer"].state.log_history[-2]["eval_accuracy"] > 0.9
    model = AutoModelForSequenceClassification.from_pretrained("classes")
    assert model.config.id2label == {0: "English", 1: "German"}


@pytest.mark.long
def test_a_loop_of_ones_own_runs_in_two_processes(corpus, model_folder, tmp_path):
    before = loss(model_folder, corpus)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2"),
            *("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"),
            *(ROOT / "examples" / "finetune_with_accelerate.py", "--model", model_folder),
            *("--train", "train", "--output", "tuned", "--epochs", "5"),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("epoch 5: loss") == 1
    assert loss(tmp_path / "tuned", corpus) < before


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short(path):
    assert len(path.read_text("utf-8").splitlines()) <= 60
