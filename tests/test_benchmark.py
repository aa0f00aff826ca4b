"""The benchmark measures what it says; how fast anything is, it does not assert."""

from functools import partial

import pytest
import torch
from conftest import small_config
from own_process import OwnProcess
from peers import TorchTransformer, marian
from torch.utils.flop_counter import FlopCounterMode
from training_speed import (
    Update,
    contenders,
    measure,
    memory_table,
    peak_megabytes,
    peer_updates,
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


@pytest.mark.long
def test_contenders_take_their_updates(tmp_path, encoded, tokenizer):
    config = small_config(
        vocab_size=len(tokenizer),
        decoder_ffn_dim=13,
        encoder_attention_heads=2,
    )
    options = {
        "output_dir": str(tmp_path),
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    found = contenders(config, encoded, tokenizer, 400, options)
    updates, machine = measure(found, torch.float32, "cpu", rounds=2)
    for contender in found.values():
        contender.close()
    assert len(updates) == 7 and next(iter(updates)) == "ours, token batches"
    for measured in updates.values():
        assert len(measured) == 2 and all(each.tokens > 0 for each in measured)
    assert all(each.tokens <= 400 for each in updates["ours, token batches"])
    assert machine > 0


@pytest.mark.parametrize("make_model", [TorchTransformer, partial(marian, implementation="eager")])
def test_an_update_of_a_peer_changes_its_model(tmp_path, encoded, tokenizer, make_model):
    config = small_config(vocab_size=len(tokenizer), decoder_ffn_dim=13, encoder_attention_heads=2)
    models = []

    def keep(config):
        models.append(make_model(config))
        return models[0]

    options = {"output_dir": str(tmp_path), "use_cpu": True, "dataloader_pin_memory": False}
    rows = encoded.select_columns(["input_ids", "labels"])
    update = peer_updates(keep, config, rows, tokenizer, options)
    before = next(models[0].parameters()).clone()
    measured = [update(), update()]
    assert not torch.equal(before, next(models[0].parameters()))
    assert all(each.seconds > 0 and 0 <= each.padding < 1 for each in measured)


def test_the_table_has_medians_and_ratios():
    updates = {
        "ours, token batches": [
            Update(2.0, 100, 0.0, 30.0),
            Update(1.0, 100, 0.5, 30.0),
            Update(4.0, 100, 0.1, 30.0),
        ],
        "Marian, eager, random": [Update(4.0, 100, 0.25, 20.0)],
    }
    ours, peer = (line.split() for line in speed_table(updates, machine=60.0).splitlines())
    assert ours[3:] == ["50", "tokens/s", "1.00", "padding", "20%", "products", "25%"]
    assert peer[3:] == ["25", "tokens/s", "2.00", "padding", "25%", "products", "8%"]


@pytest.mark.long
def test_memory_is_of_a_process_of_its_own():
    ballast = torch.ones(2**28)  # A gigabyte that only this process has.
    table = memory_table(small_config(), max_tokens=16, length=4)
    lines = [line.replace(",", "").split() for line in table.splitlines()]
    assert [line[0] for line in lines] == ["ours", "Marian", "Marian"]
    peaks = [float(line[line.index("peak") + 1]) for line in lines]
    assert all(100 < peak < ballast.nbytes / 1e6 for peak in peaks)


@pytest.mark.parametrize("name", ["ours", "eager"])
@pytest.mark.parametrize("loss", ["none", "model"])
def test_the_peak_is_this_process_s(name, loss):
    assert peak_megabytes(name, loss, small_config(), 16, 4) > 100


@pytest.mark.long
def test_a_function_in_its_own_process_keeps_state_and_raises():
    function = OwnProcess(partial(getattr, [3, 5], "pop"))
    assert (function(), function()) == (5, 3)
    with pytest.raises(IndexError, match="pop from empty list"):
        function()
    function.close()
