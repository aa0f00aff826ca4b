"""Upload models to a local Hub, and load them from it."""

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import version

import huggingface_hub
import pytest
from conftest import TOKEN, small_model
from huggingface_hub import CommitOperationAdd
from safetensors.torch import load_file, save_file

from modeling_aiayn import (
    AiaynEncoderModel,
    AiaynForCausalLM,
    AiaynForSequenceClassification,
    AiaynModel,
)
from modeling_aiayn.commands.push_to_hub import check_works
from modeling_aiayn.commands.training_run import write_card
from modeling_aiayn.pages.space import pinned_requirements
from modeling_aiayn.saved.folders import model_files
from modeling_aiayn.saved.publishing import (
    files_to_publish,
    model_operations,
    published_card,
    upload,
)
from modeling_aiayn.training.averaging import write_average


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory):
    """A folder of a run, with files that must not be uploaded."""
    folder = tmp_path_factory.mktemp("run")
    model = small_model(vocab_size=len(tokenizer))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    facts = {
        "source_lang": "en", "target_lang": "de", "language": ["en", "de"], "model_name": "dogs",
        "parameters": "12", "config": model.config, "example": '"a"', "has_target_tokenizer": False,
        "dataset": "dogs", "dataset_id": None, "base_model": None, "hub": False, "updates": "2",
        "is_adapter": False, "license": "apache-2.0", "examples": "2 training pairs", "epochs": 1.0,
        "command": "python train.py", "minutes": 1, "hardware": "2 CPU cores", "seed": 1,
        "kept": "the last weights", "scored": "2 pairs.", "table": "bleu 12.5",
        "task": "translation", "metrics": {"bleu": 12.5},
    }  # fmt: skip
    write_card(folder, facts)
    (folder / "scores.json").write_text('{"bleu": 12.5}')
    for name in ("training_args.bin", ".env", "notes.txt", "optimizer.pt", "evil.py"):
        (folder / name).write_text(TOKEN)
    (folder / "checkpoint-2").mkdir()
    (folder / "checkpoint-2" / "model.safetensors").write_text("none")
    return folder


def test_only_files_of_the_model_and_its_reports_are_published(folder):
    names = {path.relative_to(folder).as_posix() for path in files_to_publish(folder)}
    reports = {"README.md", "scores.json", "generation_config.json", "model.safetensors"}
    settings = {"config.json", "tokenizer.json", "tokenizer_config.json"}
    code = {path.name for path in folder.glob("*.py")} - {"evil.py"}
    assert names == reports | settings | code


def test_the_code_of_a_folder_is_what_its_own_modeling_file_imports(folder, tmp_path):
    """As in folders of other releases. A pipeline adds its file."""
    old = shutil.copytree(folder, tmp_path / "old")
    (old / "layers.py").rename(old / "older_layers.py")
    for path in old.glob("*.py"):
        path.write_text(
            path.read_text().replace("from .layers import", "from .older_layers import")
        )
    (old / "my_pipeline.py").write_text("from .checks import check\n")
    (old / "checks.py").write_text("import json\n")
    config = json.loads((old / "config.json").read_text())
    config["custom_pipelines"] = {"translation": {"impl": "my_pipeline.Mine"}}
    (old / "config.json").write_text(json.dumps(config))
    code = {path.name for path in model_files(old) if path.suffix == ".py"}
    assert code == {path.name for path in old.glob("*.py")} - {"evil.py"}
    write_average([old, old], tmp_path / "mean")
    assert {path.name for path in (tmp_path / "mean").glob("*.py")} == code


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("MarianTokenizer", {"source.spm", "target.spm", "vocab.json", "target_vocab.json"}),
        ("FSMTTokenizer", {"vocab-src.json", "vocab-tgt.json", "merges.txt"}),
        ("NllbTokenizer", {"sentencepiece.bpe.model", "tokenizer.json"}),
    ],
)
def test_the_files_of_a_tokenizer_are_those_that_its_class_names(tmp_path, name, files):
    for folder in (tmp_path, tmp_path / "target_tokenizer"):
        folder.mkdir(exist_ok=True)
        for file in (*files, "private.json"):
            (folder / file).write_text("{}")
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    expected = files | {"tokenizer_config.json"}
    found = {path.relative_to(tmp_path).as_posix() for path in model_files(tmp_path)}
    assert found == expected | {f"target_tokenizer/{file}" for file in expected}


