"""Upload models to a local Hub, and load them from it."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from importlib.metadata import version

import huggingface_hub
import pytest
import torch
from conftest import ROOT, TOKEN, small_model
from huggingface_hub import CommitOperationAdd
from huggingface_hub.errors import OfflineModeIsEnabled
from safetensors.torch import load_file, save_file
from test_hub import HUB_SET

from modeling_aiayn import (
    AiaynEncoderModel,
    AiaynForCausalLM,
    AiaynForSequenceClassification,
    AiaynModel,
)
from modeling_aiayn.commands.push_to_hub import check_works
from modeling_aiayn.commands.training_report import write_report
from modeling_aiayn.pages.space import pinned_requirements
from modeling_aiayn.saved import publishing
from modeling_aiayn.saved.publishing import (
    PUBLISHED,
    deletions_of_earlier,
    files_to_publish,
    publish,
    renamed_card,
)


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory):
    """A folder of a run, with files that must not be uploaded."""
    folder = tmp_path_factory.mktemp("run")
    model = small_model(vocab_size=len(tokenizer))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    facts = {
        "source_lang": "en",
        "target_lang": "de",
        "model_name": "dogs",
        "parameters": "12",
        "config": model.config,
        "example": '"a"',
        "has_target_tokenizer": False,
        "dataset": "dogs",
        "dataset_id": None,
        "base_model": None,
        "hub": False,
        "is_adapter": False,
        "license": "apache-2.0",
        "examples": "2 training pairs",
        "language": ["en", "de"],
        "command": "python train.py",
        "updates": "2",
        "epochs": 1.0,
        "minutes": 1,
        "hardware": "2 CPU cores",
        "seed": 1,
        "kept": "the last weights",
        "scored": "2 pairs.",
        "table": "bleu 12.5",
    }
    write_report(folder, "translation", {"bleu": 12.5}, {"bleu": 12.5}, facts)
    for name in ("training_args.bin", ".env", "notes.txt", "optimizer.pt", "evil.py"):
        (folder / name).write_text(TOKEN)
    (folder / "checkpoint-2").mkdir()
    (folder / "checkpoint-2" / "model.safetensors").write_text("none")
    return folder


def test_only_files_on_the_allow_list_are_published(folder):
    names = {path.relative_to(folder).as_posix() for path in files_to_publish(folder)}
    assert names == HUB_SET | {
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "scores.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert set(PUBLISHED) >= HUB_SET


def test_a_folder_is_uploaded_in_one_commit(folder, hub):
    address = publish(folder, "me/dogs")
    commit_id, files = hub.repositories["me/dogs"]["main"]
    assert address == f"{hub.url}/me/dogs/commit/{commit_id}"
    assert files.keys() == {path.name for path in files_to_publish(folder)}
    for name in files.keys() - {"README.md"}:  # its example names the repository
        assert files[name] == (folder / name).read_bytes()
    assert any(path.startswith("/lfs/") for _, path, _ in hub.requests)
    assert not any(TOKEN.encode() in body for _, _, body in hub.requests)
    card = huggingface_hub.ModelCard(files["README.md"].decode())
    assert card.data.pipeline_tag == "translation"
    assert [(result.metric_type, result.metric_value) for result in card.data.eval_results] == [
        ("bleu", 12.5)
    ]
    publish(folder, "me/dogs", revision="v2")
    assert hub.repositories["me/dogs"]["v2"][1] == files


def test_files_of_an_earlier_model_are_deleted_and_no_others(folder, hub, tmp_path):
    """Loaders would take its weights in 8 bits, or its second tokenizer, in place of the new."""
    publish(folder, "me/dogs")
    stale = ("model.int8.safetensors", "target_tokenizer/tokenizer.json", "confusion.png")
    kept = (".gitattributes", "notes.md", "onnx/model.onnx", "other/config.json")
    _, files = hub.repositories["me/dogs"]["main"]
    expected = dict(files) | dict.fromkeys(kept, b"x")
    hub.repositories["me/dogs"]["main"] = ("0" * 40, expected | dict.fromkeys(stale, b"x"))
    publish(folder, "me/dogs")
    assert hub.repositories["me/dogs"]["main"][1] == expected
    # A Space holds its model in a folder.
    found = deletions_of_earlier(
        [
            *("README.md", "models/[x]/config.json", "models/[x]/model.int8.safetensors", "app.py"),
            "model-old/run-1-of-3.safetensors",  # of another model of the user's
        ],
        [CommitOperationAdd(f"{place}README.md", b"") for place in ("", "models/[x]/")],
    )
    assert [each.path_in_repo for each in found] == [
        "models/[x]/config.json",
        "models/[x]/model.int8.safetensors",
    ]


def test_the_example_in_the_card_names_the_repository(folder, hub, tmp_path):
    run = shutil.copytree(folder, tmp_path / "dogs")
    publish(run, "me/translator")
    card = hub.repositories["me/translator"]["main"][1]["README.md"].decode()
    assert card.count('from_pretrained("me/translator"') == 2 and '"dogs"' not in card
    assert 'from_pretrained("dogs"' in (run / "README.md").read_text()
    assert "Saved weights: the last weights." in card
    publish(run.rename(tmp_path / "final"), "me/final")
    card = hub.repositories["me/final"]["main"][1]["README.md"].decode()
    assert card.count('from_pretrained("me/final"') == 2


@pytest.mark.parametrize("text", [b"---\nlicense: a: b\n---\n", b"---\nlicense: \xe4\n---\n"])
def test_a_damaged_card_is_named(folder, tmp_path, text):
    run = shutil.copytree(folder, tmp_path / "dogs")
    (run / "README.md").write_bytes(text)
    with pytest.raises(
        ValueError, match=r"README\.md must be a model card in UTF-8 with valid YAML"
    ):
        files_to_publish(run)


def test_a_lost_connection_is_retried_and_then_reported(folder, hub, caplog):
    hub.trouble = "cut"
    with pytest.raises(ConnectionError, match=r"connection to the Hub was lost \(\w+\)\."):
        publish(folder, "me/dogs")
    assert "Attempt 2 of 3" in caplog.text and "Attempt 3 of 3" in caplog.text
    assert sum(path.endswith("/commit/main") for _, path, _ in hub.requests) == 3
    hub.trouble = None
    assert publish(folder, "me/dogs")


def test_an_interrupted_large_file_is_reported_as_a_lost_connection(folder, hub):
    hub.trouble = "cut upload"
    with pytest.raises(ConnectionError, match="connection to the Hub was lost"):
        publish(folder, "me/dogs", attempts=1)


def test_other_errors_are_not_reported_as_errors_of_the_hub(folder, hub, monkeypatch):
    def broken(*args):
        raise RuntimeError("something else")

    monkeypatch.setattr(publishing, "_commit", broken)
    with pytest.raises(RuntimeError, match="something else"):
        publish(folder, "me/dogs")


def test_a_hub_that_never_answers_is_reported(folder, hub):
    hub.trouble = "silent"
    with pytest.raises(ConnectionError, match="did not answer in time"):
        publish(folder, "me/dogs", timeout=0.5, attempts=1)


@pytest.mark.parametrize("trouble", ["silent", "slow", "slow headers"])
def test_the_timeout_bounds_the_whole_upload(folder, hub, trouble, monkeypatch):
    """Also against a server that sends a byte now and then."""
    hub.trouble = trouble
    started = time.monotonic()
    with pytest.raises(ConnectionError, match="did not answer in time"):
        publish(folder, "me/dogs", timeout=0.5, attempts=2)
    assert time.monotonic() - started < 10
    assert sum(path.endswith("/commit/main") for _, path, _ in hub.requests) == 2
    hub.trouble = None
    assert publish(folder, "me/dogs")


def test_a_large_file_may_take_longer_than_the_timeout(folder, hub, monkeypatch):
    """As long as it takes at the least speed; some bodies have a length that is not known."""
    bounds = []

    class Timer(threading.Timer):
        def __init__(self, seconds, function):
            bounds.append(seconds)
            super().__init__(seconds, function)

    monkeypatch.setattr(publishing.threading, "Timer", Timer)
    publish(folder, "me/dogs", timeout=30)
    whole = sum(path.stat().st_size for path in files_to_publish(folder))
    weights = (folder / "model.safetensors").stat().st_size
    assert 30 + weights / 10_000 <= max(bounds) <= 30 + whole / 10_000
    assert min(bounds) < 31


@pytest.mark.parametrize("status", [404, 409, 413, 422])
def test_an_answer_that_will_not_change_is_not_asked_for_again(folder, hub, status):
    hub.trouble = (status, {})
    with pytest.raises(ConnectionError, match=rf"answered with an error \({status}\)"):
        publish(folder, "me/dogs")
    assert sum(path.endswith("/commit/main") for _, path, _ in hub.requests) == 1


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_hub_is_asked_again_when_it_says(folder, hub, monkeypatch, status):
    waits = []
    monkeypatch.setattr(publishing.time, "sleep", waits.append)
    hub.trouble = (status, {"Retry-After": "7"})
    with pytest.raises(ConnectionError, match=rf"answered with an error \({status}\)"):
        publish(folder, "me/dogs")
    assert waits == [7.0, 7.0]
    assert sum(path.endswith("/commit/main") for _, path, _ in hub.requests) == 3
    hub.trouble = (status, {"Retry-After": "3600"})
    with pytest.raises(ConnectionError):
        publish(folder, "me/dogs")
    assert waits == [7.0, 7.0]


def test_an_error_of_the_hub_is_reported(folder, hub, monkeypatch):
    monkeypatch.setattr("local_hub.Handler.create", lambda self: self.answer({}, 418))
    monkeypatch.setattr(
        "local_hub.ROUTES", [("POST /api/repos/create", lambda self: self.create())]
    )
    with pytest.raises(ConnectionError, match=r"answered with an error \(418\)"):
        publish(folder, "me/dogs")
    assert len(hub.requests) == 1


@pytest.mark.parametrize(
    ("repo_id", "options", "message"),
    [
        ("me/dogs/cats", {}, r"repo_id must be like me/translator, got 'me/dogs/cats'"),
        ("me/dogs", {"attempts": 0}, "attempts must be at least 1, got 0"),
    ],
)
def test_invalid_arguments_are_rejected(folder, hub, repo_id, options, message):
    with pytest.raises(ValueError, match=message):
        publish(folder, repo_id, **options)


def test_incomplete_folders_are_rejected(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"No such directory: .*none"):
        files_to_publish(tmp_path / "none")
    for name in ("config.json", "tokenizer_config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(ValueError, match=r"has no README\.md: a model on the Hub needs a card"):
        files_to_publish(tmp_path)
    (tmp_path / "README.md").write_text("---\nlicense: '{{ license }}'\n---\nA model.")
    with pytest.raises(
        ValueError, match=r"has no vocabulary: none of tokenizer\.json, source\.spm"
    ):
        files_to_publish(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    with pytest.raises(ValueError, match=r"README\.md must be a filled model card"):
        files_to_publish(tmp_path)
    os.truncate(tmp_path / "model.safetensors", 1000)
    with pytest.raises(OSError, match=r"model\.safetensors .* truncated or corrupt"):
        files_to_publish(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "model-00001-of-00002.safetensors")
    shutil.copy(folder / "model.safetensors", tmp_path / "model-00001-of-00002.safetensors")
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    index = json.dumps({"metadata": {}, "weight_map": names})
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(OSError, match=r"model-00002-of-00002\.safetensors"):
        files_to_publish(tmp_path)


def test_a_link_is_not_published(folder, tmp_path):
    run = shutil.copytree(folder, tmp_path / "run")
    (tmp_path / "secret").write_text(TOKEN)
    (run / "curves.png").symlink_to(tmp_path / "secret")
    with pytest.raises(ValueError, match=r"curves\.png is a link to .*secret\. Copy the file"):
        files_to_publish(run)
    (run / "curves.png").unlink()
    assert files_to_publish(run)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "tokenizer_config.json").write_text("{}")
    (run / "target_tokenizer").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(
        ValueError, match=r"target_tokenizer/tokenizer_config\.json is a link to .*e"
    ):
        files_to_publish(run)


def test_a_sentence_with_braces_can_be_published(folder, tmp_path):
    run = shutil.copytree(folder, tmp_path / "run")
    with (run / "README.md").open("a") as card:
        card.write("translator(['a {{ name }} b'])\n")
    assert files_to_publish(run)


def poison(folder):
    weights = load_file(folder / "model.safetensors")
    next(iter(weights.values()))[0] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (poison, "is not finite (NaN or infinity)"),
        (lambda folder: os.truncate(folder / "model.safetensors", 1000), "truncated or corrupt"),
        (lambda folder: save_file({}, folder / "model.safetensors"), "is missing"),
        (
            lambda folder: save_file({"bert": torch.ones(2)}, folder / "model.safetensors"),
            "is missing",
        ),
        (lambda folder: (folder / "config.json").write_text("null"), "must hold a JSON object"),
        (
            lambda folder: (folder / "tokenizer.json").write_text("{}"),
            "a file in it is damaged or of another kind",
        ),
    ],
    ids=["nan", "truncated", "empty", "foreign", "null", "tokenizer"],
)
def test_a_folder_that_does_not_work_is_not_uploaded(
    folder, hub, tmp_path, monkeypatch, capsys, damage, reason
):
    run = shutil.copytree(folder, tmp_path / "run")
    damage(run)
    code, printed = run_script(monkeypatch, capsys, "--model", run, "--repo_id", "me/dogs")
    assert code == 1 and reason in printed.err
    assert not hub.requests


@pytest.mark.parametrize(
    "cls", [AiaynForSequenceClassification, AiaynForCausalLM, AiaynEncoderModel, AiaynModel]
)
def test_models_of_other_tasks_are_tried_too(folder, tokenizer, tmp_path, cls):
    small_model(cls, vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    check_works(str(tmp_path))
    poison(tmp_path)
    with pytest.raises(ValueError, match="is not finite"):
        check_works(str(tmp_path))


def test_a_model_of_few_positions_is_tried_on_as_many_tokens(tokenizer, tmp_path):
    sizes = {"position_type": "learned", "max_position_embeddings": 2}
    small_model(AiaynForCausalLM, vocab_size=len(tokenizer), **sizes).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    check_works(str(tmp_path))


@pytest.mark.parametrize("cls", [AiaynModel])
def test_a_smaller_target_vocabulary_is_tried_too(folder, tokenizer, tmp_path, cls):
    small_model(cls, vocab_size=len(tokenizer), decoder_vocab_size=5).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    check_works(str(tmp_path))


def run_script(monkeypatch, capsys, *arguments):
    import runpy

    monkeypatch.setattr(sys, "argv", ["scripts/push_to_hub.py", *map(str, arguments)])
    code = 0
    try:
        runpy.run_path(str(ROOT / "scripts" / "push_to_hub.py"), run_name="__main__")
    except SystemExit as stop:
        code = stop.code
    return code, capsys.readouterr()


def test_the_script_prints_the_address_or_how_to_retry(folder, hub, monkeypatch, capsys):
    arguments = ("--model", folder, "--repo_id", "me/dogs", "--private", "true")
    code, printed = run_script(monkeypatch, capsys, *arguments)
    assert (code, printed.out.startswith(f"{hub.url}/me/dogs/commit/")) == (0, True)
    hub.trouble = "refuse"
    code, printed = run_script(monkeypatch, capsys, *arguments)
    (error,) = [line for line in printed.err.splitlines() if line.startswith("error: ")]
    assert code == 1
    assert "rejected the token for me/dogs (401)" in error
    assert re.search(
        r"to try again: python \S*push_to_hub\.py --model \S+ --repo_id me/dogs", error
    )
    assert TOKEN not in printed.err + printed.out


PULL = """
import json, sys
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
sys.modules["modeling_aiayn"] = None
options = {"trust_remote_code": True, "revision": sys.argv[2]}
model = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1], **options).eval()
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], **options)
output = model.generate(**tokenizer(["The dog sees."], return_tensors="pt"), max_new_tokens=9)
print(json.dumps(output.tolist()))
"""


@pytest.mark.long
def test_models_pushed_by_transformers_load_in_fresh_processes(folder, hub, tokenizer, tmp_path):
    """push_to_hub to main and to a branch; from_pretrained without this package, also offline."""
    model = small_model(vocab_size=len(tokenizer))
    model.push_to_hub("me/library", token=TOKEN)
    model.push_to_hub("me/library", token=TOKEN, revision="other")
    tokenizer.push_to_hub("me/library", token=TOKEN)
    tokenizer.push_to_hub("me/library", token=TOKEN, revision="other")
    batch = tokenizer(["The dog sees."], return_tensors="pt")
    expected = model.generate(**batch, max_new_tokens=9).tolist()
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "127.0.0.1",
    }
    for revision, offline in (("other", "0"), ("main", "0"), ("main", "1")):
        seen = len(hub.requests)
        done = subprocess.run(
            [sys.executable, "-c", PULL, "me/library", revision],
            env=environment | {"HF_HUB_OFFLINE": offline},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1]) == expected
        assert (len(hub.requests) > seen) == (offline == "0")


def test_a_space_holds_the_model_the_package_and_the_versions_that_were_tried(folder, hub, run):
    examples = ['The dog "sees".', "x' + exit()"]
    flags = ("--model", folder, "--repo_id", "me/dogs", "--space", "true", "--examples")
    assert run("push_to_hub.py", *flags, *examples)[0] == 0
    assert hub.sdks == {"spaces/me/dogs": "gradio"}
    _, files = hub.repositories["spaces/me/dogs"]["main"]
    assert hub.repositories.keys() == {"spaces/me/dogs"}
    card = huggingface_hub.SpaceCard(files["README.md"].decode()).data
    assert (card.sdk, card.sdk_version, card.app_file) == ("gradio", version("gradio"), "app.py")
    assert (card.title, card.license) == ("dogs", "apache-2.0")
    call = ast.parse(files["app.py"]).body[-1].value.args[0]
    given = {each.arg: ast.literal_eval(each.value) for each in call.keywords}
    assert given == {
        "model": "models/dogs",
        "host": "0.0.0.0",
        "examples": examples,
    }
    assert {name for name in files if name.startswith("models/")} == {
        f"models/dogs/{path.name}" for path in files_to_publish(folder)
    }
    assert "modeling_aiayn/pages/translation_page.py" in files
    assert "modeling_aiayn/inspection/attention_page.html" in files
    assert not any("/checkpoints/" in name or "__pycache__" in name for name in files)
    pins = files["requirements.txt"].decode().splitlines()
    assert f"transformers=={version('transformers')}" in pins
    assert f"torch=={version('torch').partition('+')[0]}" in pins
    # The page splits texts into sentences. This package itself is among the files.
    assert {pin.partition("==")[0] for pin in pins} >= {"sentencex", "markdown-it-py"}
    assert not any(pin.startswith(("gradio", "peft", "modeling")) for pin in pins)


@pytest.mark.parametrize(
    ("name", "package"), [("MarianTokenizer", "sentencepiece"), ("FSMTTokenizer", "sacremoses")]
)
def test_the_requirements_of_a_space_are_also_those_of_imported_tokenizers(tmp_path, name, package):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    assert f"{package}=={version(package)}" in pinned_requirements(tmp_path)


def test_a_space_of_an_adapter_is_refused(tmp_path, run):
    (tmp_path / "adapter_config.json").write_text("{}")
    code, _, err = run(
        "push_to_hub.py", "--model", tmp_path, "--repo_id", "me/dogs", "--space", "true"
    )
    assert code == 1 and "error: A Space needs a whole model" in err and "--merge_lora" in err


def test_the_card_of_a_published_adapter_loads_it_from_the_hub(tmp_path):
    text = 'translator = Translator.from_pretrained("lora")\n'
    folder = tmp_path / "lora"
    folder.mkdir()
    (folder / "README.md").write_text(text)
    assert renamed_card(folder, "me/lora", hub=True) == text.replace(
        '"lora"', '"me/lora", hub=True'
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--timeout", -1), "timeout must be a positive number of seconds, got -1.0"),
        (("--timeout", "inf"), "timeout must be a positive number of seconds, got inf"),
        (("--message", " "), "message must not be empty"),
        (("--model", "aiayn-en-de"), "is a bundled model, not a folder of yours. Copy its folder"),
    ],
    ids=str,
)
def test_flags_are_checked_before_a_repository_is_created(folder, run, flags, message):
    code, _, err = run("push_to_hub.py", "--model", folder, "--repo_id", "me/dogs", *flags)
    assert code == 1 and message in err


def test_examples_without_a_space_are_refused(folder, run):
    flags = ("--model", folder, "--repo_id", "me/dogs", "--examples", "The dog sees.")
    code, _, err = run("push_to_hub.py", *flags)
    assert code == 1 and "--examples needs --space true." in err


def test_a_push_without_a_network_is_not_repeated(folder, hub, monkeypatch):
    def offline(self):
        raise AssertionError(self)

    monkeypatch.setattr("local_hub.Handler.create", offline)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(OfflineModeIsEnabled, match="offline mode is enabled"):
        publish(folder, "me/dogs")
