"""Shared fixtures: small models with pairwise different sizes, data, and a local Hub."""

import atexit
import contextlib
import gc
import io
import os
import re
import runpy
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import huggingface_hub
import pytest
import torch

# Triton's interpreter runs its kernels without a GPU; triton reads this when it is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from datasets import Dataset
from local_hub import LocalHub
from transformers.integrations.peft import MIN_PEFT_VERSION
from transformers.utils import check_peft_version
from transformers.utils import hub as hub_module
from versions.models import SIZES

import aiayn
from modeling_aiayn import AiaynConfig, AiaynForConditionalGeneration
from modeling_aiayn.classification.labelled_texts import TextDataArguments
from modeling_aiayn.classification.training import ClassifierArguments, ClassifierTrainingArguments
from modeling_aiayn.data.embedded_corpus import generate_pairs
from modeling_aiayn.inputs import CACHE_NAME
from modeling_aiayn.language_model.texts import LanguageDataArguments
from modeling_aiayn.language_model.training import LanguageModelTrainingArguments
from modeling_aiayn.tokenization import train_bpe_tokenizer
from modeling_aiayn.training import AiaynTrainingArguments
from modeling_aiayn.training.data import DataArguments, encode_pairs
from modeling_aiayn.training.fine_tuning import FineTuningArguments
from modeling_aiayn.training.setup import ModelArguments, PresetArguments

os.environ.setdefault("HF_HUB_OFFLINE", "1")
if "HF_DATASETS_CACHE" not in os.environ:  # processes that the tests start use the same
    os.environ["HF_DATASETS_CACHE"] = tempfile.mkdtemp(prefix="aiayn-tests-")
    atexit.register(shutil.rmtree, os.environ["HF_DATASETS_CACHE"], ignore_errors=True)

