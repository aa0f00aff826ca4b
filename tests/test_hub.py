"""A saved folder is complete: it opens where the package is absent, and says what it needs."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import test_house
import torch
from conftest import ROOT, small_config, small_model
from transformers import AutoModel, pipeline

import modeling_aiayn
from modeling_aiayn import AiaynEncoderModel, AiaynForCausalLM, AiaynForSequenceClassification
from modeling_aiayn.tokenization import decode_lines, train_bpe_tokenizer
from modeling_aiayn.translation import Translator

PACKAGE = Path(modeling_aiayn.__file__).parent

HUB_SET = {f"{name}.py" for name in test_house.HUB_SET}
ALLOWED = {"torch", "transformers", "huggingface_hub"} | set(sys.stdlib_module_names)

# Each of these exists in every release of transformers from 5.4 on. tests/versions runs them; a
# name that is added here must be in transformers 5.4 too.
LIBRARY_NAMES = {
    "huggingface_hub.dataclasses": {"strict"},
    "transformers": {
        *("Cache", "DynamicCache", "EncoderDecoderCache", "GenerationConfig", "GenerationMixin"),
        *("LogitNormalization", "LogitsProcessor", "LogitsProcessorList", "PreTrainedConfig"),
        *("PreTrainedModel", "initialization"),
    },
    "transformers.activations": {"ACT2FN"},
    "transformers.core_model_loading": {"WeightRenaming"},
    "transformers.masking_utils": {"create_bidirectional_mask", "create_causal_mask"},
    "transformers.modeling_layers": {"GradientCheckpointingLayer"},
    "transformers.models.auto.modeling_auto": {"MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"},
    "transformers.modeling_outputs": {
        *("BaseModelOutput", "BaseModelOutputWithPastAndCrossAttentions"),
        *("CausalLMOutputWithPast", "Seq2SeqLMOutput", "Seq2SeqModelOutput"),
        "SequenceClassifierOutput",
    },
    "transformers.modeling_utils": {"ALL_ATTENTION_FUNCTIONS", "LoadStateDictConfig"},
    "transformers.processing_utils": {"Unpack"},
    "transformers.utils": {"TransformersKwargs", "can_return_tuple", "logging"},
    "transformers.utils.generic": {"merge_with_config_defaults"},
    "transformers.utils.output_capturing": {"OutputRecorder", "capture_outputs"},
    "transformers.utils.versions": {"require_version"},
}


def imports(path):
    """(level, module) of each import of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.level, node.module


def test_hub_set_is_closed_and_imports_nothing_else():
    reached, waiting = set(), ["modeling_aiayn.py"]
    while waiting:
        name = waiting.pop()
        reached.add(name)
        for level, module in imports(PACKAGE / name):
            if level:
                assert level == 1, f"{name}: only files beside it"
                assert module, f"{name}: `from . import` is not copied into saved folders"
                assert "." not in module, f"{name}: no sub-packages"
                if f"{module}.py" not in reached:
                    waiting.append(f"{module}.py")
            else:
                assert module.split(".")[0] in ALLOWED, f"{name} imports {module}"
    assert reached == HUB_SET


def test_the_models_import_every_other_file_directly():
    """transformers 5.4 copies the direct imports of a module, and not the imports of those."""
    source = (PACKAGE / "modeling_aiayn.py").read_text()
    direct = set(re.findall(r"^from \.(\w+) import", source, flags=re.M))
    assert direct == {name.removesuffix(".py") for name in HUB_SET} - {"modeling_aiayn"}


def test_the_hub_set_uses_names_that_exist_since_transformers_5_4():
    found = {}
    for name in HUB_SET:
        for node in ast.walk(ast.parse((PACKAGE / name).read_text())):
            if isinstance(node, ast.ImportFrom) and not node.level:
                if node.module.split(".")[0] in ("transformers", "huggingface_hub"):
                    found.setdefault(node.module, set()).update(a.name for a in node.names)
            elif isinstance(node, ast.Import):
                roots = {alias.name.split(".")[0] for alias in node.names}
                assert not roots & {"transformers", "huggingface_hub"}, name
    assert found == LIBRARY_NAMES


def run(code, *, home, package=False, cwd=None):
    """Run code in a fresh process; without the package nothing of it is importable."""
    hide = "" if package else "import sys; sys.modules['modeling_aiayn'] = None\n"
    offline = {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, "-c", hide + code],
        env=os.environ | offline,
        cwd=cwd or home,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    tokenizer = train_bpe_tokenizer(["the cat", "die Katze"], 300)
    model = small_model(vocab_size=len(tokenizer))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_saved_folder_holds_the_hub_set_whole(folder):
    assert {path.name for path in folder.iterdir()} >= HUB_SET
    for name in HUB_SET:
        assert (folder / name).read_bytes() == (PACKAGE / name).read_bytes()
    auto_map = json.loads((folder / "config.json").read_text())["auto_map"]
    heads = {f"ModelFor{name}" for name in ("CausalLM", "Seq2SeqLM", "TextEncoding")}
    heads |= {"Config", "Model", "ModelForSequenceClassification"}
    assert auto_map.keys() == {f"Auto{name}" for name in heads}


