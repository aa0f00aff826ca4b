"""Files that are damaged or hostile: each ends in one line that names it."""

import json
import math
import shutil
import time

import pytest
import torch
from conftest import small_config, small_model
from safetensors.torch import load_file, save_file

from modeling_aiayn.translation import Translator
from modeling_aiayn.translation.options import SearchOptions

NESTED = "[" * 100_000 + "]" * 100_000


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
    ("content", "reason"),
    [
        ("null", " must hold a JSON object, got null."),
        ("[]", " must hold a JSON object, got list."),
        (NESTED, ": the JSON is nested too deeply."),
        ('{"a": ', ": not valid JSON (Expecting value"),
        ('{"a": ' + "9" * 5000 + "}", ": not valid JSON (Exceeds the limit"),
        ('{"a": "\\ud800"}', ": holds half of a surrogate pair"),
    ],
    ids=["null", "list", "nested", "cut", "digits", "surrogate"],
)
@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
)
def test_a_json_file_that_holds_no_object_is_named(run, damaged, name, content, reason):
    (damaged / name).write_text(content)
    assert f"{damaged}/{name}{reason}" in translate_error(run, damaged)


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ("null", "is damaged"),
        (NESTED, "is damaged"),
        ('{"weight_map": [1]}', "is damaged"),
        ('{"weight_map": {"a": "evil.bin"}}', "must name .safetensors files, got 'evil.bin'"),
        ('{"weight_map": {"a": 5}}', "must name .safetensors files, got 5"),
    ],
    ids=["null", "nested", "list", "pickle", "number"],
)
def test_an_index_of_weights_is_checked(run, damaged, index, reason):
    (damaged / "model.safetensors").rename(damaged / "model-00001-of-00001.safetensors")
    (damaged / "model.safetensors.index.json").write_text(index)
    error = translate_error(run, damaged)
    assert "model.safetensors.index.json" in error and reason in error


def test_an_index_on_the_hub_names_no_pickle(hub, damaged, monkeypatch):
    torch.save({}, damaged / "evil.bin")
    (damaged / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": {"lm_head.weight": "evil.bin"}}
    (damaged / "model.safetensors.index.json").write_text(json.dumps(index))
    files = {path.name: path.read_bytes() for path in damaged.iterdir()}
    hub.repositories["me/evil"] = {"main": ("1" * 40, files)}
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("torch.load was called"))
    with pytest.raises(OSError, match=r"must name \.safetensors files, got 'evil\.bin'"):
        Translator.from_pretrained("me/evil", hub=True)


@pytest.mark.parametrize(
    ("name", "field", "value", "reason"),
    [
        ("generation_config.json", "eos_token_id", None, "eos_token_id must be in [0, 600)"),
        ("generation_config.json", "eos_token_id", -1, "eos_token_id must be in [0, 600), got -1"),
        ("generation_config.json", "eos_token_id", [2, 600], "got [2, 600]"),
        ("generation_config.json", "eos_token_id", "2", "got '2'"),
        ("config.json", "encoder_layers", 10**7, "encoder_layers must be in [1, 1000], got 10000"),
        ("config.json", "num_labels", 10**9, "num_labels must be in [0, 1048576], got 1000000000"),
        ("config.json", "d_model", 3 * 2**18, "Out of memory ("),
        ("config.json", "dtype", 5, "a file in it is damaged or of another kind"),
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
    assert f"The tokenizer of {damaged} failed: Onig" in translate_error(
        run, damaged, "a" * 40 + "c"
    )
    content["model"]["vocab"] = {}
    (damaged / "tokenizer.json").write_text(json.dumps(content))
    assert "error: " in translate_error(run, damaged)


def test_integer_weights_are_rejected(run, damaged):
    weights = load_file(damaged / "model.safetensors")
    name = next(iter(weights))
    save_file(weights | {name: weights[name].long()}, damaged / "model.safetensors")
    reason = f"the weight {name} must have one of the types F64, F32, F16, BF16, got I64."
    assert reason in translate_error(run, damaged)


def test_no_table_of_weights_is_shown_beside_the_error(run, damaged, caplog):
    config = small_config(vocab_size=600, d_model=24)
    config.architectures = ["AiaynForConditionalGeneration"]
    config.save_pretrained(damaged)
    assert "must have shape" in translate_error(run, damaged)
    assert "LOAD REPORT" not in caplog.text


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
