"""The package's layout: which module may import which, and what the Hub set holds."""

import ast
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from conftest import ROOT

PACKAGE = ROOT / "modeling_aiayn"
MODULES = sorted(PACKAGE.rglob("*.py"))


HUB_SET = {
    *("configuration_aiayn", "attention", "dropout", "layers", "stacks", "losses", "chunked_loss"),
    *("generation", "inputs", "pretrained", "modeling_aiayn"),
}
# Rooms of the package, each with the rooms that it may import besides the Hub set.
BASE = {"tokenization", "data", "saved"}
ROOMS = {
    "attention_kernels": set(),
    "tokenization": set(),
    "data": {"tokenization"},
    "saved": {"tokenization", "data"},
    "training": BASE,
    "translation": BASE,
    "inspection": BASE | {"translation"},
    "interop": BASE | {"translation"},
    "documents": BASE | {"translation", "inspection"},
    "serving": BASE | {"translation", "inspection", "documents"},
    "pages": BASE | {"translation", "inspection", "documents", "serving", "language_model"},
    "classification": BASE | {"training", "inspection"},
    "language_model": BASE | {"training", "inspection"},
}


def module_name(path: Path) -> str:
    """modeling_aiayn/translation/pools.py is "translation.pools"; an __init__ is its folder."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(name: str) -> str:
    return name.partition(".")[0]


NAMES = {module_name(path): path for path in MODULES}


def imported_modules(path: Path) -> set[str]:
    """The package's own modules that a module imports, anywhere in it."""
    package = path.relative_to(PACKAGE).parent.parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = list(package[: len(package) - node.level + 1])
            module = ".".join(base + (node.module.split(".") if node.module else []))
            names = {f"{module}.{alias.name}".strip(".") for alias in node.names}
            inner = names & NAMES.keys()
            found |= inner or {module}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("modeling_aiayn"):
            found.add(node.module.removeprefix("modeling_aiayn").lstrip("."))
        elif isinstance(node, ast.Import):
            found |= {
                alias.name.removeprefix("modeling_aiayn").lstrip(".")
                for alias in node.names
                if alias.name.split(".")[0] == "modeling_aiayn"
            }
    return found


IMPORTS = {module_name(path): imported_modules(path) for path in MODULES}


def allowed_rooms(room: str) -> set[str]:
    if room in HUB_SET:
        return HUB_SET
    if room in ROOMS:
        return HUB_SET | {room} | ROOMS[room]
    if room == "":  # the package's __init__
        return HUB_SET | {"attention_kernels"}
    assert room in ("commands", "__main__"), f"{room} is in no room of the plan"
    return HUB_SET | ROOMS.keys() | {"", "commands"}


@pytest.mark.parametrize("name", IMPORTS, ids=lambda name: name or "__init__")
def test_imports_point_one_way(name):
    wrong = {each for each in IMPORTS[name] if room_of(each) not in allowed_rooms(room_of(name))}
    assert not wrong


def test_no_imports_form_a_cycle():
    """Imports within functions count too."""
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"import cycle: {' -> '.join((*path, name))}"
        if name not in done:
            for imported in sorted(IMPORTS.get(name, ())):
                if imported != name:
                    visit(imported, (*path, name))
            done.add(name)

    for name in IMPORTS:
        visit(name, ())


def test_no_two_functions_share_a_name():
    """Methods may, and each command has a main()."""
    names = Counter(
        node.name
        for path in MODULES
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    )
    del names["main"]
    assert [name for name, count in names.items() if count > 1] == []


# Modules of Python, and names of os and signal, that Windows does not have.
POSIX_MODULES = ("fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty")
POSIX_NAMES = {
    "os": (
        *("fork", "forkpty", "getuid", "getpgid", "killpg"),
        *("sched_getaffinity", "setsid", "uname"),
    ),
    "signal": ("SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGALRM", "alarm", "setitimer"),
}
# Imports every module in a process without them. The other packages are imported first: their
# support of Windows is their own.
WITHOUT_POSIX = """
import importlib, json, os, signal, sys, warnings
warnings.simplefilter("ignore")
names, modules, missing = json.loads(sys.argv[1])
import accelerate, ctranslate2, datasets, filelock, matplotlib.figure, peft, sacrebleu
import torch, transformers
from transformers import Seq2SeqTrainer, EarlyStoppingCallback, pipeline
for name in modules:
    sys.modules[name] = None
for module, attributes in missing.items():
    for attribute in attributes:
        if hasattr(sys.modules[module], attribute):
            delattr(sys.modules[module], attribute)
for name in names:
    importlib.import_module(name)
"""


@pytest.mark.long
def test_every_module_can_be_imported_without_posix():
    names = [f"modeling_aiayn.{name}".rstrip(".") for name in NAMES if "__main__" not in name]
    arguments = json.dumps([[*names, "aiayn"], POSIX_MODULES, POSIX_NAMES])
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_POSIX, arguments],
        cwd=ROOT,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
