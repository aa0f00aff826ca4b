"""The commands as users run them: flags, output files, errors and interrupts."""

import ast
import errno
import gc
import gzip
import io
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
import yaml
from conftest import (
    CLASSIFIER_RECIPES,
    LANGUAGE_MODEL_RECIPES,
    ROOT,
    arguments_of_recipe,
    small_model,
)
from huggingface_hub import HfApi
from safetensors import deserialize
from torch import distributed
from transformers import AutoConfig, AutoTokenizer

import aiayn
from modeling_aiayn import AiaynForSequenceClassification
from modeling_aiayn.commands import evaluate_translation as evaluate_command
from modeling_aiayn.commands import translate
from modeling_aiayn.commands.command_line import (
    RECIPES,
    find_recipe,
    parse_arguments,
    run_command,
    typed_command,
)
from modeling_aiayn.data.embedded_corpus import generate_pairs
from modeling_aiayn.data.parsing import parse_yaml
from modeling_aiayn.translation.pools import POOL_SIZE

COMMANDS = ROOT / "modeling_aiayn" / "commands"


def module_of(job):
    return COMMANDS / f"{job.replace('-', '_')}.py"


@pytest.mark.parametrize("job", aiayn.JOBS)
def test_help_shows_the_docstring_and_the_flags(run, job):
    code, out, _ = run(module_of(job).name, "--help")
    assert code == 0
    assert ast.get_docstring(ast.parse(module_of(job).read_text())) in out
    flags = ("--model", "--preset", "--run", "--system", "--output_dir")
    assert any(flag in out for flag in flags) or job == "compile"  # its code is of all models
    assert ("override it" in out and "wmt14_big.yaml" in out) == job.startswith("train-")


def test_each_script_only_starts_a_job():
    scripts = {path.name: path.read_text() for path in (ROOT / "scripts").glob("*.py")}
    start = 'from aiayn import run_job\n\nif __name__ == "__main__":\n    run_job("{0}")\n'
    assert scripts == {
        module_of(job).name: f'"""Run `aiayn {job}` from a checkout."""\n\n{start.format(job)}'
        for job in aiayn.JOBS
    }


def run_aiayn(monkeypatch, capsysbinary, *words):
    """Run the console command in this process: its exit code, stdout and stderr."""
    monkeypatch.setattr(sys, "argv", ["/bin/aiayn", *map(str, words)])
    code = 0
    try:
        aiayn.main()
    except SystemExit as stop:
        code = stop.code or 0
    return code, *(text.decode() for text in capsysbinary.readouterr())


@pytest.mark.parametrize("words", [(), ("-h",), ("--help",)], ids=str)
def test_help_of_the_console_command_lists_the_jobs(monkeypatch, capsysbinary, words):
    code, out, _ = run_aiayn(monkeypatch, capsysbinary, *words)
    listed = re.findall(r"^  (\S+)  +\w.*\.$", out, flags=re.M)
    assert (code, listed) == (0, list(aiayn.JOBS))


def test_an_unknown_job_is_one_line_with_the_list(monkeypatch, capsysbinary):
    code, out, err = run_aiayn(monkeypatch, capsysbinary, "train", "--help")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: unknown job 'train'. Choose one of: demo, train-translation, ")


def test_the_console_command_runs_a_job(monkeypatch, capsysbinary, run, tmp_path):
    (tmp_path / "pairs.tsv").write_text("The dog sees.\tDer Hund sieht.\n")
    (tmp_path / "out.txt").write_text("Der Hund.\n")
    flags = ("--hypotheses", tmp_path / "out.txt", "--file", tmp_path / "pairs.tsv")
    code, out, _ = run_aiayn(monkeypatch, capsysbinary, "evaluate-translation", *flags)
    assert code == 0 and "chrf" in out
    assert typed_command()[:3] == ["aiayn", "evaluate-translation", "--hypotheses"]
    assert run("evaluate_translation.py", *flags)[:2] == (0, out)
    assert typed_command()[:2] == ["python", "scripts/evaluate_translation.py"]
    code, _, err = run_aiayn(monkeypatch, capsysbinary, "translate", "--nope")
    assert code == 2 and err.startswith("usage: aiayn translate ")


