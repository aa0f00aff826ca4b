"""The paper beside the code, and its exercises: both pages fit the code, and each bug is found."""

import json
import re
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

DOCS = ROOT / "docs"


@pytest.fixture
def annotate(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    import annotate

    return annotate


@pytest.fixture
def exercises(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    import exercises

    return exercises


def test_the_pages_are_made_of_the_code_as_it_is(annotate, exercises):
    """Mend a failure here by `python docs/annotate.py`."""
    assert (DOCS / "annotated.md").read_text("utf-8") == annotate.annotated_page()
    assert (DOCS / "exercises.md").read_text("utf-8") == exercises.exercises_page()


def test_every_line_of_both_files_is_on_the_page():
    page = (DOCS / "annotated.md").read_text("utf-8")
    blocks = "\n".join(re.findall(r"^```py\n(.*?)^```$", page, re.M | re.S)).splitlines()
    names = ("attention.py", "layers.py")
    code = "".join((ROOT / "modeling_aiayn" / name).read_text("utf-8") for name in names)
    assert [line for line in blocks if line] == [line for line in code.splitlines() if line]


def copy_of_the_project(folder):
    """A copy of the files that the tests of the model need."""
    for name in ("modeling_aiayn", "tests", "docs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "aiayn.py"):
        shutil.copy(ROOT / name, folder)
    return folder


def plant(folder, number):
    command = (sys.executable, folder / "docs" / "exercises.py", str(number))
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_bug_is_planted_once(tmp_path, exercises):
    folder = copy_of_the_project(tmp_path)
    done = plant(folder, 3)
    assert done.returncode == 0 and exercises.BUGS[2]["symptom"] in done.stdout
    code = (folder / "modeling_aiayn" / "attention.py").read_text()
    assert exercises.BUGS[2]["new"] in code and exercises.BUGS[2]["old"] not in code
    again = plant(folder, 3)
    assert again.returncode == 1
    assert again.stderr == (
        "modeling_aiayn/attention.py has been changed already. Undo that first: git restore "
        "modeling_aiayn/attention.py\n"
    )
    # Python 3.12 and newer quote the number.
    assert "invalid choice: 11" in plant(folder, 11).stderr.replace("'", "")


# Runs code in each of several copies of the project. Forks share what takes seconds to import.
FORKS = """
import json, os, sys
import accelerate, datasets, pytest, torch, transformers
from transformers import PreTrainedModel, Seq2SeqTrainer
for folder, code in json.loads(sys.argv[1]):
    if os.fork() == 0:
        os.chdir(folder)
        sys.path.insert(0, folder)
        os.dup2(os.open("output", os.O_WRONLY | os.O_CREAT), 1)
        exec(code)
        sys.stdout.flush()
        os._exit(0)
    os.wait()
"""


def outputs(codes):
    """What code prints in each copy of the project, {folder: code}."""
    jobs = json.dumps([(str(folder), code) for folder, code in codes.items()])
    subprocess.run([sys.executable, "-c", FORKS, jobs], capture_output=True, check=True)
    return {folder.name: (folder / "output").read_text() for folder in codes}


def copies_with_bugs(folder, numbers):
    """Copies of the project, each with the bug of its number; 0 has none."""
    for number in numbers:
        copy = copy_of_the_project(folder / str(number))
        assert number == 0 or plant(copy, number).returncode == 0
        yield copy


@pytest.mark.long
def test_the_page_s_program_shows_the_bugs_that_it_names(tmp_path, exercises):
    program = exercises.PAGE.partition("```python\n")[2].partition("```")[0]
    found = outputs(dict.fromkeys(copies_with_bugs(tmp_path, (0, 3, 6, 7, 8)), program))
    clean = found.pop("0")
    assert clean.startswith("['Hallo!', ") and clean not in found.values()
    assert all(output.startswith("[") for output in found.values())


@pytest.mark.long
def test_the_test_of_an_answer_finds_the_bug(tmp_path, exercises):
    tests = [bug["test"] for bug in exercises.BUGS]
    copies = copies_with_bugs(tmp_path, range(11))
    run = "import pytest; pytest.main(['-q', '-n0', '--assert=plain', {!r}])"
    # The copy without a bug runs the test of the first.
    codes = [run.format(test) for test in (tests[0], *tests)]
    found = outputs(dict(zip(copies, codes, strict=True)))
    assert re.search(r"^\d+ passed", found.pop("0"), re.M)
    for number, output in found.items():
        assert re.search(r"^\d+ failed", output, re.M), f"exercise {number}: {output}"
