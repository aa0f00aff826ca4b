"""The decoding benchmark measures the same work for all; no test asserts a speed."""

import own_process
import pytest
import torch
from conftest import small_config, small_model
from decoding_speed import (
    NEW_TOKENS,
    DecodingContender,
    decoding_contenders,
    decoding_table,
    floor_line,
    generate_file,
    linear_seconds,
    measure,
    random_model,
    translate_file,
    whole_file,
)

from modeling_aiayn import AiaynForConditionalGeneration


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch):
    monkeypatch.setattr(own_process, "PAUSE_SECONDS", 0.0)


@pytest.mark.long
def test_all_contenders_make_as_many_tokens(tokenizer):
    config = small_config(vocab_size=len(tokenizer), encoder_attention_heads=2)
    dtypes = ["float32", "float16", "int8"]
    contenders = decoding_contenders(config, tokenizer, dtypes, shortlisted=3)
    assert [contender.name for contender in contenders] == [
        "Translator float32",
        "Translator float32, shortlist",
        "our generate() float32",
        "Marian generate() float32",
        "Translator float16",
        "Translator float16, shortlist",
        "Translator int8",
        "Translator int8, shortlist",
        "CTranslate2 float32",
        "CTranslate2 int8",
    ]
    sources = [tokenizer(text).input_ids for text in ("The dog sees.", "We see my old friend.")]
    for contender in contenders:
        found = contender.decode(sources, 2)
        assert [len(ids) for ids in found] == [NEW_TOKENS] * 2, contender.name


def test_a_cpu_computes_with_halves_in_float32():
    config = small_config()
    model, halves, bfloat16, int8 = (
        random_model(AiaynForConditionalGeneration, config, dtype)
        for dtype in ("float32", "float16", "bfloat16", "int8")
    )
    weight = model.lm_head.weight
    assert halves.dtype == torch.float32
    torch.testing.assert_close(halves.lm_head.weight, weight.half().float(), rtol=0, atol=0)
    assert bfloat16.dtype == torch.bfloat16
    assert torch.equal(int8.lm_head.weight, weight)


def test_rounds_are_measured_after_one_to_warm_up():
    calls = []
    contender = DecodingContender("Translator float32", lambda *given: calls.append(given))
    sources = [[index] for index in range(7)]
    measure([contender], sources, batch_size=3, num_beams=2, rounds=3)
    assert [batch for batch, _ in calls] == [
        [[0], [1], [2]],
        [[3], [4], [5]],
        [[1], [2], [3]],
        [[4], [5], [6]],
    ]
    assert len(contender.seconds) == 3


def test_the_table_has_rates_and_ratios():
    contenders = [
        DecodingContender("Translator float32", len, [0.5, 9.0, 0.4]),
        DecodingContender("Marian generate() float32", len, [2.0, 1.0, 1.0]),
    ]
    head, ours, theirs = decoding_table(contenders, batch_size=4).splitlines()
    assert head.split() == ["tokens/s", "ours", "float32"]
    assert ours.split()[-2:] == ["256", "1.00x"]
    assert theirs.split()[-2:] == ["128", "2.00x"]


def test_the_floor_is_of_the_linear_layers_of_a_step():
    model = small_model()
    assert 0 < linear_seconds(model, rows=6, repeats=3) < 1
    for dtype in ("float32", "int8"):
        assert floor_line(model, dtype, 3, 2).startswith(f"linear layers {dtype}")


def test_a_whole_file_is_translated_by_both(tmp_path, tokenizer):
    model = small_model(vocab_size=len(tokenizer), decoder_layers=1)
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path)
    jobs = {
        "ours": translate_file(str(tmp_path), "float32", 1),
        "generate()": generate_file(str(tmp_path), "float32", 1),
    }
    table = whole_file(jobs, ["The dog sees.", "We see."], rounds=1)
    ours, theirs = (line.split() for line in table.splitlines())
    assert (ours[0], theirs[0]) == ("ours", "generate()")
    assert ours[-2:] == theirs[-2:] == ["2", "identical"]
    assert theirs[-3] == "1.00x"


@pytest.mark.long
def test_the_script_prints_a_table_of_each_case(run, tmp_path, monkeypatch):
    lines = [f"The dog number {n} sees.\tDer Hund {n} sieht.\n" for n in range(9)]
    (tmp_path / "pairs.tsv").write_text("".join(lines))
    monkeypatch.setattr(
        "modeling_aiayn.AiaynConfig.from_preset",
        lambda name, vocab_size: small_config(vocab_size=vocab_size, encoder_attention_heads=2),
    )
    code, out, err = run(
        *("../benchmarks/benchmark_decoding.py", "--file", tmp_path / "pairs.tsv", "--rounds", 1),
        *("--train_file", tmp_path / "pairs.tsv", "--vocab_size", 300, "--batches", 2),
        *("--beams", 2, "--dtypes", "float32"),
    )
    assert code == 0, err
    assert "batch 2, beam 2" in out and "CTranslate2 int8" in out and "ms a step" in out