def publish(folder, repo_id, **options):
    return upload(model_operations(folder, repo_id), repo_id, **options)


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
    (result,) = card.data.eval_results
    assert (result.metric_type, result.metric_value) == ("bleu", 12.5)
    publish(folder, "me/dogs", revision="v2")
    assert hub.repositories["me/dogs"]["v2"][1] == files


def test_files_of_an_earlier_model_are_deleted_and_no_others(folder, hub):
    """Loaders would take its weights in 8 bits, or its second tokenizer, in place of the new."""
    publish(folder, "me/dogs")
    stale = ("model.int8.safetensors", "target_tokenizer/tokenizer.json", "confusion.png")
    kept = (".gitattributes", "notes.md", "onnx/model.onnx", "other/config.json")
    kept += ("model-old/run-1-of-3.safetensors",)
    _, files = hub.repositories["me/dogs"]["main"]
    expected = dict(files) | dict.fromkeys(kept, b"x")
    shard = "model-00001-of-00002.safetensors"
    present = expected | dict.fromkeys((*stale, shard), b"x")
    hub.repositories["me/dogs"]["main"] = ("0" * 40, present)
    publish(folder, "me/dogs")
    assert hub.repositories["me/dogs"]["main"][1] == expected
    # A Space holds its model in a folder.
    upload([CommitOperationAdd("models/x/README.md", b"# x")], "me/x", space_sdk="gradio")
    _, files = hub.repositories["spaces/me/x"]["main"]
    files |= {"models/x/model.int8.safetensors": b"x", "model.safetensors": b"x"}
    upload([CommitOperationAdd("models/x/README.md", b"# y")], "me/x", space_sdk="gradio")
    left = hub.repositories["spaces/me/x"]["main"][1].keys()
    assert left == {"models/x/README.md", "model.safetensors"}


def test_the_example_in_the_card_names_the_repository(folder, hub, tmp_path):
    run = shutil.copytree(folder, tmp_path / "renamed")
    publish(run, "me/translator")
    card = hub.repositories["me/translator"]["main"][1]["README.md"].decode()
    assert card.count('from_pretrained("me/translator"') == 2 and '"dogs"' not in card
    assert 'from_pretrained("dogs"' in (run / "README.md").read_text()
    (run / "README.md").write_text('# lora\ntranslator = Translator.from_pretrained("lora")\n')
    adapter = published_card(run, "me/lora")
    assert 'Translator.from_pretrained("me/lora", hub=True)' in adapter


def test_an_adapter_of_a_local_model_is_not_published(folder, tmp_path):
    run = tmp_path / "adapter"
    run.mkdir()
    for name in ("README.md", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, run / name)
    save_file({}, run / "adapter_model.safetensors")
    for base in (str(folder), "aiayn-en-de"):
        (run / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
        if base == str(folder):
            with pytest.raises(ValueError, match="which nobody else has"):
                files_to_publish(run)
    assert run / "adapter_model.safetensors" in files_to_publish(run)


def poison(folder):
    weights = load_file(folder / "model.safetensors")
    next(iter(weights.values()))[0] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (poison, "is not finite (NaN or infinity)"),
        (lambda folder: os.truncate(folder / "model.safetensors", 1000), "weights are damaged"),
        (lambda folder: save_file({}, folder / "model.safetensors"), "is missing"),
    ],
    ids=["nan", "truncated", "empty"],
)
def test_a_folder_that_does_not_work_is_not_uploaded(folder, hub, tmp_path, run, damage, reason):
    copy = shutil.copytree(folder, tmp_path / "run")
    damage(copy)
    code, _, err = run("push_to_hub.py", "--model", copy, "--repo_id", "me/dogs")
    assert code == 1 and reason in err
    assert not hub.requests


