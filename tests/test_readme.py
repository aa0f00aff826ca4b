"""The README and the pages under docs: their code blocks run, and their links and names exist."""

import ast
import importlib
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, arguments_of_recipe, small_model
from datasets import Dataset
from foreign_peers import nllb_folder, opus_folder

from modeling_aiayn import AiaynForCausalLM, AiaynForSequenceClassification
from modeling_aiayn.commands.command_line import find_recipe, parse_arguments
from modeling_aiayn.inspection.alignment import count_links
from modeling_aiayn.interop.ctranslate2_export import export_ctranslate2
from modeling_aiayn.interop.importing import import_model
from modeling_aiayn.interop.int8_export import export_int8
from modeling_aiayn.interop.m2m100 import read_m2m100
from modeling_aiayn.interop.marian import read_marian
from modeling_aiayn.tokenization import byte_tokenizer, vocabulary_sha256
from modeling_aiayn.training import AiaynTrainer, AiaynTrainingArguments
from modeling_aiayn.translation import Translator
from modeling_aiayn.translation.shortlist import Shortlist

README = (ROOT / "README.md").read_text()
FEATURES_PAGE = (ROOT / "docs" / "transformers.md").read_text()
PAGES = README + "".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
RESULTS = (ROOT / "benchmarks" / "RESULTS.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", PAGES, flags=re.S)
COMMANDS = [
    line
    for block in re.findall(r"```bash\n(.*?)```", PAGES, flags=re.S)
    for line in block.replace("\\\n", " ").splitlines()
    if not line.startswith("#")
]
# Commands that need hours, a GPU or files of other programs: only their flags are checked.
UNTRIED = [
    line.strip()
    for kind, block in re.findall(r"^```(\w*)\n(.*?)^```", PAGES + RESULTS, flags=re.S | re.M)
    if not kind
    for line in block.replace("\\\n", " ").splitlines()
    if re.match(r" *(aiayn|python scripts/)[^$]*$", line)
]
# An export to ONNX traces a model for ten seconds.
LONG = re.compile("export-onnx|score-alignment")
COMMAND_CASES = [
    pytest.param(line, marks=[pytest.mark.long] if LONG.search(line) else []) for line in COMMANDS
]
FEATURES_TABLE = FEATURES_PAGE.split("## Other libraries")[0]
FEATURES = re.findall(r"^\| [^|]+ \| `([^`]+)`", FEATURES_TABLE, re.M)


@pytest.fixture(scope="session")
def opus(tmp_path_factory):
    return opus_folder(tmp_path_factory.mktemp("opus"))


@pytest.fixture(scope="session")
def nllb(tmp_path_factory):
    return nllb_folder(tmp_path_factory.mktemp("nllb"))


