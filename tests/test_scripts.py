"""The scripts as their users meet them: flags in, files and one clear line out."""

import ast
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import yaml
from conftest import ROOT

from modeling_aiayn.command_line import parse_arguments, run_script
from modeling_aiayn.embedded_corpus import generate_pairs
from modeling_aiayn.training import AiaynTrainingArguments
from modeling_aiayn.training.arguments import DataArguments, ModelArguments
from modeling_aiayn.translation.arguments import TranslatorArguments

SCRIPTS = sorted(path.name for path in (ROOT / "scripts").glob("*.py"))
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_is_the_docstring_and_the_fields(run, name):
    code, out, _ = run(name, "--help")
    docstring = ast.get_docstring(ast.parse((ROOT / "scripts" / name).read_text()))
    assert code == 0
    assert docstring.splitlines()[0].split()[0] in out
    assert any(option in out for option in ("--model", "--preset", "--run"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_thin(name):
    assert len((ROOT / "scripts" / name).read_text().splitlines()) <= 80


def test_as_many_lines_out_as_in(run, model_folder, tmp_path):
    """RELIABILITY A-X01, from a file, from stdin and from arguments."""
    lines = ["The dog sees.", "", "We see the cat.", " ", "A man."]
    text = "".join(f"{line}\n" for line in lines)
    (tmp_path / "in.txt").write_text(text)
    options = ("--model", model_folder, "--num_beams", 2)
    code, out, err = run("translate.py", *options, "--input", tmp_path / "in.txt")
    assert code == 0
    assert [bool(line) for line in out.split("\n")] == [True, False, True, False, True, False]
    assert "sentence" in err
    _, piped, _ = run("translate.py", *options, stdin=text.encode())
    assert piped == out
    _, named, _ = run("translate.py", *options, "--text", *lines)
    assert named == out
    _, nothing, _ = run(
        "translate.py", *options, "--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt"
    )
    assert (nothing, (tmp_path / "out.txt").read_text()) == ("", out)


def test_nothing_in_gives_nothing_out_and_says_so(run, model_folder, caplog):
    code, out, _ = run("translate.py", "--model", model_folder)
    assert (code, out) == (0, "")
    assert "nothing to translate" in caplog.text


def test_scores_go_to_the_table_and_to_files(run, model_folder, tmp_path):
    (tmp_path / "pairs.tsv").write_text("The dog sees.\tDer Hund sieht.\nWe see.\tWir sehen.\n")
    code, out, _ = run(
        "evaluate_translation.py",
        *("--model", model_folder, "--file", tmp_path / "pairs.tsv", "--num_beams", 1),
        *("--scores", tmp_path / "scores.json", "--translations", tmp_path / "out.txt"),
    )
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert code == 0
    assert f"{scores['chrf']:.2f}  {scores['chrf_signature']}" in out
    assert scores["perplexity"] > 1
    assert len((tmp_path / "out.txt").read_text().splitlines()) == 2


def test_attention_is_drawn(run, model_folder, tmp_path):
    code, out, _ = run(
        "draw_attention.py",
        *("--model", model_folder, "--text", "The dog.", "--output", tmp_path / "map.png"),
    )
    assert code == 0
    assert "map.png" in out
    assert (tmp_path / "map.png").stat().st_size > 5000


def test_training_leaves_model_scores_card_and_curves(run, tmp_path):
    """The script whole, then again to see that nothing is overwritten."""
    splits = ("train", "validation", "test")
    for name in splits:
        rows = (f"{pair.source}\t{pair.target}\n" for pair in generate_pairs(name, 30))
        (tmp_path / f"{name}.tsv").write_text("".join(rows))
    (tmp_path / "recipe.yaml").write_text(
        yaml.safe_dump(
            {
                **{f"{name}_file": f"{tmp_path}/{name}.tsv" for name in splits},
                "preset": "tiny",
                "config_overrides": {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16},
                "vocab_size": 420,
                "per_device_train_batch_size": 8,
                "per_device_eval_batch_size": 500,
                "eval_strategy": "steps",
                "eval_steps": 2,
                "save_strategy": "steps",
                "save_steps": 2,
                "load_best_model_at_end": True,
                "metric_for_best_model": "loss",
                "early_stopping_patience": 9,
                "report_to": "tensorboard",
                "use_cpu": True,
                "generation_max_length": 4,
            }
        )
    )
    arguments = (tmp_path / "recipe.yaml", "--output_dir", tmp_path / "run", "--max_steps", 2)
    code, out, err = run("train_translation.py", *arguments)
    assert code == 0, err
    assert "bleu " in out
    written = {path.name for path in (tmp_path / "run").iterdir()}
    assert {
        "README.md",
        "scores.json",
        "curves.png",
        "model.safetensors",
        "checkpoint-2",
    } <= written
    assert list((tmp_path / "run").rglob("events.out.tfevents*"))
    code, _, err = run("train_translation.py", *arguments)
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("error: output_dir") and "--resume auto" in err


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("translate.py", ["--model", "/none", "--text", "a"], "No such directory: /none"),
        (
            "translate.py",
            ["--model", "x", "--text", "a", "--input", "b"],
            "either --text or --input",
        ),
        ("translate.py", ["--model", "x", "--input", "/none.txt"], "/none.txt"),
        ("translate.py", ["--model", "x", "--num_beams", "0"], "num_beams must be at least 1"),
        ("evaluate_translation.py", ["--model", "x", "--file", "/none"], "No such file: /none.en"),
        ("train_translation.py", ["/none.yaml"], "/none.yaml"),
        (
            "train_translation.py",
            ["--preset", "huge", "--embedded_train_size", "9"],
            "preset must be",
        ),
        ("train_translation.py", ["--train_file", "/none"], "needs a validation_file"),
        (
            "train_translation.py",
            ["--config_overrides", "d_model: 130", "--embedded_train_size", "9"],
            "d_model must be a multiple of encoder_attention_heads",
        ),
        ("train_translation.py", ["--lr_scheduler_type", "nome"], "one of noam, linear"),
    ],
)
def test_a_user_s_mistake_is_one_line(run, tmp_path, monkeypatch, name, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(name, *arguments)
    assert (code, out) == (1, "")
    error = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(error) == 1 and message in error[0]
    assert "Traceback" not in err


def test_an_unknown_flag_is_a_usage_error(run):
    code, _, err = run("translate.py", "--model", "x", "--nope")
    assert code == 2
    assert "--nope" in err


def test_debug_shows_the_traceback(run):
    with pytest.raises(FileNotFoundError):
        run("translate.py", "--model", "/none", "--text", "a", "--debug")


@pytest.mark.parametrize(
    ("text", "message"), [("a: [", "not valid YAML"), ("- a", "must be a YAML mapping")]
)
def test_a_recipe_that_is_none_is_refused(monkeypatch, tmp_path, text, message):
    (tmp_path / "recipe.yaml").write_text(text)
    monkeypatch.setattr(sys, "argv", ["x", str(tmp_path / "recipe.yaml")])
    with pytest.raises(ValueError, match=message):
        parse_arguments("", TranslatorArguments)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipes_are_read_and_later_flags_win(monkeypatch, tmp_path, path):
    flags = ["--output_dir", str(tmp_path), "--seed", "7", "--use_cpu", "true"]
    monkeypatch.setattr(sys, "argv", ["x", str(path), *flags])
    data, model, args = parse_arguments("", DataArguments, ModelArguments, AiaynTrainingArguments)
    assert (args.seed, args.output_dir) == (7, str(tmp_path))
    recipe = yaml.safe_load(path.read_text())
    for name, value in recipe.items():
        holder = next(holder for holder in (data, model, args) if hasattr(holder, name))
        if isinstance(value, dict):
            assert yaml.safe_load(getattr(holder, name)) == value
        elif name != "report_to":
            assert getattr(holder, name) == value


def test_a_terminated_run_goes_on_and_a_finished_one_is_left_alone(run, tmp_path, caplog):
    """RELIABILITY A-R11, A-R13, A-R14, A-D04: the same command until it is done."""
    caplog.set_level("INFO")
    pairs = [(pair.source, pair.target) for pair in generate_pairs("train", 60, seed=1)]
    for name in ("train", "validation"):
        lines = "".join(f"{source}\t{target}\n" for source, target in pairs)
        (tmp_path / f"{name}.tsv").write_text(lines)
    folder = tmp_path / "run"
    command = [
        *("train_translation.py", "--output_dir", folder, "--train_file", tmp_path / "train.tsv"),
        *("--validation_file", tmp_path / "validation.tsv", "--preset", "tiny", "--seed", 1),
        *("--config_overrides", "{encoder_layers: 1, decoder_layers: 1}", "--vocab_size", 400),
        *("--max_steps", 60, "--warmup_steps", 50, "--save_strategy", "steps", "--save_steps", 20),
        *("--per_device_train_batch_size", 8, "--logging_steps", 10),
    ]

    def terminate():
        deadline = time.monotonic() + 120
        while not (folder / "checkpoint-20").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    watcher = threading.Thread(target=terminate)
    watcher.start()
    code, out, _ = run(*command)
    watcher.join()
    assert (code, out) == (143, "")
    assert not (folder / "model.safetensors").exists() and not (folder / "README.md").exists()
    updates = [int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*")]
    assert 20 in updates and 60 not in updates and max(updates) % 20
    code, _, err = run(*command)
    assert code == 1 and "holds another run" in err
    code, _, err = run(*command, "--resume", "auto", "--config_overrides", "{d_model: 64}")
    assert code == 1 and "d_model was 128 when this run began, and is 64 now" in err
    code, out, err = run(*command, "--resume", "auto")
    assert code == 0, err
    assert "| updates" in out and "bleu" in out
    assert f"Going on from {folder / f'checkpoint-{max(updates)}'}" in caplog.text
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != ".lock"}
    code, out, _ = run(*command, "--resume", "auto")
    assert (code, out) == (0, f"Already finished: {folder}\n")
    after = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != ".lock"}
    assert after == before


def test_interrupts_end_quietly(capsys):
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as stop:
        run_script(interrupted)
    assert stop.value.code == 130
    assert capsys.readouterr().err == ""


def test_a_reader_that_goes_away_is_no_error(model_folder):
    """RELIABILITY A-X03: translate | head -1."""
    command = (
        f"yes 'The cat.' | head -40 | {sys.executable} scripts/translate.py --model {model_folder} "
    )
    done = subprocess.run(
        ["bash", "-c", f"{command} --num_beams 1 --batch_size 40 | head -1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr


def test_reload_is_proven_in_a_fresh_process(model_folder, tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "scripts/check_reload.py",
            "--model",
            str(model_folder),
            "--text",
            "The dog.",
        ],
        cwd=ROOT,
        env={**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Reloaded AiaynForConditionalGeneration" in done.stdout