def test_the_package_runs_a_job(monkeypatch, capsysbinary):
    words = ["-m", "translate", "--model", "/none", "--text", "a"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match="1"):
        runpy.run_module("modeling_aiayn", run_name="__main__")
    assert b"error: No such directory: /none" in capsysbinary.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("seconds", [0, 0.05, 0.2, 0.5, 1.0])
def test_an_interrupt_while_a_script_starts_exits_with_130(model_folder, seconds):
    # With -X importtime, Python writes a line to stderr after each import.
    command = [sys.executable, "-X", "importtime", "scripts/translate.py", "--model", model_folder]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while not process.stderr.readline().rstrip().endswith("| aiayn"):
            assert process.poll() is None
        # The next import is the package's: the handler is installed before it.
        process.stderr.readline()
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err and "KeyboardInterrupt" not in err


@pytest.mark.parametrize("path", ["demo.yaml", "recipes/demo.yaml"])
def test_a_recipe_is_found_in_the_package_unless_the_file_exists(monkeypatch, tmp_path, path):
    monkeypatch.chdir(tmp_path)
    assert find_recipe(path) == RECIPES / "demo.yaml"
    (tmp_path / "recipes").mkdir()
    (tmp_path / path).write_text("seed: 1\n")
    assert find_recipe(path).read_text() == "seed: 1\n"


@pytest.mark.parametrize("path", ["other/demo.yaml", "none.yaml", "/recipes/demo.yaml"])
def test_a_missing_recipe_is_an_error_with_the_list(path):
    with pytest.raises(FileNotFoundError, match=rf"No such recipe: {path}\. .* demo\.yaml"):
        find_recipe(path)


def test_as_many_lines_out_as_in(run, model_folder, tmp_path):
    """From a file, from stdin and from arguments."""
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


def test_columns_for_nbest_scores_and_alignment(run, model_folder, tmp_path):
    (tmp_path / "prefixes").write_text("Der\n\n")
    code, out, err = run(
        *("translate.py", "--model", model_folder, "--text", "The dog sees.", "We see."),
        *("--nbest", 2, "--scores", "--alignment", "1,1", "--num_beams", 3),
        *("--prefixes", tmp_path / "prefixes"),
    )
    assert code == 0, err
    rows = [line.split("\t") for line in out.splitlines()]
    assert [row[0] for row in rows[:3]] == ["0", "0", "1"]
    assert rows[0][1].startswith("Der")
    assert float(rows[0][2]) >= float(rows[1][2])
    assert all("-" in link for row in rows for link in row[3].split())
    assert "tokens/s" in err


def test_an_empty_line_has_one_line_among_the_best(run, model_folder):
    flags = ("--model", model_folder, "--nbest", 3, "--text", "The dog sees.", "", "We see.")
    code, out, err = run("translate.py", *flags)
    assert code == 0, err
    assert [line.split("\t")[0] for line in out.splitlines()] == [*"0001222"]


@pytest.mark.parametrize("flag", ["input", "prefixes", "glossary"])
def test_a_file_is_not_overwritten_while_it_is_read(run, model_folder, tmp_path, flag):
    (tmp_path / "texts").write_text("The dog sees.\n" if flag != "glossary" else "dog\tTier\n")
    (tmp_path / "link").symlink_to(tmp_path / "texts")
    (tmp_path / "hard").hardlink_to(tmp_path / "texts")
    for name in ("texts", "link", "hard"):
        code, _, err = run(
            *("translate.py", "--model", model_folder, f"--{flag}", tmp_path / "texts"),
            *("--output", tmp_path / name),
        )
        assert code == 1 and "--output would overwrite" in err
        assert (tmp_path / "texts").stat().st_size


def test_the_file_behind_stdin_is_not_overwritten(run, tmp_path, monkeypatch):
    (tmp_path / "texts").write_text("The dog sees.\n")
    monkeypatch.setattr(translate, "STDIN", tmp_path / "texts")
    code, _, err = run("translate.py", "--output", tmp_path / "texts", stdin=b"")
    assert code == 1 and "--output would overwrite" in err