# A shell that starts the tests in the background makes them, and what they start, ignore Ctrl-C.
# nohup makes them ignore SIGHUP.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):  # not on Windows
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
# Workers of pytest-xdist share the cores; more threads than cores slow each other several times.
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
THREADS = max(1, (os.cpu_count() or 1) // WORKERS)
os.environ["OMP_NUM_THREADS"] = str(THREADS)
torch.set_num_threads(THREADS)
# Seconds that torch waits for a loader's workers to stop, if the loader is garbage-collected.
torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 0.5

# As on processors for which torch is built without oneDNN (make test-processors).
if os.environ.get("PLAIN_KERNELS"):
    torch.backends.mkldnn.set_flags(False)

# Tests that set another home still find the machine code, whose compilation takes 15 s.
os.environ.setdefault("XDG_CACHE_HOME", str(Path.home() / ".cache"))

ROOT = Path(__file__).parent.parent
TOKEN = "hf_SECRETSECRET"
CLASSIFIER_RECIPES = ("imdb", "trec", "sst2")
LANGUAGE_MODEL_RECIPES = ("tiny_shakespeare", "enwik8_sample")
MULTI30K = ROOT.parent / "shared" / "data" / "multi30k"

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CHROMIUM_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-sync", "--no-first-run"]
CHROMIUM_FLAGS += ["--disable-background-networking", "--disable-component-update"]


@pytest.fixture(autouse=True, scope="module")
def skip_imported_modules_in_garbage_collections():
    """The Trainer collects garbage in each run; looking at all modules takes 0.3 seconds."""
    gc.collect()
    gc.freeze()


def small_config(**overrides):
    """A config in which no two sizes are equal where they may differ."""
    return AiaynConfig(**(SIZES | overrides))


def small_model(cls=AiaynForConditionalGeneration, **overrides):
    """A model for tests, with random weights (biases and norms too) and without dropout."""
    torch.manual_seed(0)
    model = cls(small_config(**overrides)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def warning_of_name(name):
    """Expect a warning if a cache is passed by the name that transformers 5.24 deprecates."""
    if name == CACHE_NAME or CACHE_NAME != "cache":
        return contextlib.nullcontext()
    return pytest.warns(FutureWarning, match="`past_key_values` is deprecated")


def save_folder(model, tokenizer, folder):
    """Save the model with its tokenizer, and return the folder."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def arguments_of_recipe(path):
    """Dataclasses that a recipe fills; the training arguments are the last."""
    name = Path(path).stem
    if name in CLASSIFIER_RECIPES:
        return TextDataArguments, ClassifierArguments, ClassifierTrainingArguments
    if name in LANGUAGE_MODEL_RECIPES:
        return LanguageDataArguments, PresetArguments, LanguageModelTrainingArguments
    return DataArguments, ModelArguments, FineTuningArguments, AiaynTrainingArguments


@pytest.fixture
def library_adapters():
    """Adapters that transformers itself adds and loads: a release may need a newer peft."""
    try:
        check_peft_version(min_version=MIN_PEFT_VERSION)
    except ValueError as error:
        pytest.skip(str(error))


@pytest.fixture
def model():
    return small_model()


@pytest.fixture
def batch():
    """Two sources of 5 and 7 tokens, two targets of 4 and 3, padded on the right."""
    return {
        "input_ids": torch.tensor([[5, 6, 7, 8, 2, 1, 1], [9, 10, 11, 12, 13, 14, 2]]),
        "labels": torch.tensor([[15, 16, 17, 2], [18, 19, 2, -100]]),
    }


@pytest.fixture(scope="session")
def pairs():
    """Pairs of the embedded grammar."""
    return generate_pairs("train", 200, seed=7)


@pytest.fixture(scope="session")
def tokenizer(pairs):
    """A BPE tokenizer of both of the grammar's languages."""
    return train_bpe_tokenizer([text for pair in pairs for text in (pair.source, pair.target)], 600)


@pytest.fixture(scope="session")
def dataset(pairs):
    return Dataset.from_dict(
        {"source": [pair.source for pair in pairs], "target": [pair.target for pair in pairs]}
    )


@pytest.fixture(scope="session")
def encoded(dataset, tokenizer):
    return encode_pairs(dataset, tokenizer, tokenizer, 256, "pairs")


@pytest.fixture(scope="module")
def model_folder(tokenizer, tmp_path_factory):
    """Folder of a translation model. Tests must not write to it."""
    model = small_model(vocab_size=len(tokenizer))
    return save_folder(model, tokenizer, tmp_path_factory.mktemp("model"))


@pytest.fixture
def hub(monkeypatch, tmp_path_factory):
    """A Hub on loopback that the libraries in this process use, with a cache of its own."""
    with LocalHub() as server:
        constants = huggingface_hub.constants
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        # transformers keeps the first that it made; 5.4 makes none.
        monkeypatch.setattr(hub_module, "_hf_api", None, raising=False)
        template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path_factory.mktemp("cache")))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


@pytest.fixture
def run(monkeypatch, capsysbinary):
    """Run a script in this process: its exit code, stdout and stderr."""

    def run_in_process(name, *arguments, stdin=b""):
        for variable in aiayn.NO_BARS:  # the scripts set them, for later tests too
            monkeypatch.setenv(variable, "1")
        monkeypatch.setattr(sys, "argv", [f"scripts/{name}", *map(str, arguments)])
        reader, writer = os.pipe()
        os.write(writer, stdin)
        os.close(writer)
        with os.fdopen(reader) as file:
            monkeypatch.setattr(sys, "stdin", file)
            code = 0
            try:
                runpy.run_path(str(ROOT / "scripts" / name), run_name="__main__")
            except SystemExit as stop:
                code = stop.code or 0
        captured = capsysbinary.readouterr()
        return code, captured.out.decode(), captured.err.decode()

    return run_in_process


def run_examples(card):
    """What the Python examples of a model card print, one entry for each."""
    outputs = []
    for code in re.findall(r"```python\n(.*?)```", card.text, flags=re.S):
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile(code, "card", "exec"), {})
        outputs.append(output.getvalue())
    return outputs


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium, driven by playwright.

    Playwright runs an event loop in the thread of the tests, so other tests could start none.
    """
    if CHROMIUM is None:
        pytest.skip("chromium is not installed (apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()