@pytest.mark.long
def test_fresh_process_without_the_package_opens_the_folder(folder, tmp_path):
    """Every auto class, the same logits and tokens, and a second save that opens again."""
    model = modeling_aiayn.AiaynForConditionalGeneration.from_pretrained(folder).eval()
    ids = torch.tensor([[5, 6, 2]])
    expected = model(ids, labels=ids).logits[0, 0, :5].tolist()
    output = run(
        f"""
import json, torch, transformers
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer
options = {{"trust_remote_code": True}}
folder = {str(folder)!r}
config = AutoConfig.from_pretrained(folder, **options)
base = AutoModel.from_pretrained(folder, **options)
model = AutoModelForSeq2SeqLM.from_pretrained(folder, **options).eval()
tokenizer = AutoTokenizer.from_pretrained(folder, **options)
ids = torch.tensor([[5, 6, 2]])
logits = model(ids, labels=ids).logits[0, 0, :5].tolist()
model.generate(**tokenizer(["the cat"], return_tensors="pt"), num_beams=2)
model.save_pretrained({str(tmp_path / "again")!r})
again = AutoModelForSeq2SeqLM.from_pretrained({str(tmp_path / "again")!r}, **options).eval()
assert torch.equal(again(ids, labels=ids).logits, model(ids, labels=ids).logits)
print(json.dumps([type(base).__name__, type(model).__name__, len(tokenizer), logits]))
""",
        home=tmp_path,
    )
    base, head, size, logits = json.loads(output.splitlines()[-1])
    assert (base, head) == ("AiaynModel", "AiaynForConditionalGeneration")
    assert size == model.config.vocab_size
    assert logits == pytest.approx(expected, abs=1e-5)


@pytest.mark.long
def test_heads_load_as_themselves_and_as_their_base_model(tmp_path):
    """In a fresh process without the package, and here; the same weights each time."""
    heads = {
        "AutoModelForSequenceClassification": (AiaynForSequenceClassification, "AiaynEncoderModel"),
        "AutoModelForCausalLM": (AiaynForCausalLM, "AiaynDecoderModel"),
        "AutoModel": (AiaynEncoderModel, "AiaynEncoderModel"),
    }
    for auto, (cls, base) in heads.items():
        model = cls(small_config())
        model.save_pretrained(tmp_path / auto)
        opened, info = AutoModel.from_pretrained(tmp_path / auto, output_loading_info=True)
        assert type(opened).__name__ == base
        assert not info["missing_keys"]
        assert torch.equal(
            opened.get_input_embeddings().weight, model.get_input_embeddings().weight
        )
    output = run(
        f"""
import transformers
for auto in {list(heads)!r}:
    folder = {str(tmp_path)!r} + "/" + auto
    head = getattr(transformers, auto).from_pretrained(folder, trust_remote_code=True)
    base = transformers.AutoModel.from_pretrained(folder, trust_remote_code=True)
    print(type(head).__name__, type(base).__name__)
""",
        home=tmp_path,
    )
    expected = [f"{cls.__name__} {base}" for cls, base in heads.values()]
    assert output.splitlines()[-3:] == expected


@pytest.mark.long
def test_every_class_of_remote_code_saves_a_folder_that_opens(folder, tmp_path):
    """Also a class that was reached without its Auto class: as a part of another model."""
    run(
        f"""
import torch, transformers
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoModelForTextEncoding
from transformers import AutoModelForSequenceClassification
options = {{"trust_remote_code": True}}
whole = AutoModelForSeq2SeqLM.from_pretrained({str(folder)!r}, **options)
classifier = AutoModelForSequenceClassification.from_pretrained({str(folder)!r}, **options)
language = AutoModelForCausalLM.from_pretrained({str(folder)!r}, **options)
encoder = AutoModelForTextEncoding.from_pretrained({str(folder)!r}, **options)
parts = [whole, whole.model, whole.get_encoder(), whole.model.decoder, classifier, classifier.model]
for model in [*parts, classifier.get_encoder(), language, language.model, language.model.decoder, encoder]:
    with torch.no_grad():
        next(model.parameters()).add_(1)
    name = f"{{parts.index(model) if model in parts else 9}}-{{type(model).__name__}}"
    model.save_pretrained({str(tmp_path)!r} + "/" + name)
    torch.save({{n: w for n, w in model.state_dict().items()}}, {str(tmp_path)!r} + f"/{{name}}.pt")
""",
        home=tmp_path,
    )
    output = run(
        f"""
import glob, torch, transformers
autos = {{
    "AiaynForConditionalGeneration": transformers.AutoModelForSeq2SeqLM,
    "AiaynForSequenceClassification": transformers.AutoModelForSequenceClassification,
    "AiaynForCausalLM": transformers.AutoModelForCausalLM,
}}
for path in sorted(glob.glob({str(tmp_path)!r} + "/*.pt")):
    name = path.split("-")[-1][:-3]
    auto = autos.get(name, transformers.AutoModel)
    model, info = auto.from_pretrained(path[:-3], trust_remote_code=True, output_loading_info=True)
    assert type(model).__name__ == name, (type(model), name)
    assert not info["missing_keys"] and not info["unexpected_keys"], (name, info)
    saved = torch.load(path)
    for key, weight in model.state_dict().items():
        assert torch.equal(weight, saved[key]), (name, key)
    print(name)
""",
        home=tmp_path,
    )
    assert len(set(output.split())) == 8


