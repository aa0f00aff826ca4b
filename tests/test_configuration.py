"""AiaynConfig: the paper's numbers by default, and refusal of what cannot be built."""

import json

import pytest
from conftest import small_config
from huggingface_hub.errors import (
    StrictDataclassClassValidationError,
)
from transformers import AutoConfig

from modeling_aiayn import AiaynConfig, AiaynForConditionalGeneration
from modeling_aiayn.configuration_aiayn import PRESETS


def test_defaults_are_the_base_model_of_table_3():
    config = AiaynConfig()
    assert (config.d_model, config.encoder_layers, config.decoder_layers) == (512, 6, 6)
    assert (config.encoder_ffn_dim, config.encoder_attention_heads) == (2048, 8)
    assert (config.dropout, config.norm_first, config.position_type) == (0.1, False, "sinusoidal")
    assert (config.bos_token_id, config.pad_token_id, config.eos_token_id) == (0, 1, 2)


@pytest.mark.parametrize(("preset", "millions"), [("base", 63), ("big", 214)])
def test_presets_have_the_parameters_of_table_3(preset, millions):
    """Table 3 says 65 and 213 million; the vocabulary is "about 37000", and tied three ways."""
    import torch

    with torch.device("meta"):
        model = AiaynForConditionalGeneration(AiaynConfig.from_preset(preset))
        model.tie_weights()
    assert round(model.num_parameters() / 1e6) == pytest.approx(millions, abs=1)


def test_tiny_preset_is_transformer_tiny():
    config = AiaynConfig.from_preset("tiny", vocab_size=9712)
    assert PRESETS["tiny"].items() <= config.to_dict().items()
    assert AiaynForConditionalGeneration(config).num_parameters() == pytest.approx(2.6e6, rel=0.03)


@pytest.mark.parametrize(
    ("keyword", "field"),
    [("dmodel", "d_model"), ("num_encoder_layers", "encoder_layers")],
)
def test_a_misspelt_keyword_is_reported_with_the_field(caplog, keyword, field):
    config = AiaynConfig(**{keyword: 3})
    assert f"No field {keyword!r} in AiaynConfig, did you mean {field!r}?" in caplog.text
    assert getattr(config, keyword) == 3


def test_a_misspelt_key_in_a_file_is_reported(tmp_path, caplog):
    small_config().save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    content["droput"] = content.pop("dropout")
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert AutoConfig.from_pretrained(tmp_path).dropout == AiaynConfig().dropout
    assert "did you mean 'dropout'" in caplog.text


@pytest.mark.parametrize(
    "keyword",
    ["num_labels", "attn_implementation", "name_or_path", "max_length", "output_attentions"],
)
def test_keywords_of_the_library_are_accepted(keyword):
    value = {"attn_implementation": "eager", "name_or_path": "x", "output_attentions": False}
    AiaynConfig(**{keyword: value.get(keyword, 5)})


def test_names_of_transformers_are_aliases_of_fields():
    config = AiaynConfig(hidden_size=64, num_hidden_layers=3, num_attention_heads=4)
    assert (config.d_model, config.encoder_layers, config.encoder_attention_heads) == (64, 3, 4)
    assert config.hidden_size == 64


HALVES = ("layers", "attention_heads", "ffn_dim")
POSITIVE = [f"{half}_{name}" for half in ("encoder", "decoder") for name in HALVES]
POSITIVE += ["vocab_size", "decoder_vocab_size", "d_model", "head_dim", "max_position_embeddings"]
RATES = ["dropout", "attention_dropout", "activation_dropout", "classifier_dropout"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        *(({name: value}, rf"{name} must be at least 1, got {value}") for name in POSITIVE for value in (0, -1)),
        *(({name: -0.1}, rf"{name} must be in \[0, 1\), got -0.1") for name in RATES),
        *(({name: 1}, rf"{name} must be in \[0, 1\), got 1") for name in RATES),
        ({"activation_function": "foo"}, "activation_function must be one of .*relu.*got 'foo'"),
        ({"pad_token_id": 37000}, r"pad_token_id must be in \[0, 37000\), got 37000"),
        ({"eos_token_id": [2, -3]}, r"eos_token_id must be in \[0, 37000\), got -3"),
        ({"decoder_vocab_size": 2}, r"eos_token_id must be in \[0, 2\), got 2"),
        ({"decoder_start_token_id": 40000}, "decoder_start_token_id must be"),
    ],
)  # fmt: skip
def test_impossible_values_raise_an_error(values, message):
    with pytest.raises(StrictDataclassClassValidationError, match=message):
        AiaynConfig(**values)


