"""Files that are damaged or hostile: each ends in one line that names it."""

import json
import math
import shutil
import time

import pytest
import torch
from conftest import small_model

from modeling_aiayn.translation.options import SearchOptions


@pytest.fixture
def damaged(model_folder, tmp_path):
    """A copy of a model's folder."""
    return shutil.copytree(model_folder, tmp_path / "model")


def translate_error(run, folder, text="The dog sees."):
    """The one line by which translate ends."""
    code, out, err = run("translate.py", "--model", folder, "--text", text)
    assert (code, out) == (1, "")
    error = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(error) == 1 and "Traceback" not in err
    return error[0]


@pytest.mark.parametrize(
    ("name", "field", "value", "reason"),
    [
        ("generation_config.json", "eos_token_id", None, "eos_token_id must be in [0, 600)"),
        ("generation_config.json", "eos_token_id", [2, 600], "got [2, 600]"),
        ("config.json", "d_model", 3 * 2**18, "Out of memory ("),
    ],
    ids=str,
)
def test_absurd_values_are_an_error(run, damaged, name, field, value, reason):
    content = json.loads((damaged / name).read_text()) | {field: value}
    (damaged / name).write_text(json.dumps(content))
    started = time.monotonic()
    error = translate_error(run, damaged)
    assert reason in error
    assert time.monotonic() - started < 60


def test_a_tokenizer_that_fails_is_an_error(run, damaged):
    content = json.loads((damaged / "tokenizer.json").read_text())
    explosive = {"type": "Split", "pattern": {"Regex": "(a+)+$|(.*)*b"}, "behavior": "Isolated"}
    content["pre_tokenizer"] = explosive | {"invert": False}
    (damaged / "tokenizer.json").write_text(json.dumps(content))
    assert "A library failed: Onig" in translate_error(run, damaged, "a" * 40 + "c")


def test_a_settings_file_that_was_cut_off_is_an_error(run, damaged):
    (damaged / "tokenizer_config.json").write_text('{"a": ')
    assert f"{damaged}/tokenizer_config.json: not valid JSON" in translate_error(run, damaged)


@pytest.mark.parametrize("mask", [0.5, 2, -1, float("nan")])
def test_masks_hold_zeros_and_ones(mask):
    model, ids = small_model(), torch.tensor([[5, 6, 2]])
    given = torch.tensor([[1, mask, 1]])
    with pytest.raises(ValueError, match="must hold 1 for real tokens and 0 for padding"):
        model(input_ids=ids, attention_mask=given, decoder_input_ids=ids)
    states = model.get_encoder()(input_ids=ids)
    with pytest.raises(ValueError, match="must hold 1 for real states and 0 for padding"):
        model(encoder_outputs=states, attention_mask=given, decoder_input_ids=ids)
    for kind in (torch.bool, torch.float32, torch.int64):
        fine = torch.tensor([[1, 1, 0]], dtype=kind)
        assert (
            model(input_ids=ids, attention_mask=fine, decoder_input_ids=ids).logits.isfinite().all()
        )


@pytest.mark.parametrize(
    ("option", "value"),
    [("length_penalty", math.nan), ("coverage_penalty", math.nan), ("max_length_factor", math.inf)],
)
def test_search_options_are_numbers(option, value):
    with pytest.raises(ValueError, match=f"{option} must be at least"):
        SearchOptions(**{option: value})