@pytest.fixture(scope="session")
def models_and_files(tmp_path_factory, tokenizer, opus, nllb):
    """A folder with the models and files that the pages name: runs/demo, data/test.en, ..."""
    root = tmp_path_factory.mktemp("pages")
    translator = small_model(vocab_size=len(tokenizer), encoder_layers=1, decoder_layers=2)
    classifier = small_model(AiaynForSequenceClassification, vocab_size=len(tokenizer))
    language_model = small_model(AiaynForCausalLM, vocab_size=len(byte_tokenizer()))
    for model, tokenizer_of_model, names in (
        (translator, tokenizer, ("demo", "mine", "teacher")),
        (classifier, tokenizer, ("reviews",)),
        (language_model, byte_tokenizer(), ("shakespeare",)),
    ):
        for folder in (root / "runs" / name for name in names):
            model.save_pretrained(folder)
            tokenizer_of_model.save_pretrained(folder)
            (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\nA model.\n")
    (root / "opus-mt-en-de").symlink_to(opus)
    (root / "nllb-200-distilled-600M").symlink_to(nllb)
    (root / "data").mkdir()
    one = {"en": "The dog sees.\n", "de": "Der Hund sieht.\n"}
    two = {"en": f"{one['en']}We see.\n", "de": f"{one['de']}Wir sehen.\n"}
    files = {"captions": one, "data/train": two, "data/valid": one, "data/test": one}
    for path, text in (
        *((f"{name}.{side}", sides[side]) for name, sides in files.items() for side in sides),
        ("sentences.en", two["en"]),
        ("sentences.de", one["de"]),
        ("pairs.tsv", "The dog sees.\tDer Hund sieht.\n"),
        ("new.txt", "A wonderful film.\nA waste of two hours.\n"),
        ("German-English_WordAlignment/test.en", "the dog sees .\n" * 2),
        ("German-English_WordAlignment/test.de", "der Hund sieht .\n" * 2),
        ("German-English_WordAlignment/de-en.wa", "0-0 1p1 2-2\n" * 2),
    ):
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_text(text)
    return root


@pytest.fixture
def workplace(tmp_path, models_and_files, monkeypatch):
    """A copy of them, as the current directory."""
    shutil.copytree(models_and_files, tmp_path, symlinks=True, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning")
@pytest.mark.parametrize("number", range(len(PYTHON)))
def test_python_blocks_run(workplace, number):
    exec(compile(PYTHON[number], f"Python block {number}", "exec"), {"__name__": "readme"})


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize("feature", FEATURES)
def test_each_feature_example_runs(workplace, hub, feature, request):
    if "add_adapter" in feature:
        request.getfixturevalue("library_adapters")
    namespace = {}
    exec(next(block for block in PYTHON if "batch = tokenizer(" in block), namespace)
    exec("import torch, accelerate, peft, transformers, modeling_aiayn.translation", namespace)
    exec("from transformers.distributed import DistributedConfig", namespace)
    for library in ("transformers", "accelerate", "peft"):
        module = namespace[library]
        names = {node.id for node in ast.walk(ast.parse(feature)) if isinstance(node, ast.Name)}
        namespace |= {name: getattr(module, name) for name in names if hasattr(module, name)}
    eval(feature, namespace)


def test_every_row_of_the_feature_table_is_tested():
    assert len(FEATURES) == FEATURES_PAGE.count("(../tests/test_") == 32


def check_launched_script(words, monkeypatch):
    """Check the files and flags of `torchrun ... scripts/train_translation.py recipe flags`."""
    script = next(index for index, word in enumerate(words) if word.endswith(".py"))
    recipe = words[script + 1]
    files = [word for word in words[: script + 1] if word.endswith((".py", ".yaml"))]
    assert all((ROOT / word).exists() for word in files)
    assert find_recipe(recipe)
    monkeypatch.setattr(sys, "argv", [*words[script:], "--use_cpu", "true"])
    parse_arguments("", *arguments_of_recipe(recipe))


def make_what_a_command_reads(words):
    """Export, import or train a model that the command needs."""
    if "--engine" in words:
        folder = words[words.index("--model") + 1]
        export_ctranslate2(Translator.from_pretrained("runs/demo"), folder, "int8")
    if "--shortlist" in words:
        translator = Translator.from_pretrained("runs/demo")
        counts = count_links(translator, ["We see."], ["Wir sehen."])
        hashes = [vocabulary_sha256(translator.source_tokenizer)] * 2
        shortlist = Shortlist.from_counts(counts, hashes, per_id=9, frequent=9, is_shared=True)
        shortlist.save(Path(words[words.index("--shortlist") + 1]))
    for folder in {"runs/student", "runs/forward", "runs/backward"}.intersection(words):
        shutil.copytree("runs/demo", folder)
    if "models/en-de-int8" in words and "--file" not in words:
        export_int8(Translator.from_pretrained("aiayn-en-de"), "models/en-de-int8")
    if "models/opus-en-de" in words and "--system" not in words:
        import_model(read_marian("opus-mt-en-de"), "models/opus-en-de", sources=2)
    if "models/nllb" in words and "--system" not in words:
        import_model(read_m2m100("nllb-200-distilled-600M"), "models/nllb", sources=2)
    if "scripts/average_checkpoints.py" in words:
        translator = Translator.from_pretrained("runs/demo")
        tokenizer = translator.source_tokenizer
        pair = dict(tokenizer(["We see."], text_target=["Wir sehen."]))
        arguments = AiaynTrainingArguments(
            "runs/mine", max_steps=5, save_steps=1, save_strategy="steps", report_to="none"
        )
        data = {"train_dataset": Dataset.from_dict(pair), "processing_class": tokenizer}
        AiaynTrainer(translator.model.float(), arguments, **data).train()


def run_script(words, monkeypatch):
    """Run a script; of a training run, only read its flags."""
    monkeypatch.setattr(sys, "argv", words)
    if words[0].startswith("scripts/train_"):
        parse_arguments("", *arguments_of_recipe(words[1]))
    else:
        make_what_a_command_reads(words)
        runpy.run_path(str(ROOT / words[0]), run_name="__main__")


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning")
@pytest.mark.parametrize("command", COMMAND_CASES)
def test_commands_run(workplace, hub, opus, nllb, monkeypatch, command):
    given = {"Helsinki-NLP/opus-mt-en-de": opus, "facebook/nllb-200-distilled-600M": nllb}
    for name, folder in given.items():
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        hub.repositories[name] = {"main": ("0" * 40, files)}
    program, *words = shlex.split(command.split(" > ")[0], comments=True)
    if program == "make":
        dry_run = ["make", "-n", *words]
        assert subprocess.run(dry_run, cwd=ROOT, capture_output=True, check=False).returncode == 0
    elif program == "source":
        assert words == [".venv/bin/activate"]
    elif program == "pip":
        assert (ROOT / words[words.index("--constraint") + 1]).exists()
    elif program in ("torchrun", "accelerate"):
        check_launched_script(words, monkeypatch)
    else:
        if program == "aiayn":
            words = [f"scripts/{words[0].replace('-', '_')}.py", *words[1:]]
        assert program in ("python", "aiayn")
        run_script(words, monkeypatch)


@pytest.mark.parametrize("command", UNTRIED)
def test_commands_that_are_not_run_have_known_flags(command, monkeypatch):
    class Parsed(Exception):
        pass

    def only_parse(*arguments, **defaults):
        parse_arguments(*arguments, **defaults)
        raise Parsed

    words = shlex.split(re.split(r" [<>|] ", command)[0], comments=True)
    job = Path(words[1]).stem.replace("-", "_")
    main = importlib.import_module(f"modeling_aiayn.commands.{job}").main
    for name, module in [*sys.modules.items()]:
        if name.startswith("modeling_aiayn.commands.") and hasattr(module, "parse_arguments"):
            monkeypatch.setattr(module, "parse_arguments", only_parse)
    on_cpu = ["--use_cpu", "true"] if job.startswith("train_") else []
    monkeypatch.setattr(sys, "argv", [*words[1:], *on_cpu])
    with pytest.raises(Parsed):
        main()


def anchors(path):
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), flags=re.M)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])
def test_links_lead_to_existing_files_and_headings(page):
    for target in re.findall(r"\]\((?!http)([^)]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        linked = page.parent / path if path else page
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors(linked), target


def test_the_code_table_names_existing_functions_and_classes():
    rows = re.findall(r"^\|.*\]\(modeling_aiayn/.*\|$", README, flags=re.M)
    assert rows
    for row in rows:
        paths = re.findall(r"\]\((modeling_aiayn/[^)]+)\)", row)
        text = "".join((ROOT / path).read_text() for path in paths)
        for name in re.findall(r"`([^`]+)`", row.split("|")[3]):
            assert re.search(rf"(def|class) {name.split('.')[-1]}\b|^{name}\b", text, flags=re.M), (
                name
            )


def test_the_readme_lists_the_departures_that_the_docstrings_name():
    """Each file that departs is listed, and no other file."""
    section = README.split("## Departures from the paper")[1].split("##")[0]
    listed = set(re.findall(r"\(`([^`]+)`\)", section))
    departing = {
        str(path.relative_to(ROOT / "modeling_aiayn"))
        for path in (ROOT / "modeling_aiayn").rglob("*.py")
        if "Departs from the paper:" in path.read_text()
    }
    assert listed == departing
