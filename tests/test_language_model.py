"""Language models: texts and their splits, windows, training, scores and completion."""

import gzip
import json
import math
import os
import random
import signal

import numpy as np
import pytest
import torch
from conftest import run_examples, small_model
from datasets import Dataset
from huggingface_hub import ModelCard
from transformers import AutoModelForCausalLM, AutoTokenizer, default_data_collator

from modeling_aiayn import AiaynForCausalLM
from modeling_aiayn.language_model.completion import complete, encode_prompt
from modeling_aiayn.language_model.texts import EncodedText, LanguageDataArguments, load_text
from modeling_aiayn.language_model.training import (
    LanguageModelTrainingArguments,
    TextScore,
    build_language_model,
    score_text,
    text_score_table,
)
from modeling_aiayn.language_model.windows import covering_windows, random_windows
from modeling_aiayn.saved.publishing import files_to_publish
from modeling_aiayn.tokenization import byte_tokenizer, train_character_tokenizer
from modeling_aiayn.training import AiaynTrainer
from modeling_aiayn.training.setup import PresetArguments

STRANGE = "a\tb\r\n\n  ü漢字 😀 \u2028</s><0x41>\x00e\u0301 "
SIZES = "{decoder_layers: 1, d_model: 32, decoder_attention_heads: 2, decoder_ffn_dim: 48, dropout: 0.0}"
SMALL = [
    *("--config_overrides", SIZES, "--context", "12", "--use_cpu", "true", "--report_to", "none"),
    *("--eval_steps", "20", "--save_steps", "20", "--logging_steps", "7", "--warmup_steps", "5"),
]


@pytest.fixture
def text(tmp_path):
    """Words in random order: letters inside a word can be predicted, the next word cannot."""
    draw = random.Random(3)
    words = draw.choices(["the", "quick", "brown", "fox", "jumps"], k=700)
    path = tmp_path / "words.txt"
    path.write_text(" ".join(words))
    return path


def arguments(path, **more):
    return LanguageDataArguments(train_file=str(path), **more)


