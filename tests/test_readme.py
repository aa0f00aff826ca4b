"""README and docs are run: Python as it stands, commands as far as they go without an hour's training."""

import ast
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, arguments_of_recipe, small_model
from foreign_peers import opus_folder

from modeling_aiayn import AiaynForCausalLM, AiaynForSequenceClassification
from modeling_aiayn.commands.command_line import find_recipe, parse_arguments
from modeling_aiayn.interop.ctranslate2_export import export_ctranslate2
from modeling_aiayn.interop.importing import import_model
from modeling_aiayn.interop.marian import read_marian
from modeling_aiayn.tokenization import byte_tokenizer
from modeling_aiayn.training import AiaynTrainingArguments
from modeling_aiayn.training.data import DataArguments
from modeling_aiayn.training.setup import ModelArguments
from modeling_aiayn.translation import Translator

README = (ROOT / "README.md").read_text()
DOORS_PAGE = (ROOT / "docs" / "doors.md").read_text()
PAGES = README + "".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
PYTHON = re.findall(r"```python\n(.*?)```", PAGES, flags=re.S)
COMMANDS = [
    line
    for block in re.findall(r"```bash\n(.*?)```", PAGES, flags=re.S)
    for line in block.replace("\\\n", " ").splitlines()
]


@pytest.fixture(scope="session")
def opus(tmp_path_factory):
    return opus_folder(tmp_path_factory.mktemp("opus"))


@pytest.fixture
def workplace(tmp_path, tokenizer, opus, monkeypatch):
    """A folder with what the README talks of: runs/demo, files to translate, OPUS-MT."""
    monkeypatch.chdir(tmp_path)
    small_model(vocab_size=len(tokenizer)).save_pretrained("runs/demo")
    tokenizer.save_pretrained("runs/demo")
    Path("runs/demo/README.md").write_text("---\nlicense: apache-2.0\n---\nA translator.\n")
    classifier = small_model(AiaynForSequenceClassification, vocab_size=len(tokenizer))
    language_model = small_model(AiaynForCausalLM, vocab_size=len(byte_tokenizer()))
    for model, cutter, folder in (
        (classifier, tokenizer, "runs/imdb"),
        (language_model, byte_tokenizer(), "runs/shakespeare"),
    ):
        model.save_pretrained(folder)
        cutter.save_pretrained(folder)
    Path("checkpoints").symlink_to(ROOT / "checkpoints")
    Path("opus-mt-en-de").symlink_to(opus)
    Path("sentences.en").write_text("The dog sees.\nWe see.\n")
    Path("en.txt").write_text("the dog sees .\n" * 2)
    for language in ("de", "fr"):
        Path(f"{language}.txt").write_text("der Hund sieht .\n" * 2)
    Path("runs/multi30k-fr").symlink_to("demo")
    Path("gold.pharaoh").write_text("0-0 1p1 2-2\n" * 2)
    Path("pairs.tsv").write_text("The dog sees.\tDer Hund sieht.\n")
    return tmp_path


@pytest.mark.parametrize("number", range(len(PYTHON)))
def test_python_blocks_run(workplace, number):
    exec(compile(PYTHON[number], f"README block {number}", "exec"), {"__name__": "readme"})


DOORS = re.findall(r"^\| [^|]+ \| `([^`]+)`", DOORS_PAGE, re.M)


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize("door", DOORS)
def test_every_door_opens(workplace, hub, door):
    namespace = {}
    exec(PYTHON[1], namespace)
    exec("import torch, accelerate, peft, transformers, modeling_aiayn.translation", namespace)
    exec("from transformers.distributed import DistributedConfig", namespace)
    for library in ("transformers", "accelerate", "peft"):
        module = namespace[library]
        names = {node.id for node in ast.walk(ast.parse(door)) if isinstance(node, ast.Name)}
        namespace |= {name: getattr(module, name) for name in names if hasattr(module, name)}
    eval(door, namespace)


def test_the_table_of_doors_is_read_whole():
    assert len(DOORS) == DOORS_PAGE.count("(../tests/test_") == 30


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(workplace, hub, opus, monkeypatch, command):
    files = {path.name: path.read_bytes() for path in opus.iterdir()}
    hub.repositories["Helsinki-NLP/opus-mt-en-de"] = {"main": ("0" * 40, files)}
    program, *arguments = shlex.split(command, comments=True)
    if program == "make":
        done = subprocess.run(
            ["make", "-n", *arguments], cwd=ROOT, capture_output=True, check=False
        )
        assert done.returncode == 0
    elif program in ("torchrun", "accelerate"):
        script = next(index for index, word in enumerate(arguments) if word.endswith(".py"))
        recipe, *flags = arguments[script + 1 :]
        monkeypatch.setattr(sys, "argv", [arguments[script], recipe, *flags, "--use_cpu", "true"])
        parse_arguments("", DataArguments, ModelArguments, AiaynTrainingArguments)
        assert find_recipe(recipe)
        files = [word for word in arguments[: script + 1] if word.endswith((".py", ".yaml"))]
        assert all((ROOT / word).exists() for word in files)
    elif program == "pip":
        assert (ROOT / arguments[arguments.index("--constraint") + 1]).exists()
    else:
        assert program == "python"
        if "--engine" in arguments:
            export_ctranslate2(Translator.from_pretrained("runs/demo"), "runs/demo-ct2", "int8")
        if "opus-en-de" in command and "import_weights" not in command:
            import_model(read_marian("opus-mt-en-de"), "models/opus-en-de", sources=2)
        monkeypatch.setattr(sys, "argv", arguments)
        if arguments[0].startswith("scripts/train_"):
            parse_arguments("", *arguments_of_recipe(arguments[1]))
        else:
            runpy.run_path(str(ROOT / arguments[0]), run_name="__main__")


def test_links_lead_somewhere():
    for target in re.findall(r"\]\((?!http)([^)]+)\)", README):
        path, _, anchor = target.partition("#")
        assert (ROOT / path).exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", (ROOT / path).read_text(), flags=re.M)
            assert anchor in [heading.lower().replace(" ", "-") for heading in headings], target


def test_the_table_names_what_there_is():
    for row in re.findall(r"^\|.*\]\(modeling_aiayn/.*\|$", README, flags=re.M):
        paths = re.findall(r"\]\((modeling_aiayn/[^)]+)\)", row)
        text = "".join((ROOT / path).read_text() for path in paths)
        for name in re.findall(r"`([^`]+)`", row.split("|")[3]):
            assert re.search(rf"(def|class) {name.split('.')[-1]}\b|^{name}\b", text, flags=re.M), (
                name
            )


def test_departures_are_those_of_the_docstrings():
    """Each file that departs is listed, and none that does not."""
    section = README.split("## Departures from the paper")[1].split("##")[0]
    listed = set(re.findall(r"\(`([^`]+)`\)", section))
    departing = {
        str(path.relative_to(ROOT / "modeling_aiayn"))
        for path in (ROOT / "modeling_aiayn").rglob("*.py")
        if "Departs from the paper:" in path.read_text()
    }
    assert listed == departing
