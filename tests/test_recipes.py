"""Dry runs of the recipes that are too large for a test machine, on a little local data."""

import json
import sys

import pytest
import yaml

from modeling_aiayn import AiaynConfig
from modeling_aiayn.commands.command_line import RECIPES, parse_arguments, recipe_flags
from modeling_aiayn.data.embedded_corpus import generate_pairs
from modeling_aiayn.data.parsing import parse_yaml
from modeling_aiayn.training import AiaynTrainingArguments
from modeling_aiayn.training.data import DataArguments, check_max_length
from modeling_aiayn.training.setup import (
    ModelArguments,
    PresetArguments,
    build_config,
    read_overrides,
)

WMT14 = [RECIPES / f"wmt14_{size}.yaml" for size in ("base", "big")]


@pytest.fixture
def wmt14(tmp_path):
    """A dataset with WMT14's columns and configuration and sentences of the embedded grammar."""
    folder = tmp_path / "wmt14"
    folder.mkdir()
    for split in ("train", "validation", "test"):
        rows = [
            {"translation": {"de": pair.target, "en": pair.source}}
            for pair in generate_pairs(split, 40, seed=3)
        ]
        (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    files = [
        {"split": split, "path": f"{split}.jsonl"} for split in ("train", "validation", "test")
    ]
    card = yaml.safe_dump({"configs": [{"config_name": "de-en", "data_files": files}]})
    (folder / "README.md").write_text(f"---\n{card}---\n")
    return folder


@pytest.mark.parametrize("name", ["multi30k_seeds", "multi30k_tiny", "student", "demo"])
def test_a_recipe_keeps_pairs_for_which_its_model_has_positions(monkeypatch, tmp_path, name):
    monkeypatch.setattr(sys, "argv", ["x", f"{name}.yaml", "--output_dir", str(tmp_path)])
    data, model, *_ = parse_arguments("", DataArguments, ModelArguments, AiaynTrainingArguments)
    check_max_length(data, build_config(model))


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_recipe_gives_a_configuration(path):
    recipe = parse_yaml(path.read_text(), "recipe")
    overrides = recipe.get("config_overrides", {})
    arguments = PresetArguments(recipe.get("preset", "tiny"), yaml.safe_dump(overrides))
    assert read_overrides(arguments) == overrides
    config = AiaynConfig.from_preset(arguments.preset, **overrides)
    for name, value in overrides.items():
        assert getattr(config, name.replace("attn_", "_attn_")) == value


@pytest.mark.long
@pytest.mark.parametrize("path", WMT14, ids=lambda path: path.stem)
def test_the_recipe_trains_with_smaller_sizes(run, wmt14, tmp_path, path):
    """Data by name, shared BPE, accumulation, beam 4 and alpha 0.6 are the recipe's own."""
    folder = tmp_path / "run"
    sizes = "{d_model: 16, encoder_layers: 1, decoder_layers: 1, encoder_ffn_dim: 8, decoder_ffn_dim: 8}"
    code, out, err = run(
        *("train_translation.py", path, "--output_dir", folder, "--dataset_name", wmt14),
        *("--config_overrides", sizes, "--vocab_size", 400, "--max_steps", 2, "--use_cpu", "true"),
        *("--logging_steps", 1),
        *("--max_tokens_per_batch", 400, "--dataloader_num_workers", 0),
        *("--generation_max_length", 4),
    )
    assert code == 0, err
    assert "| padding" in out and "bleu " in out
    settings = json.loads((folder / "generation_config.json").read_text())
    assert (settings["num_beams"], settings["length_penalty"]) == (4, 0.6)
    state = json.loads((folder / "checkpoint-2" / "trainer_state.json").read_text())
    assert state["global_step"] == 2


@pytest.mark.parametrize(
    ("path", "parameters", "updates", "dropout", "averaged"),
    [(WMT14[0], 63e6, 100_000, 0.1, 5), (WMT14[1], 214e6, 300_000, 0.3, 20)],
    ids=["base", "big"],
)
def test_the_numbers_are_those_of_the_paper(
    monkeypatch, tmp_path, path, parameters, updates, dropout, averaged
):
    monkeypatch.setattr(
        sys, "argv", ["x", str(path), "--output_dir", str(tmp_path), "--use_cpu", "true"]
    )
    data, model, args = parse_arguments("", DataArguments, ModelArguments, AiaynTrainingArguments)
    config = build_config(model, vocab_size=model.vocab_size)
    assert isinstance(config, AiaynConfig)
    assert (args.max_steps, args.warmup_steps, args.label_smoothing_factor) == (updates, 4000, 0.1)
    assert args.max_tokens_per_batch * args.gradient_accumulation_steps == 50_000
    assert (args.save_total_limit, config.dropout, model.length_penalty) == (averaged, dropout, 0.6)
    assert (args.lr_scheduler_type, args.learning_rate, args.max_grad_norm) == ("noam", 1.0, 0.0)
    assert (data.dataset_name, data.source_lang, data.target_lang) == ("wmt/wmt14", "en", "de")
    width, ffn = config.d_model, config.encoder_ffn_dim
    layer = 4 * width**2 + 2 * width * ffn
    count = 37_000 * width + 6 * layer + 6 * (layer + 4 * width**2)
    assert count == pytest.approx(parameters, rel=0.02)


def test_recipes_hold_norwegian_and_mappings(tmp_path):
    """YAML 1.1 takes no for a boolean, and transformers reads its own mappings as JSON."""
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "target_lang: no\nlr_scheduler_kwargs: {min_lr: 0.1}\nbf16: true\nuse_cpu: False\n"
        "config_overrides: {norm_first: true, classifier_pooling: max, layer_norm_eps: 0.00001}\n"
        "noise_kinds: [on, Yes]\n"
    )
    flags = recipe_flags(parse_yaml(path.read_text(), "recipe"))
    assert flags[:4] == ["--target_lang", "no", "--lr_scheduler_kwargs", '{"min_lr": 0.1}']
    assert flags[4:8] == ["--bf16", "True", "--use_cpu", "False"]
    overrides = {"norm_first": True, "classifier_pooling": "max", "layer_norm_eps": 1e-5}
    assert parse_yaml(flags[9], "flag") == overrides
    assert parse_yaml("[010, 1:30, +7]", "flag") == [10, "1:30", 7]
    assert parse_yaml("[1e-5, -2E3, 1.5e+2, 1e, e5, 12]", "flag") == [
        *(1e-5, -2000.0, 150.0, "1e", "e5", 12)
    ]
    assert flags[10:] == ["--noise_kinds", "on", "Yes"]
