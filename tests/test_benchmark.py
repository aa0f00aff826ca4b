"""The benchmark measures what it says; how fast anything is, it does not assert."""

from pathlib import Path

import pytest
import torch
import training_speed
from conftest import small_config
from torch.utils.flop_counter import FlopCounterMode
from training_speed import (
    contenders,
    memory_table,
    product_rate,
    speed_table,
    training_flops,
)

from modeling_aiayn import AiaynForConditionalGeneration


def test_products_are_those_that_torch_counts():
    """One pair without padding; torch counts whole squares of the decoder's own attention."""
    config = small_config(dropout=0.0)
    model = AiaynForConditionalGeneration(config)
    ids, labels = torch.randint(4, 31, (1, 7)), torch.randint(4, 31, (1, 5))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=labels).loss.backward()
    half_squares = 3 * 2 * 2 * config.d_model * (5 * 5 - 5 * 6 / 2) * config.decoder_layers
    ours = training_flops(config, torch.tensor([7]), torch.tensor([5]))
    # The gradient of the sources' embeddings needs no product with them.
    assert counter.get_total_flops() == pytest.approx(ours + half_squares, rel=0.01)


def test_contenders_take_their_updates(tmp_path, encoded, tokenizer):
    config = small_config(
        vocab_size=len(tokenizer),
        decoder_ffn_dim=13,
        encoder_attention_heads=2,
    )
    found = contenders(
        config, encoded, tokenizer, 400, str(tmp_path), use_cpu=True, disable_tqdm=True,
        dataloader_pin_memory=False,
    )  # fmt: skip
    before = {name: next(c.trainer.model.parameters()).clone() for name, c in found.items()}
    for contender in found.values():
        for _ in range(2):
            contender.update()
    assert len(found) == 7 and next(iter(found)) == "ours, token batches"
    for name, contender in found.items():
        assert not torch.equal(before[name], next(contender.trainer.model.parameters())), name
        assert len(contender.tokens) == 2 and min(contender.tokens) > 0
        assert 0 <= min(contender.padding) < 1
    ours = next(iter(found.values()))
    assert max(ours.tokens) <= 400
    lines = speed_table(found, product_rate(torch.float32, "cpu", size=64)).splitlines()
    assert len(lines) == 7
    assert " 1.00  padding" in lines[0]


def test_memory_is_of_a_process_of_its_own(monkeypatch):
    calls = []

    def measure(command, text, cwd):
        assert (Path(cwd) / "training_speed.py").exists()
        calls.append(command[2].splitlines()[-1])
        return f"noise\n{100.0 * len(calls)}\n"

    monkeypatch.setattr(training_speed.subprocess, "check_output", measure)
    lines = memory_table(16, 50, 4).splitlines()
    assert calls[0] == "print(peak_megabytes('ours', 'none', 16, 50, 4))"
    assert calls[-1] == "print(peak_megabytes('sdpa', 'model', 16, 50, 4))"
    assert " ".join(lines[1].split()) == "Marian, eager peak 400 MB, of it 100 for the loss"
    assert len(lines) == 3


@pytest.mark.parametrize("name", ["ours", "eager"])
@pytest.mark.parametrize("loss", ["none", "model"])
def test_the_peak_is_this_process_s(monkeypatch, name, loss):
    monkeypatch.setattr(
        training_speed.AiaynConfig,
        "from_preset",
        lambda preset, vocab_size: small_config(vocab_size=vocab_size),
    )
    assert training_speed.peak_megabytes(name, loss, 16, 50, 4) > 100