@pytest.mark.parametrize(
    ("cls", "sizes"),
    [
        (AiaynForSequenceClassification, {}),
        (AiaynEncoderModel, {}),
        (AiaynForCausalLM, {"position_type": "learned", "max_position_embeddings": 2}),
        (AiaynModel, {"decoder_vocab_size": 5}),
    ],
)
def test_models_of_other_tasks_are_tried_too(tokenizer, tmp_path, cls, sizes):
    small_model(cls, vocab_size=len(tokenizer), **sizes).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    check_works(str(tmp_path))
    poison(tmp_path)
    with pytest.raises(ValueError, match="is not finite"):
        check_works(str(tmp_path))


def test_the_script_prints_the_address_and_never_the_token(folder, hub, run):
    flags = ("push_to_hub.py", "--model", folder, "--repo_id", "me/dogs", "--private", "true")
    code, out, _ = run(*flags)
    assert (code, out.startswith(f"{hub.url}/me/dogs/commit/")) == (0, True)
    hub.is_refusing = True
    code, out, err = run(*flags)
    assert code == 1 and "401" in err
    assert TOKEN not in err + out


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
    environment = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "NO_PROXY": "127.0.0.1"}
    environment |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    for revision, offline in (("other", "0"), ("main", "0"), ("main", "1")):
        seen = len(hub.requests)
        done = subprocess.run(
            [sys.executable, "-c", PULL, "me/library", revision],
            env=os.environ | environment | {"HF_HUB_OFFLINE": offline},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1]) == expected
        assert (len(hub.requests) > seen) == (offline == "0")


def test_a_space_holds_the_model_the_package_and_the_versions_that_were_tried(
    folder, hub, run, monkeypatch
):
    examples = ['The dog "sees".', "x' + exit()"]
    flags = ("--model", folder, "--repo_id", "me/dogs", "--space", "true", "--examples")
    assert run("push_to_hub.py", *flags, *examples)[0] == 0
    assert hub.sdks == {"spaces/me/dogs": "gradio"}
    _, files = hub.repositories["spaces/me/dogs"]["main"]
    assert hub.repositories.keys() == {"spaces/me/dogs"}
    card = huggingface_hub.SpaceCard(files["README.md"].decode()).data
    assert (card.sdk, card.sdk_version, card.app_file) == ("gradio", version("gradio"), "app.py")
    assert (card.title, card.license) == ("dogs", "apache-2.0")
    given = []
    monkeypatch.setattr("modeling_aiayn.commands.app.listen", lambda *flags: given.extend(flags))
    exec(files["app.py"], {})
    model, _, server, page = given
    assert (model.model, server.host, page.examples) == (["models/dogs"], "0.0.0.0", examples)
    assert (server.port, server.max_characters) == (7860, 2000)
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
    assert {pin.partition("==")[0] for pin in pins} >= {"sentencex"}
    assert not any(pin.startswith(("gradio", "peft", "modeling")) for pin in pins)


@pytest.mark.parametrize(
    ("name", "package"), [("MarianTokenizer", "sentencepiece"), ("FSMTTokenizer", "sacremoses")]
)
def test_the_requirements_of_a_space_are_also_those_of_imported_tokenizers(tmp_path, name, package):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    assert f"{package}=={version(package)}" in pinned_requirements(tmp_path)


def test_a_space_of_an_adapter_is_refused(tmp_path, run):
    (tmp_path / "adapter_config.json").write_text("{}")
    flags = ("--model", tmp_path, "--repo_id", "me/dogs", "--space", "true")
    code, _, err = run("push_to_hub.py", *flags)
    assert code == 1 and "holds no model: there is no config.json in it" in err
