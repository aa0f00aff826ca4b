"""The built package works without the checkout: its jobs, recipes, cards and bundled model."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT
from versions.environments import environment

pytestmark = pytest.mark.long

DATA = {
    "modeling_aiayn/cards/translation.md",
    "modeling_aiayn/checkpoints/aiayn-de-en/model.safetensors",
    "modeling_aiayn/checkpoints/aiayn-de-en/tokenizer.json",
    "modeling_aiayn/checkpoints/aiayn-en-de/model.safetensors",
    "modeling_aiayn/checkpoints/aiayn-en-de/tokenizer.json",
    "modeling_aiayn/inspection/attention_page.html",
    "modeling_aiayn/recipes/demo.yaml",
    "modeling_aiayn/recipes/wmt14_big.yaml",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The source distribution, the wheel that is built from it, and the project's files."""
    folder = tmp_path_factory.mktemp("built")
    # A copy, because setuptools writes into the folder that it builds; only files of the project.
    command = ["git", "ls-files"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("needs a git checkout, to know which files belong to the project")
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / "copy" / name)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, folder / "copy"]
    subprocess.run(command, check=True)
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl")), listed.stdout.splitlines()


@pytest.fixture(scope="module")
def python(built, tmp_path_factory):
    """The Python of an environment with the wheel, and with the dependencies of this one."""
    return environment(tmp_path_factory.mktemp("installed"), "--no-deps", str(built[1]))


@pytest.fixture
def run(python, tmp_path):
    """Run a program of the environment in an empty folder: its stdout."""

    def run_program(program, *words):
        hidden = ("PYTHONPATH", "VIRTUAL_ENV")
        kept = {name: value for name, value in os.environ.items() if name not in hidden}
        kept |= {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
        command = [str(python.with_name(program)), *map(str, words)]
        return subprocess.run(
            command, cwd=tmp_path, env=kept, stdout=subprocess.PIPE, text=True, check=True
        ).stdout

    return run_program


def test_both_distributions_hold_the_package_data(built):
    source, wheel, files = built
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert names >= DATA | {"aiayn.py", "modeling_aiayn/attention.py"}
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "scripts"))]
    with tarfile.open(source) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert inside >= {*files}  # so that `make test` runs there


def test_the_package_is_imported_from_the_wheel(run, python):
    found = run("python", "-c", "import modeling_aiayn; print(modeling_aiayn.__file__)").strip()
    assert Path(found).is_relative_to(python.parent.parent)


def test_the_bundled_model_translates(run):
    for words in (("aiayn",), ("python", "-m", "modeling_aiayn")):
        out = run(*words, "translate", "--text", "The children play football in the park.")
        assert out == "Die Kinder spielen im Park Fußball.\n"


def test_a_recipe_is_found_by_its_name(run, tmp_path):
    """And the run draws its curves, fills its card, and leaves a folder that others can open."""
    pair = "The old man sees the dog.\tDer alte Mann sieht den Hund.\n"
    (tmp_path / "pairs.tsv").write_text(pair + "We see the cat.\tWir sehen die Katze.\n")
    files = [f"--{name}_file=pairs.tsv" for name in ("train", "validation", "test")]
    short = "--vocab_size 400 --max_steps 2 --eval_strategy no --load_best_model_at_end false"
    words = (*files, *short.split(), "--output_dir", "runs/a")
    run("aiayn", "train-translation", "demo.yaml", *words)
    folder = tmp_path / "runs" / "a"
    assert {"README.md", "scores.json", "curves.png"} <= {path.name for path in folder.iterdir()}
    assert "aiayn train-translation demo.yaml" in (folder / "README.md").read_text("utf-8")
    out = run("aiayn", "check-reload", "--model", "runs/a", "--text", "We see.")
    assert out.startswith("Reloaded AiaynForConditionalGeneration with code from runs/a")
    page = ("--text", "We see.", "--output", "page.html")
    run("aiayn", "show-attention", "--model", "aiayn-en-de", *page)
    assert "<html" in (tmp_path / "page.html").read_text("utf-8")


@pytest.mark.slow
def test_the_demo_runs(run, tmp_path):
    out = run("aiayn", "demo")
    assert "$ aiayn check-reload --model runs/demo" in out
    names = {path.name for path in (tmp_path / "runs" / "demo").iterdir()}
    assert {"README.md", "scores.json", "curves.png", "attention.png"} <= names