@pytest.mark.parametrize(
    ("script", "flags", "message"),
    [
        ("evaluate_translation.py", ("--translations", "t.de"), "would overwrite t.de"),
        ("evaluate_translation.py", ("--scores_file", "h"), "would overwrite h, an input"),
        (
            "evaluate_translation.py",
            ("--scores_file", "new", "--translations", "./new"),
            "--scores_file and --translations must be different files",
        ),
        ("evaluate_translation.py", ("--scores_file", "."), "must be a file, got the folder"),
        ("translate.py", ("--output", "no/new"), "--output no/new: the folder does not exist"),
        ("score_alignment.py", ("--picture", "g.svg"), "--picture would overwrite g.svg, an in"),
    ],
    ids=str,
)
def test_outputs_are_checked_before_any_work(
    run, model_folder, tmp_path, monkeypatch, script, flags, message
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(model_folder, "m")
    for name in ("t.en", "t.de", "h", "g.svg"):
        Path(name).write_text("a b\n")
    given = {
        "evaluate_translation.py": ("--hypotheses", "h", "--file", "t"),
        "translate.py": ("--model", "m", "--text", "a"),
        "score_alignment.py": (
            *("--model", "m", "--source", "t.en", "--target", "t.de", "--gold", "g.svg"),
        ),
    }
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    code, out, err = run(script, *given[script], *flags)
    assert (code, out) == (1, "") and message in err.replace("'", "")
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


def test_a_pipe_can_be_the_output(run, model_folder):
    reader, writer = os.pipe()
    code, _, err = run(
        *("translate.py", "--model", model_folder, "--text", "We see."),
        *("--output", f"/dev/fd/{writer}"),
    )
    os.close(writer)
    with open(reader) as translations:
        assert (code, translations.read().count("\n")) == (0, 1), err


def test_the_unfinished_output_is_no_input(run, model_folder, tmp_path):
    texts = tmp_path / "a.partial"
    texts.write_text("We see.\n")
    code, _, err = run(
        *("translate.py", "--model", model_folder, "--input", texts, "--output", tmp_path / "a")
    )
    assert code == 1 and f"--output would overwrite {texts}" in err
    assert texts.read_text() == "We see.\n"


def test_scores_are_printed_before_they_are_written(run, tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(evaluate_command, "write_file", full)
    (tmp_path / "t.tsv").write_text("We see.\tWir sehen.\n")
    (tmp_path / "h").write_text("Wir sehen.\n")
    flags = ("--hypotheses", tmp_path / "h", "--file", tmp_path / "t.tsv")
    code, out, err = run("evaluate_translation.py", *flags, "--scores_file", tmp_path / "s")
    assert code == 1 and "chrf" in out
    assert err.splitlines()[-1].startswith("error: [Errno 28] No space left on device: ")


@pytest.mark.long
def test_translations_are_written_though_nobody_reads_the_scores(tmp_path):
    (tmp_path / "t.tsv").write_text("We see.\tWir sehen.\n")
    (tmp_path / "h").write_text("Wir sehen.\n")
    flags = ["--hypotheses", "h", "--file", "t.tsv", "--scores_file", "s", "--translations", "w"]
    with open("/dev/full", "wb") as stdout:
        done = subprocess.run(
            [sys.executable, ROOT / "scripts" / "evaluate_translation.py", *flags],
            cwd=tmp_path, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "error: [Errno 28] No space left on device"
    assert (tmp_path / "w").read_text() == "Wir sehen.\n"
    assert "chrf" in json.loads((tmp_path / "s").read_text())


def test_an_invalid_line_does_not_affect_the_others(run, model_folder, caplog):
    lines = [b"The dog sees.", b"a\xffb", "\u6f22 \U0001f600".encode(), b"We see."]
    code, out, _ = run("translate.py", "--model", model_folder, stdin=b"\n".join(lines))
    assert code == 0
    assert len(out.splitlines()) == 4
    assert "stdin:2: not UTF-8 (byte 0xff at position 1" in caplog.text
    _, alone, _ = run("translate.py", "--model", model_folder, "--text", "The dog sees.", "We see.")
    assert [out.splitlines()[0], out.splitlines()[-1]] == alone.splitlines()


@pytest.mark.long
def test_an_interrupted_translation_leaves_whole_lines(model_folder):
    short = ("--num_beams", "1", "--max_length_factor", "0", "--max_length_offset", "3")
    command = [sys.executable, "scripts/translate.py", "--model", str(model_folder), *short]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    ) as process:
        process.stdin.write(b"The dog sees.\n" * (POOL_SIZE + 1))
        process.stdin.flush()
        first = process.stdout.readline()
        # Python drops an interrupt that falls into a finalizer: seen once. People press again.
        for _ in range(5):
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
                break
        rest, err = process.communicate()
    assert process.returncode == 130
    written = first + rest  # however many there were when the signal came
    assert written.endswith(b"\n")
    assert set(written.splitlines()) == {first.removesuffix(b"\n")}
    assert b"Traceback" not in err


@pytest.mark.parametrize(
    "flags",
    [
        ("--alignment", "best"),
        ("--alignment", "99"),
        ("--prefixes", "none"),
        ("--glossary", "terms"),
    ],
    ids=str,
)
def test_a_wrong_flag_does_not_empty_an_existing_output(
    run, model_folder, tmp_path, monkeypatch, flags
):
    (tmp_path / "out").write_text("Etwas.\n")
    (tmp_path / "terms").write_text("dog Hund\n")
    monkeypatch.chdir(tmp_path)
    given = ("--model", model_folder, "--text", "We see.", "--output", tmp_path / "out")
    assert run("translate.py", *given, *flags)[0] == 1
    assert (tmp_path / "out").read_text() == "Etwas.\n"


def test_input_and_output_may_be_compressed(run, model_folder, tmp_path):
    with gzip.open(tmp_path / "in.gz", "wt") as file:
        file.write("We see.\n\nThe dog sees.\n")
    flags = ("--model", model_folder, "--input", tmp_path / "in.gz")
    assert run("translate.py", *flags, "--output", tmp_path / "out.gz")[0] == 0
    code, out, _ = run("translate.py", *flags)
    with gzip.open(tmp_path / "out.gz", "rt") as file:
        assert file.read() == out
    assert code == 0 and len(out.splitlines()) == 3


def test_alignment_is_scored_by_layer_and_head(run, model_folder, tmp_path):
    code, out, err = run("score_alignment.py", "--model", model_folder, "--pairs", 6)
    assert code == 0, err
    assert "layer 2, head 1" in out and "Best on the first half:" in out
    flag = re.search(r"aiayn translate --alignment (\S+)", out)[1]
    text = ("--text", "We see.", "--alignment", flag)
    assert run("translate.py", "--model", model_folder, *text)[0] == 0
    for name, text in (("a", "the dog .\n"), ("b", "der Hund .\n"), ("gold", "0-0 1-1 2-2\n")):
        (tmp_path / name).write_text(text * 2)
    files = [*("--source", tmp_path / "a", "--target", tmp_path / "b", "--gold", tmp_path / "gold")]
    picture = tmp_path / "matrix.svg"
    code, out, err = run(
        "score_alignment.py", "--model", model_folder, *files, "--picture", picture
    )
    assert code == 0, err
    assert all(f">{word}<" in picture.read_text() for word in ("dog", "Hund", "sure link"))


def test_empty_input_gives_a_warning(run, model_folder, caplog):
    code, out, _ = run("translate.py", "--model", model_folder)
    assert (code, out) == (0, "")
    assert "nothing to translate" in caplog.text


def test_scores_go_to_the_table_and_to_files(run, model_folder, tmp_path, monkeypatch):
    (tmp_path / "pairs.tsv").write_text("The dog sees.\tDer Hund sieht.\nWe see.\tWir sehen.\n")
    code, out, _ = run(
        "evaluate_translation.py",
        *("--model", model_folder, "--file", tmp_path / "pairs.tsv", "--num_beams", 1),
        *("--scores_file", tmp_path / "scores.json", "--translations", tmp_path / "out.txt"),
    )
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert code == 0
    interval = f"± {scores['chrf_confidence']:.2f}"
    assert f"{scores['chrf']:.2f} {interval:<7} {scores['chrf_signature']}" in out
    assert scores["perplexity"] > 1
    assert len((tmp_path / "out.txt").read_text().splitlines()) == 2
    files = ("--hypotheses", tmp_path / "out.txt", "--file", tmp_path / "pairs.tsv")
    code, again, _ = run("evaluate_translation.py", *files)
    assert code == 0
    assert again.splitlines() == out.splitlines()[: len(again.splitlines())]
    code, more, _ = run("evaluate_translation.py", *files, "--moses", "true")
    assert code == 0 and more.startswith(again) and "bleu_moses" in more
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    code, _, err = run("evaluate_translation.py", *files, "--moses", "true")
    assert (
        code == 1
        and "The package sacremoses is not installed. Install it, or modeling_aiayn[interop]" in err
    )
    (tmp_path / "columns.txt").write_text("Der Hund.\t-0.5\nWir.\t-0.7\n")
    wrong = ("--hypotheses", tmp_path / "columns.txt", *files[2:])
    code, _, err = run("evaluate_translation.py", *wrong)
    assert code == 1 and "must be text alone, got columns between tabs" in err
    pairs = (tmp_path / "pairs.tsv").read_text()
    (tmp_path / "pairs.tsv").write_text(f"\tNichts.\n{pairs}")
    (tmp_path / "out.txt").write_text("\n" + (tmp_path / "out.txt").read_text())
    lines = tmp_path / "lines.txt"
    assert run("evaluate_translation.py", *files, "--translations", lines)[:2] == (0, again)
    assert lines.read_text() == (tmp_path / "out.txt").read_text()
    (tmp_path / "pairs.tsv").write_text(pairs)
    (tmp_path / "out.txt").write_text("eins\n")
    code, _, err = run("evaluate_translation.py", *files)
    assert code == 1 and "number of rows" in err
    code, _, err = run("evaluate_translation.py", "--file", tmp_path / "pairs.tsv")
    assert code == 1 and "Give either --model or --hypotheses" in err


def test_training_leaves_model_scores_card_and_curves(run, tmp_path):
    """The second run with the same folder is rejected."""
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
    assert {*("README.md", "scores.json", "curves.png", "model.safetensors")} <= written
    assert "checkpoint-2" in written
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
            ["--model", str(ROOT / "tests"), "--text", "a"],
            "tests holds no model: there is no config.json in it.",
        ),
        ("translate.py", ["--num_beams", "0"], "num_beams must be at least 1, got 0"),
        ("train_translation.py", ["/none.yaml"], "/none.yaml"),
        (
            "train_translation.py",
            ["--config_overrides", "{position_type: learned, max_position_embeddings: 40}"],
            "max_length=256 is more than the model's max_position_embeddings, 40. Pass --max_length",
        ),
        (
            "train_translation.py",
            ["--metric_for_best_model", "bleu", "--predict_with_generate", "false"],
            "metric_for_best_model=bleu needs translations. Pass --predict_with_generate",
        ),
        (
            "train_language_model.py",
            ["--metric_for_best_model", "accuracy", "--train_file", "text"],
            "metric_for_best_model must be one of loss, perplexity, got 'accuracy'",
        ),
    ],
)
def test_user_errors_are_one_line(run, tmp_path, monkeypatch, name, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(name, *arguments)
    assert (code, out) == (1, "")
    error = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(error) == 1 and message in error[0]
    assert "Traceback" not in err


def test_debug_with_a_value_is_a_training_argument(run, tmp_path):
    out = ("--output_dir", tmp_path / "run", "--nope")
    code, _, err = run("train_translation.py", *out, "--debug", "underflow_overflow")
    assert code == 2 and "unrecognized arguments: --nope\n" in err


def test_debug_shows_the_traceback(run):
    with pytest.raises(FileNotFoundError):
        run("translate.py", "--model", "/none", "--text", "a", "--debug")


def test_a_recipe_for_fine_tuning_needs_a_model(run, tmp_path):
    """Without one, it would train a new model of the base size."""
    code, _, err = run("train_translation.py", "recipes/finetune.yaml", "--output_dir", tmp_path)
    assert code == 2
    assert err.endswith(
        "error: the recipe recipes/finetune.yaml needs --start_from. Add it after the recipe.\n"
    )


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_recipes_are_read_and_later_flags_win(monkeypatch, tmp_path, path):
    flags = ["--output_dir", str(tmp_path), "--seed", "7", "--use_cpu", "true"]
    if path.stem in (*CLASSIFIER_RECIPES, *LANGUAGE_MODEL_RECIPES):
        flags += ["--train_file", "a.txt"]
    recipe = yaml.safe_load(path.read_text())
    if recipe.pop("required", None) == ["start_from"]:
        flags += ["--start_from", "aiayn-en-de"]
    monkeypatch.setattr(sys, "argv", ["x", str(path), *flags])
    holders = parse_arguments("", *arguments_of_recipe(path))
    args = holders[-1]
    assert (args.seed, args.output_dir) == (7, str(tmp_path))
    for name, value in recipe.items():
        holder = next(holder for holder in holders if hasattr(holder, name))
        if isinstance(value, dict):
            assert parse_yaml(getattr(holder, name), name) == value
        else:
            assert getattr(holder, name) == value


def test_vocabularies_are_of_the_training_text_alone_and_not_crossed(run, tmp_path):
    """Traps 12 and 13 of docs/seeds.md: held-out words are unknown, each language has its own words."""
    pairs = {"train": ("the dog runs", "der Hund läuft"), "other": ("a zebra", "das Zebra läuft")}
    for name, pair in pairs.items():
        (tmp_path / f"{name}.tsv").write_text(f"{chr(9).join(pair)}\n" * 8)
    folder = tmp_path / "run"
    files = {"train": "train", "validation": "other", "test": "other"}
    code, _, err = run(
        *("train_translation.py", "--output_dir", folder, "--vocabulary", "word"),
        *("--preset", "tiny", "--max_steps", 1, "--generation_max_length", 4),
        *("--report_to", "none", "--use_cpu", "true", "--source_lang", "de", "--target_lang", "en"),
        *("--columns", "en,de"),
        *(
            part
            for name, file in files.items()
            for part in (f"--{name}_file", tmp_path / f"{file}.tsv")
        ),
    )
    assert code == 0, err
    source = AutoTokenizer.from_pretrained(folder)
    target = AutoTokenizer.from_pretrained(folder / "target_tokenizer")
    assert sorted(source.get_vocab().keys() - target.get_vocab().keys()) == ["der", "hund", "läuft"]
    assert sorted(target.get_vocab().keys() - source.get_vocab().keys()) == ["dog", "runs", "the"]
    assert source("das Zebra").input_ids == [source.unk_token_id] * 2 + [source.eos_token_id]
    config = AutoConfig.from_pretrained(folder)
    assert (config.vocab_size, config.decoder_vocab_size) == (len(source), len(target)) == (7, 7)


@pytest.mark.long
def test_a_terminated_run_resumes_and_a_finished_run_is_left_alone(run, tmp_path, caplog):
    """The same command resumes until the run is finished."""
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
    assert code == 1 and "already holds a run" in err
    code, _, err = run(*command, "--resume", "auto", "--config_overrides", "{d_model: 64}")
    assert code == 1 and "d_model was 128 when this run began, and is 64 now" in err
    code, out, err = run(*command, "--resume", "auto")
    assert code == 0, err
    assert "| updates" in out and "bleu" in out
    assert f"Resuming from {folder / f'checkpoint-{max(updates)}'}" in caplog.text
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != ".lock"}
    code, out, _ = run(*command, "--resume", "auto")
    assert (code, out) == (0, f"Already finished: {folder}\n")
    after = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != ".lock"}
    assert after == before


