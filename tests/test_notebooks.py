"""The notebooks run in a fresh kernel from top to bottom, and are stored with their outputs."""

import ast
import re
import sys
from itertools import pairwise

import nbformat
import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "notebooks"))
from run import run_notebook

pytestmark = pytest.mark.long

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SEEDS = ["000", "001", "002", "003", "004"]
TESTS = re.compile(r"tests/(test_\w+)\.py::(test_\w+)")
OTHER_NOTEBOOKS = re.compile(r"`(\w+\.ipynb)`")

of_each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def text_of(path, kind=None):
    """The text of a notebook's cells: all of them, or those of one kind."""
    cells = nbformat.read(path, as_version=4).cells
    return "\n".join(cell.source for cell in cells if kind in (None, cell.cell_type))


def test_every_seed_document_has_a_notebook():
    assert [path.stem[:3] for path in NOTEBOOKS] == SEEDS


@of_each_notebook
def test_a_notebook_runs_without_errors_and_draws(path, tmp_path, monkeypatch):
    """The notebook asserts its own claims, so a run without an error is the test."""
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    stored, now = nbformat.read(path, as_version=4), run_notebook(path)
    assert any("PICTURE" in outputs_of(cell) for cell in now.cells)
    is_trained = False  # then what it prints depends on the processor
    for cell, same in zip(stored.cells, now.cells, strict=True):
        is_trained |= "optimizer.step()" in cell.source
        if is_trained:
            assert ("PICTURE" in outputs_of(cell)) == ("PICTURE" in outputs_of(same)), cell.source
        else:
            assert outputs_of(cell) == outputs_of(same), cell.source


def outputs_of(cell):
    """Return the text that a cell prints, with numbers of two digits, and PICTURE for a picture."""
    outputs = [each for each in cell.get("outputs", []) if each.get("name") != "stderr"]
    data = [output.get("data", {"text/plain": output.get("text", "")}) for output in outputs]
    texts = ["PICTURE" if "image/png" in each else each["text/plain"] for each in data]
    # A cell's text may come in several parts.
    return re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.2g}", "".join(texts))


@of_each_notebook
def test_a_notebook_is_stored_in_the_format_of_nbformat(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert cell.get("execution_count") is None
        assert cell.metadata == {}
    assert notebook.metadata.kernelspec.name == "python3"
    assert path.read_text() == nbformat.writes(notebook) + "\n"


@of_each_notebook
def test_a_notebook_names_its_seed_and_contains_no_absolute_path(path):
    assert text_of(path, "markdown").startswith(f"# Seed {path.stem[:3]}: ")
    assert f"eed document {path.stem[:3]}" in text_of(path, "markdown")
    assert not re.search(r"""(?:^|[\s"'`(=])(?:/|~/|[A-Z]:\\)\w+/""", text_of(path))


@of_each_notebook
def test_the_tests_and_files_that_a_notebook_names_exist(path):
    text = text_of(path)
    named = TESTS.findall(text)
    assert named
    assert text.count("tests/test_") == len(named)
    for file, name in named:
        tree = ast.parse((ROOT / "tests" / f"{file}.py").read_text())
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert name in functions, f"{file}.py::{name}"
    for other in OTHER_NOTEBOOKS.findall(text):
        assert (path.parent / other).is_file(), other
    for mentioned in re.findall(r"`((?:modeling_aiayn|scripts)/[\w/]+(?:\.py)?)`", text):
        assert (ROOT / mentioned).exists(), mentioned


@of_each_notebook
def test_each_idea_that_fails_is_followed_by_a_check(path):
    cells = nbformat.read(path, as_version=4).cells
    failing = [
        following.source
        for cell, following in pairwise(cells)
        if re.search(r"\*\*[^*]*ideas? that fails?", cell.source, flags=re.I)
    ]
    assert failing
    assert all(re.search(r"assert|else:\n +raise", source) for source in failing)
