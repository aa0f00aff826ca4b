"""The examples run as a user runs them, learn, and save a folder that opens."""

import math
import os
import re
import runpy
import subprocess
import sys

import pytest
import torch
from conftest import ROOT
from sacrebleu import corpus_bleu
from transformers import AutoModelForSeq2SeqLM, AutoModelForSequenceClassification, AutoTokenizer

from modeling_aiayn.translation import Translator


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


@pytest.mark.long
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
    command = [
        *(sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2"),
        *("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"),
        *(ROOT / "examples" / "finetune_with_accelerate.py", "--model", model_folder),
        *("--train", "train", "--output", "tuned", "--epochs", "5"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.count("epoch 5: loss") == 1
    assert loss(tmp_path / "tuned", corpus) < before


def test_spacy_s_tokens_are_lower_cased_and_joined_by_spaces(monkeypatch, tmp_path):
    (tmp_path / "train.de").write_text("Zwei Männer, z. B. im U-Boot.\n")
    (tmp_path / "train.en").write_text("Two men don't dive.\n")
    files, tokens = tmp_path / "train", tmp_path / "tokens"
    run_example(
        monkeypatch,
        *("spacy_tokens.py", "--file", files, "--output", tokens, "--languages", "de", "en"),
    )
    assert (tmp_path / "tokens.de").read_text() == "zwei männer , z. b. im u-boot .\n"
    assert (tmp_path / "tokens.en").read_text() == "two men do n't dive .\n"


def test_scores_of_notebook_6_are_those_of_the_whole_file(monkeypatch, capsys, tmp_path):
    model = ROOT / "modeling_aiayn" / "checkpoints" / "aiayn-en-de"
    sources = ["Two men are standing in front of a red house.", "A dog runs.", "I am tired."]
    targets = ["Zwei Männer stehen vor einem roten Haus.", "Ein Hund läuft schnell.", "Ich bin es."]
    for side, texts in (("en", sources), ("de", targets)):
        (tmp_path / f"pairs.{side}").write_text("".join(f"{text}\n" for text in texts))
    flags = ("--model", model, "--file", tmp_path / "pairs", "--languages", "en", "de")
    run_example(monkeypatch, "notebook_6_scores.py", *flags)
    bleu, perplexity = re.fullmatch(
        r"BLEU (\d+\.\d\d), perplexity (\d+\.\d{3})\n", capsys.readouterr().out
    ).groups()
    # One batch of all pairs: the mean over batches is the mean over tokens.
    pairs = {"source": sources, "target": targets}
    assert float(perplexity) == pytest.approx(math.exp(loss(model, pairs)), abs=1e-3)
    found = Translator.from_pretrained(model)(sources, num_beams=1)
    expected = corpus_bleu(found, [targets], tokenize="none", smooth_method="none")
    assert float(bleu) == pytest.approx(expected.score, abs=0.005) and expected.score > 20