@pytest.mark.long
@pytest.mark.parametrize("target_words", [None, "die Katze sieht"], ids=["shared", "separate"])
def test_a_saved_pipeline_translates_without_the_package(tmp_path, target_words):
    source = train_bpe_tokenizer(["the cat", "die Katze"], 300)
    target = source if target_words is None else train_bpe_tokenizer([target_words], 290)
    sizes = {} if target is source else {"decoder_vocab_size": len(target)}
    translator = Translator(small_model(vocab_size=len(source), **sizes), source, target)
    made = pipeline(
        "aiayn-translation",
        model=translator.model,
        tokenizer=source,
        **({} if target is source else {"target_tokenizer": target}),
        device="cpu",
    )
    folder = tmp_path / "saved"
    made.save_pretrained(folder)
    assert not hasattr(made.model.config, "custom_pipelines")
    texts = ["the cat", "die Katze", "the the the cat"]
    ids = [
        made.model.generate(**source([text], return_tensors="pt"), num_beams=2)[0] for text in texts
    ]
    output = run(
        f"""
import json
from transformers import pipeline
translate = pipeline(model={str(folder)!r}, trust_remote_code=True, device="cpu")
found = [translate({texts!r}, num_beams=2), translate({texts!r}, num_beams=2, batch_size=3)]
translate.save_pretrained({str(tmp_path / "again")!r})
again = pipeline(model={str(tmp_path / "again")!r}, trust_remote_code=True, device="cpu")
both = [translate({texts!r}, num_beams=2, num_return_sequences=2, batch_size=size) for size in (1, 3)]
assert both[0] == both[1] and [pair[0] for pair in both[0]] == found[0], both
print(json.dumps([*found, again({texts!r}, num_beams=2)]))
""",
        home=tmp_path,
    )
    expected = [
        {"translation_text": text} for text in decode_lines(target, [row.tolist() for row in ids])
    ]
    assert json.loads(output.splitlines()[-1]) == [expected] * 3


@pytest.mark.long
def test_with_the_package_neither_a_connection_nor_remote_code_is_needed(folder, tmp_path):
    output = run(
        f"""
import os, socket
del os.environ["HF_HUB_OFFLINE"]
def refused(*args):
    raise AssertionError("a connection")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refused
from modeling_aiayn.translation import Translator
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
assert len(Translator.from_pretrained({str(folder)!r})(["the cat"])) == 1
AutoTokenizer.from_pretrained({str(folder)!r})
print(type(AutoModelForSeq2SeqLM.from_pretrained({str(folder)!r})).__module__)
""",
        home=tmp_path,
        package=True,
        cwd=ROOT,
    )
    assert output.splitlines()[-1] == "modeling_aiayn.modeling_aiayn"


@pytest.mark.long
def test_import_registers_and_does_nothing_else(tmp_path):
    """No file, no thread, and none of the workshop."""
    output = run(
        "import sys, threading, transformers\n"
        "threads = threading.active_count()\n"
        "import modeling_aiayn\n"
        "assert threading.active_count() == threads\n"
        "print(sorted(name for name in sys.modules if name.startswith('modeling_aiayn')))",
        home=tmp_path,
        package=True,
        cwd=ROOT,
    )
    kernels = ["", ".blockwise_attention", ".blockwise_operation"]
    kernels += [".triton_attention"] if torch.version.cuda or torch.version.hip else []
    assert {*ast.literal_eval(output.splitlines()[-1])} == {
        "modeling_aiayn",
        *(f"modeling_aiayn.{name.removesuffix('.py')}" for name in HUB_SET),
        *(f"modeling_aiayn.attention_kernels{name}" for name in kernels),
    }
    assert not list(tmp_path.iterdir())