@pytest.mark.parametrize(
    "tokenizer", [train_character_tokenizer(STRANGE), byte_tokenizer()], ids=["characters", "bytes"]
)
def test_decoding_restores_any_text(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    for found in (tokenizer, loaded):
        ids = found(STRANGE, split_special_tokens=True).input_ids
        assert found.decode(ids, clean_up_tokenization_spaces=False) == STRANGE
        assert not set(ids) & set(found.all_special_ids)
        # Trainers of language models append the end token as text.
        assert found("</s>").input_ids == [found.eos_token_id]
        assert encode_prompt(found, STRANGE) == ids


def test_examples_of_unequal_lengths_are_padded(tmp_path):
    """By the trainer's own collator: labels with -100, as the loss expects."""
    rows = [[5, 6, 7], [5, 6, 7, 8, 9], [5, 6]]
    data = Dataset.from_dict({"input_ids": rows, "labels": rows})
    args = LanguageModelTrainingArguments(
        str(tmp_path), max_steps=2, eval_strategy="no", load_best_model_at_end=False, use_cpu=True
    )
    tokenizer = byte_tokenizer()
    model = small_model(AiaynForCausalLM, vocab_size=len(tokenizer))
    trainer = AiaynTrainer(model, args, train_dataset=data, processing_class=tokenizer)
    batch = trainer.data_collator([data[0], data[1]])
    assert batch["labels"].tolist() == [[5, 6, 7, -100, -100], [5, 6, 7, 8, 9]]
    trainer.train()
    assert trainer.state.global_step == 2


def test_byte_ids_are_the_bytes_plus_four():
    assert byte_tokenizer()("A漢\x00").input_ids == [4 + byte for byte in "A漢\x00".encode()]
    assert len(byte_tokenizer()) == 260


def test_an_invalid_byte_does_not_affect_others():
    assert byte_tokenizer().decode([4 + byte for byte in b"a\xffb\xe6\xbc"]) == "a\ufffdb\ufffd"


def test_characters_are_numbered_by_code_point_and_new_ones_are_unknown():
    tokenizer = train_character_tokenizer("banana 漢")
    assert tokenizer("a b漢n").input_ids == [5, 4, 6, 8, 7]
    assert tokenizer("ax").input_ids == [5, tokenizer.unk_token_id]


@pytest.mark.parametrize("unit", ["character", "byte"])
def test_a_text_is_split_in_its_order(tmp_path, unit, caplog):
    """docs/seeds.md, trap 13: the vocabulary comes from the training part alone."""
    whole = "abcü" * 20 + "xyz" * 5 + "漢w" * 5  # 80, 15 and 10 characters
    with gzip.open(tmp_path / "text.gz", "wb") as file:
        file.write(whole.encode())
    shares = {"validation_share": 15 / 105, "test_share": 10 / 105}
    parts, tokenizer = load_text(
        arguments(tmp_path / "text.gz", unit=unit, context=5, **(shares if unit[0] == "c" else {}))
    )
    if unit == "byte":
        content = whole.encode()
        assert list(parts) == ["train", "validation"]
        assert parts["train"].ids.tolist() == [4 + byte for byte in content[:122]]
        assert parts["validation"].size_in_bytes == len(content) - 122 == 13
        return
    sizes = {"train": 80, "validation": 15, "test": 10}
    assert {name: len(part.ids) for name, part in parts.items()} == sizes
    assert parts["train"].ids.tolist() == tokenizer("abcü" * 20).input_ids
    assert set(parts["test"].ids.tolist()) == {tokenizer.unk_token_id}
    assert "test: 10 of 10 characters do not occur in the training text" in caplog.text
    assert [part.size_in_bytes for part in parts.values()] == [100, 15, 20]
    assert len(tokenizer) == 4 + 4


def test_random_windows_come_from_the_whole_text():
    ids = torch.arange(100, 120, dtype=torch.int32)
    windows = random_windows(ids, 6, 400, seed=5)
    pieces = [window["input_ids"].tolist() for window in windows]
    assert len(pieces) == 400
    assert all(piece == list(range(piece[0], piece[0] + 6)) for piece in pieces)
    assert {piece[0] for piece in pieces} == set(range(100, 115))
    labels = [window["labels"].tolist() for window in windows]
    assert labels == [[-100, *piece[1:]] for piece in pieces]
    again, other = random_windows(ids, 6, 400, seed=5), random_windows(ids, 6, 400, seed=6)
    assert torch.equal(windows.starts, again.starts)
    assert not torch.equal(windows.starts, other.starts)
    assert windows.data_sha256() == other.data_sha256()
    assert windows.data_sha256() != random_windows(ids, 7, 400, seed=5).data_sha256()
    assert windows.data_sha256() != random_windows(ids + 1, 6, 400, seed=5).data_sha256()


@pytest.mark.parametrize("length", [6, 7, 11, 12, 23])
@pytest.mark.parametrize("step", [1, 2, 3, 5])
def test_covering_windows_predict_each_token_once(length, step):
    ids = torch.arange(50, 50 + length)
    windows = list(covering_windows(ids, 6, step))
    predicted = [label for window in windows for label in window["labels"].tolist() if label >= 0]
    assert predicted == list(range(51, 50 + length))
    for window in windows[1:]:
        seen = window["labels"].tolist().index(next(x for x in window["labels"] if x >= 0))
        assert seen >= 6 - step  # tokens before the first predicted one


def test_bits_per_byte_follow_from_nats_per_token():
    """docs/seeds.md, trap 22: per byte, also where a character has several bytes."""
    score = TextScore(nats=math.log(8), tokens_per_byte=0.5)
    assert score.bits == pytest.approx(3)
    assert score.bits_per_byte == pytest.approx(1.5)
    table = text_score_table({"test": score}, "character").splitlines()
    assert table[0] == "|      | nats per character | bits per character | bits per byte |"
    assert table[2] == "| test |             2.0794 |             3.0000 |        1.5000 |"
    table = text_score_table({"a": TextScore(math.log(4), 1.0)}, "byte").splitlines()
    assert table[0] == "|   | nats per byte | bits per byte |"
    assert table[2] == "| a |        1.3863 |        2.0000 |"


@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_the_score_of_a_text_is_the_mean_over_its_tokens(tmp_path, batch_size):
    """Compared with a loop that predicts one token at a time; batches make no difference."""
    model = small_model(AiaynForCausalLM)
    ids = torch.randint(4, 31, (24,), generator=torch.Generator().manual_seed(1))
    args = LanguageModelTrainingArguments(
        str(tmp_path), eval_strategy="no", load_best_model_at_end=False, use_cpu=True,
        per_device_eval_batch_size=batch_size, report_to="none",
    )  # fmt: skip
    trainer = AiaynTrainer(model=model, args=args, data_collator=default_data_collator)
    size, step = 7, 3
    nats = []
    for target in range(1, 24):
        # Windows begin at 0, 3, 6 ... and the last at 17; a token is in the first that has it.
        start = next(s for s in [*range(0, 17, step), 17] if target < s + size)
        with torch.no_grad():
            logits = model(ids[None, start:target]).logits[0, -1]
        nats.append(-logits.log_softmax(-1)[ids[target]].item())
    score = score_text(trainer, EncodedText(ids, 48), size, step)
    assert score.nats == pytest.approx(np.mean(nats), rel=1e-5)
    assert score.bits_per_byte == pytest.approx(np.mean(nats) / math.log(2) / 2, rel=1e-5)


@pytest.fixture
def learned():
    """A small model of bytes; its learned positions fail for any token beyond the window."""
    options = PresetArguments(config_overrides=f"{SIZES[:-1]}, position_type: learned}}")
    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    return build_language_model(options, tokenizer, 9).eval(), tokenizer


def test_completion_continues_beyond_the_window_without_special_tokens(learned):
    model, tokenizer = learned
    for beginning in ("a", "a" * 30):
        options = {"samples": 3, "do_sample": True, "temperature": 5.0, "top_k": 0}
        texts = complete(model, tokenizer, beginning, 40, **options)
        assert len(texts) == len(set(texts)) == 3
        assert all(text.startswith(beginning) for text in texts)
        assert not any(token in text for text in texts for token in ("<s>", "</s>", "<unk>"))


@pytest.mark.parametrize("length", [3, 9, 10, 25])
def test_greedy_completion_takes_the_most_likely_token_each_time(learned, length):
    model, tokenizer = learned
    beginning = ("xyz" * 9)[:length]
    ids = tokenizer(beginning).input_ids
    window = 10
    seen = 0
    for _ in range(17):
        # The window has ten tokens; when it is full, the newer five stay.
        seen = seen if len(ids) - seen < window else len(ids) - window // 2
        with torch.no_grad():
            logits = model(torch.tensor([ids[seen:]])).logits[0, -1]
        logits[:4] = -math.inf
        ids.append(int(logits.argmax()))
    assert complete(model, tokenizer, beginning, 17, do_sample=False) == [tokenizer.decode(ids)]


def test_invalid_prompts_are_rejected(learned):
    with pytest.raises(ValueError, match="must have at least one character, got none"):
        complete(*learned, "", 3)
    assert complete(*learned, "a\udcff", 1, do_sample=False)[0].startswith("a\ufffd")
    blanks = train_character_tokenizer("ab \n")
    assert blanks.decode(encode_prompt(blanks, " a\n")) == " a\n"
    tokenizer = train_character_tokenizer("abc")
    with pytest.raises(ValueError, match="'é', which does not occur in the model's training text"):
        complete(learned[0], tokenizer, "abécd", 3)


def test_a_run_learns_is_scored_and_its_model_completes(run, text, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    flags = ("--train_file", text, "--output_dir", folder, *SMALL, "--max_steps", 120)
    options = ("--learning_rate", 0.01, "--test_share", 0.1)
    code, out, err = run("train_language_model.py", *flags, *options)
    assert code == 0, err
    scores = json.loads((folder / "scores.json").read_text())
    # Five words of 4.2 characters and a blank on average: the next word costs at least
    # ln 5 / 5.2 = 0.31 nats per character.
    assert 0.25 < scores["test, sliding window"]["nats"] < 1.0
    assert scores["test, sliding window"]["nats"] < scores["test, windows side by side"]["nats"]
    assert "| validation, windows side by side |" in out
    assert (folder / "curves.png").is_file()
    card = ModelCard.load(folder / "README.md")
    assert (card.data.pipeline_tag, card.data.license) == ("text-generation", "apache-2.0")
    bits = scores["test, sliding window"]["bits_per_byte"]
    assert [each.metric_value for each in card.data.eval_results] == [round(bits, 2)]
    assert "# run: a language model of characters\n" in card.text
    # 120 updates of 12 windows of 12 predictions each.
    characters = len(load_text(arguments(text, test_share=0.1))[0]["train"].ids)
    assert f"{characters:,} characters" in card.text
    assert f"in {120 * 12 * 12 / characters:.1f} epochs" in card.text
    assert {folder / "README.md", folder / "scores.json"} < set(files_to_publish(folder))
    monkeypatch.chdir(tmp_path)  # the card's example names the folder
    assert [len(output) for output in run_examples(card)] == [13 + 1]
    completed = ("--model", folder, "--text", "the qu", "--new_tokens", 40)
    code, out, err = run("complete.py", *completed)
    assert code == 0, err
    assert out.startswith("the quick ")
    assert len(out) == 6 + 40 + 1
    assert (
        run("complete.py", *completed)[1] == out != run("complete.py", *completed, "--seed", 1)[1]
    )
    greedy = ("--temperature", 0, "--samples", 2, "--new_tokens", 3)
    out = run("complete.py", "--model", folder, "--text", "the qu", *greedy)[1]
    assert out == "the quick\n\n---\n\nthe quick\n"
    code, out, _ = run("train_language_model.py", *flags, *options, "--resume", "auto")
    assert (code, out) == (0, f"Already finished: {folder}\n")


@pytest.mark.long
def test_a_killed_run_resumes_exactly(run, text, tmp_path, monkeypatch):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    flags = ("--train_file", text, *SMALL, "--max_steps", 40)
    assert run("train_language_model.py", *flags, "--output_dir", whole)[0] == 0
    step = AiaynTrainer.training_step

    def stop_at_25(self, *args, **kwargs):
        if self.state.global_step == 25:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, *args, **kwargs)

    monkeypatch.setattr(AiaynTrainer, "training_step", stop_at_25)
    flags = (*flags, "--output_dir", killed, "--resume", "auto")
    assert run("train_language_model.py", *flags)[0] == 143
    monkeypatch.setattr(AiaynTrainer, "training_step", step)
    content = text.read_text()
    text.write_text(content.replace("quick brown", "brown quick", 1))
    code, _, err = run("train_language_model.py", *flags)
    assert code == 1
    assert "The training data changed since this run began" in err
    text.write_text(content)
    code, _, err = run("train_language_model.py", *flags)
    assert code == 0, err
    one, other = (
        AutoModelForCausalLM.from_pretrained(path).state_dict() for path in (whole, killed)
    )
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_model_with_another_head_is_rejected(run, tmp_path):
    small_model(vocab_size=260).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    for script in ("complete.py", "classify.py"):
        code, out, err = run(script, "--model", tmp_path, "--text", "a")
        assert (code, out) == (1, "") and "must hold a model saved as Aiayn" in err