def damaged_weights():
    deserialize(b"not safetensors")


def closed_network():
    HfApi(endpoint="http://127.0.0.1:1").model_info("me/model")


def truncated_text():
    with gzip.open(io.BytesIO(gzip.compress(b"We see.")[:-9])) as file:
        file.read()


@pytest.mark.parametrize("job", [damaged_weights, closed_network, truncated_text])
def test_damaged_files_and_a_closed_network_are_one_line(capsys, job):
    with pytest.raises(SystemExit):
        run_command(job)
    message = capsys.readouterr().err
    assert message.startswith("error: ") and message.count("\n") == 1


def test_an_interrupt_exits_with_130_and_no_message(capsys):
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as stop:
        run_command(interrupted)
    assert stop.value.code == 130
    assert capsys.readouterr().err == ""


def test_the_end_of_another_process_is_one_line(capsys, monkeypatch):
    def job():
        raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]")

    with pytest.raises(RuntimeError, match="gloo"):  # without other processes, a bug
        run_command(job)
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    with pytest.raises(SystemExit):
        run_command(job)
    message = capsys.readouterr().err
    assert message.startswith("error: Another process of this run has ended, so this one ends too.")
    assert message.count("\n") == 1


def has_gloo_threads(expected):
    """Whether this process has threads of gloo, within 10 s as expected.

    A thread gives itself its name, and Linux lists it for a moment after its end.
    """
    end = time.monotonic() + 10
    while True:
        names = []
        for path in Path("/proc/self/task").glob("*/comm"):
            with suppress(OSError):  # the thread has ended
                names.append(path.read_text())
        found = any("gloo" in name for name in names)
        if found == expected or time.monotonic() > end:
            return found
        time.sleep(0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the names of threads from /proc")
@pytest.mark.parametrize("code", [None, 143])
def test_a_command_ends_the_threads_of_its_process_group(tmp_path, code):
    """Also if something that is in a cycle of references, like a trainer, keeps the group.

    Also if a signal has stopped the job.
    """

    def job():
        distributed.init_process_group(
            "gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1
        )
        kept = {"group": distributed.group.WORLD}
        kept["itself"] = kept
        assert has_gloo_threads(True)
        if code is not None:
            raise SystemExit(code)

    gc.disable()
    try:
        with nullcontext() if code is None else pytest.raises(SystemExit, match="143"):
            run_command(job)
        assert not has_gloo_threads(False)
    finally:
        gc.enable()


@pytest.mark.long
def test_a_closed_stdout_is_not_an_error(model_folder):
    """As in translate | head -1."""
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


@pytest.mark.long
def test_a_saved_folder_reloads_in_a_fresh_process(model_folder, tmp_path):
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


def test_only_translation_models_are_reloaded_to_translate(run, tmp_path):
    """A classifier would translate with random weights."""
    small_model(AiaynForSequenceClassification, num_labels=2).save_pretrained(tmp_path)
    code, out, err = run("check_reload.py", "--model", tmp_path, "--text", "We see.")
    assert (code, out) == (1, "")
    assert "saved as AiaynForConditionalGeneration, got AiaynForSequenceClassification" in err


def test_a_folder_without_code_is_not_reloaded(run):
    folder = ROOT / "modeling_aiayn" / "checkpoints" / "aiayn-en-de"
    code, out, err = run("check_reload.py", "--model", folder, "--text", "We see.")
    assert (code, out) == (1, "") and "holds no code, so only this package can load it" in err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--resume", "auto"), "Only an output that is a file, and not a .gz, can be resumed"),
        (("--resume", "auto", "--output", "a.gz"), "Only an output that is a file, and not a .gz"),
        (("--resume", "auto", "--output", "a", "--nbest", "2"), "--resume needs --nbest 1"),
        (("--input", "x"), "Give either --text or --input, not both"),
        (
            ("--engine", "ctranslate2", "--model", "none"),
            "Write one with: aiayn export-ctranslate2",
        ),
    ],
    ids=str,
)
def test_impossible_ways_to_translate_are_rejected(
    run, model_folder, tmp_path, monkeypatch, flags, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text("Katze\n")
    code, out, err = run("translate.py", "--model", model_folder, "--text", "We see.", *flags)
    assert (code, out) == (1, "") and message in err


@pytest.mark.long
def test_several_processes_translate_in_the_order_of_the_texts(tmp_path):
    """Two pools and a part of a third."""
    from modeling_aiayn.translation.pools import POOL_SIZE

    count = 2 * POOL_SIZE + 3
    texts = [f"We see {number} cats." for number in range(count)]
    (tmp_path / "texts").write_text("\n".join([*texts, ""]))
    flags = ["scripts/translate.py", "--input", str(tmp_path / "texts"), "--num_beams", "1"]
    flags += ["--max_length_factor", "0", "--max_length_offset", "4"]
    found = []
    for processes in ("1", "2"):
        output = tmp_path / processes
        done = subprocess.run(
            [sys.executable, *flags, "--output", str(output), "--processes", processes],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found.append(output.read_text().splitlines())
    assert len(found[0]) == count
    assert found[0] == found[1]