def test_head_dim_is_read_as_a_number_and_saved_as_it_was_given(tmp_path):
    """Tools of transformers read getattr(config, "head_dim", d_model // heads)."""
    config = AiaynConfig(d_model=24, encoder_attention_heads=4, decoder_attention_heads=3)
    config.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["head_dim"] is None
    again = AiaynConfig.from_pretrained(tmp_path)
    halves = [again.get_text_config(**{half: True}).head_dim for half in ("encoder", "decoder")]
    assert (again.head_dim, halves) == (6, [6, 8])
    again.d_model, again.encoder_attention_heads = 42, 6
    assert again.head_dim == 7
    model = AiaynForConditionalGeneration(config)
    assert model.model.decoder.layers[0].self_attn.head_dim == 8
    assert AiaynConfig(d_model=24, head_dim=5).get_text_config(decoder=True).head_dim == 5


def test_any_width_is_fine_with_head_dim_or_learned_positions():
    assert AiaynConfig(d_model=30, head_dim=30).head_dim == 30
    assert AiaynConfig(d_model=15, head_dim=4, position_type="learned").d_model == 15


def test_round_trip_keeps_every_field(tmp_path):
    config = small_config(
        decoder_vocab_size=29, head_dim=5, position_type="learned", position_base=9000,
        position_offset=2, norm_first=True, final_norm=False, layer_norm_eps=1e-4,
        eos_token_id=[2, 4], tie_word_embeddings=False,
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert type(loaded) is AiaynConfig
    ours, theirs = config.to_dict(), loaded.to_dict()
    for name in ("transformers_version", "_name_or_path"):
        ours.pop(name, None), theirs.pop(name, None)
    assert ours == theirs


def test_saved_folder_names_no_other_repository(tmp_path):
    config = small_config()
    config.auto_map = {
        "AutoModel": "someone/else--modeling_aiayn.AiaynModel",
        "AutoModelForSeq2SeqLM": "own.Model",
    }
    config.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())["auto_map"]
    assert saved["AutoModel"] == "modeling_aiayn.AiaynModel"
    assert saved["AutoModelForSeq2SeqLM"] == "own.Model"


@pytest.mark.parametrize(("decoder_vocab_size", "expected"), [(None, 31), (29, 29)])
def test_get_text_config_returns_the_sizes_of_the_decoder(decoder_vocab_size, expected):
    config = small_config(decoder_vocab_size=decoder_vocab_size)
    view = config.get_text_config(decoder=True)
    assert (view.num_hidden_layers, view.num_attention_heads, view.vocab_size) == (3, 2, expected)
    # generate() asks for neither half, and takes vocab_size for the number of logits.
    assert config.get_text_config().vocab_size == expected
    assert config.vocab_size == 31
    assert config.decoder_vocab_size == decoder_vocab_size


def test_attributes_that_libraries_set_never_prevent_saving(tmp_path, caplog):
    config = small_config()
    config.encoder_layerdrop, config.tie_encoder_decoder = 0.1, False
    config.sep_token_id, config.architectures = 5, None
    config.save_pretrained(tmp_path)
    again = AutoConfig.from_pretrained(tmp_path)
    assert (again.sep_token_id, again.encoder_layerdrop) == (5, 0.1)
    assert "'encoder_layerdrop'" not in caplog.text
