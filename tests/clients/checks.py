"""What users of other libraries do with saved folders: one function for each client.

Each runs in an environment of its own, without this package, and gets folders that the package
saved: "translation", "language_model" (bytes), "encoder" and "onnx". It returns one line about what it saw.
"""

import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

REMOTE = {"trust_remote_code": True}
TEXTS = ["The dog sees the cat.", "We see a house and a tree."]
METRIC = """
class Metric:
    def add_batch(self, **batch): pass
    def compute(self, **scored): return {"score": 0.0, "accuracy": 0.0}
"""
ROOT = Path(__file__).parent.parent.parent
AIAYN = ROOT / ".venv" / "bin" / "aiayn"
DOG = "Der Hund läuft."
# A document as a person writes it: a header, marks, a link, a footnote, a list, a table, a box.
FODT = """<?xml version="1.0" encoding="UTF-8"?>
<office:document xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0"
 xmlns:style="urn:oasis:names:tc:opendocument:xmlns:style:1.0"
 xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"
 xmlns:table="urn:oasis:names:tc:opendocument:xmlns:table:1.0"
 xmlns:draw="urn:oasis:names:tc:opendocument:xmlns:drawing:1.0"
 xmlns:fo="urn:oasis:names:tc:opendocument:xmlns:xsl-fo-compatible:1.0"
 xmlns:xlink="http://www.w3.org/1999/xlink" office:version="1.3"
 xmlns:svg="urn:oasis:names:tc:opendocument:xmlns:svg-compatible:1.0"
 office:mimetype="application/vnd.oasis.opendocument.text"><office:automatic-styles>
<style:style style:name="B" style:family="text"><style:text-properties fo:font-weight="bold"/>
</style:style></office:automatic-styles><office:body><office:text>
<text:h text:outline-level="1">The <text:span text:style-name="B">old man</text:span> sleeps.</text:h>
<text:p>We see a <text:span text:style-name="B">red</text:span> <text:a xlink:type="simple"
 xlink:href="http://x.y/?a=1&amp;b=2">hat</text:a>.<text:note text:id="f1"
 text:note-class="footnote"><text:note-citation>1</text:note-citation><text:note-body>
<text:p>Two dogs run.</text:p></text:note-body></text:note> It is here.</text:p>
<text:list><text:list-item><text:p>A dog</text:p></text:list-item></text:list>
<table:table table:name="T"><table:table-column table:number-columns-repeated="2"/>
<table:table-row><table:table-cell><text:p>A cat</text:p></table:table-cell>
<table:table-cell><text:p>102</text:p></table:table-cell></table:table-row></table:table>
<text:p>A man sees <draw:frame draw:name="F" text:anchor-type="as-char" svg:width="4cm"
 svg:height="1cm"><draw:text-box><text:p>A <text:span text:style-name="B">box</text:span></text:p>
</draw:text-box></draw:frame> a tree.</text:p></office:text></office:body></office:document>
"""
EXAMPLES = "https://raw.githubusercontent.com/huggingface/transformers/v5.23.0/examples/pytorch"


def translation_model(folders: Path) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """The tokenizer and the model of the translator."""
    folder = folders / "translation"
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, **REMOTE).eval()
    return AutoTokenizer.from_pretrained(folder), model


def check_trl(folders: Path) -> str:
    """SFTTrainer ends each text with one </s>, trains, and saves a folder that opens."""
    from trl import SFTConfig, SFTTrainer

    folder = str(folders / "language_model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, **REMOTE)
    options = {"max_steps": 8, "learning_rate": 1e-2, "logging_steps": 1, "use_cpu": True}
    config = SFTConfig(str(folders / "trl"), report_to="none", bf16=False, **options)
    texts = Dataset.from_dict({"text": TEXTS * 16})
    trainer = SFTTrainer(model, config, train_dataset=texts, processing_class=tokenizer)
    ids = trainer.train_dataset[0]["input_ids"]
    assert ids == [4 + byte for byte in TEXTS[0].encode()] + [tokenizer.eos_token_id]
    trainer.train()
    trainer.save_model()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < 0.9 * losses[0]
    AutoModelForCausalLM.from_pretrained(folders / "trl", **REMOTE)
    return f"SFTTrainer: loss {losses[0]:.2f} to {losses[-1]:.2f}; each text ends with one </s>"


def check_lm_eval(folders: Path) -> str:
    """HFLM scores texts as the model does."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    folder = str(folders / "language_model")
    harness = HFLM(pretrained=folder, device="cpu", dtype="float32", batch_size=2, **REMOTE)
    requests = [Instance("loglikelihood", {}, (text, " Yes."), 0) for text in TEXTS]
    scores = [score for score, _ in harness.loglikelihood(requests)]
    model = AutoModelForCausalLM.from_pretrained(folder, **REMOTE).eval()
    for text, score in zip(TEXTS, scores, strict=True):
        ids = torch.tensor([[4 + byte for byte in f"{text} Yes.".encode()]])
        with torch.no_grad():
            logs = model(ids).logits.log_softmax(-1)[0, :-1]
        own = logs.gather(1, ids[0, 1:, None])[len(text.encode()) - 1 :].sum()
        assert abs(own.item() - score) < 1e-3
    return "HFLM.loglikelihood: the model's own log-probabilities"


def check_sentence_transformers(folders: Path) -> str:
    """SentenceTransformer opens the encoder's folder; a translator's error says how to save it."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folders / "encoder"), device="cpu", **REMOTE)
    vectors = model.encode(TEXTS)
    assert vectors.shape[0] == len(TEXTS)
    alone = model.encode(TEXTS[:1])
    assert abs(alone[0] - vectors[0]).max() < 1e-5
    whole = SentenceTransformer(str(folders / "translation"), device="cpu", **REMOTE)
    with pytest.raises(ValueError, match="AutoModelForTextEncoding"):
        whole.encode(TEXTS)
    return f"encode(): vectors of {vectors.shape[1]}, which do not depend on the batch"


def check_lightning(folders: Path) -> str:
    """Lightning's Trainer fits the model."""
    import lightning

    class Translation(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = AutoModelForSeq2SeqLM.from_pretrained(folders / "translation", **REMOTE)
            self.losses: list[float] = []

        def training_step(self, batch: dict, index: int) -> torch.Tensor:
            loss = self.model(**batch).loss
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), 1e-2)

    tokenizer = AutoTokenizer.from_pretrained(folders / "translation")
    batch = dict(tokenizer(TEXTS, text_target=TEXTS[::-1], padding=True, return_tensors="pt"))
    module = Translation()
    options = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False}
    trainer = lightning.Trainer(max_epochs=1, enable_progress_bar=False, **options)
    trainer.fit(module, DataLoader([batch] * 8, batch_size=None))
    assert module.losses[-1] < 0.9 * module.losses[0]
    return f"Trainer.fit: loss {module.losses[0]:.2f} to {module.losses[-1]:.2f}"


def check_quanto(folders: Path) -> str:
    """Weights in int8 by optimum-quanto: generate() runs, logits are close."""
    from optimum.quanto import freeze, qint8, quantize

    return _quantized(folders, lambda model: (quantize(model, weights=qint8), freeze(model)))


def _quantized(folders: Path, convert: Callable[[torch.nn.Module], object]) -> str:
    tokenizer, model = translation_model(folders)
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    expected = model(**batch, labels=batch["input_ids"]).logits
    convert(model)
    logits = model(**batch, labels=batch["input_ids"]).logits
    difference = ((logits - expected).abs().max() / expected.abs().max()).item()
    assert 0 < difference < 0.1
    model.generate(**batch, max_new_tokens=5)
    return f"int8 weights: logits differ by at most {difference:.1%} of the largest"


def check_torchao(folders: Path) -> str:
    """Weights in int8 by torchao: generate() runs, logits are close."""
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    return _quantized(folders, lambda model: quantize_(model, Int8WeightOnlyConfig()))


def check_bertviz(folders: Path) -> str:
    """model_view draws the three kinds of attention."""
    from bertviz import model_view

    tokenizer, model = translation_model(folders)
    batch = tokenizer(TEXTS[0], text_target=TEXTS[1], return_tensors="pt")
    outputs = model(**batch, output_attentions=True)
    options = {
        "encoder_tokens": tokenizer.convert_ids_to_tokens(batch["input_ids"][0]),
        "decoder_tokens": tokenizer.convert_ids_to_tokens(batch["labels"][0]),
    }
    for kind in ("encoder", "decoder", "cross"):
        options[f"{kind}_attention"] = outputs[f"{kind}_attentions"]
    page = model_view(**options, html_action="return")
    assert "attention" in page.data
    return "model_view: encoder, decoder and cross-attention"


def check_onnx(folders: Path) -> str:
    """torch.onnx.export of the encoder, run by onnxruntime on another length."""
    import onnxruntime

    tokenizer = AutoTokenizer.from_pretrained(folders / "translation")
    model = AutoModel.from_pretrained(folders / "encoder", **REMOTE).eval()
    path = str(folders / "encoder.onnx")
    ids, other = (tokenizer(text, return_tensors="pt").input_ids for text in TEXTS)

    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids).last_hidden_state

    lengths = {0: "batch", 1: "length"}
    exported = {"input_names": ["input_ids"], "dynamic_axes": {"input_ids": lengths}}
    torch.onnx.export(States(), (ids,), path, dynamo=False, **exported)
    session = onnxruntime.InferenceSession(path)
    (found,) = session.run(None, {"input_ids": other.numpy()})
    with torch.no_grad():
        difference = (torch.from_numpy(found) - model(other).last_hidden_state).abs().max().item()
    assert difference < 1e-4
    return f"encoder in onnxruntime: states differ by at most {difference:.0e}"


def check_optimum(folders: Path) -> str:
    """Beam search by optimum over the graphs of `aiayn export-onnx`: the ids of generate()."""
    from optimum.onnxruntime import ORTModelForSeq2SeqLM

    tokenizer = AutoTokenizer.from_pretrained(folders / "onnx")
    model = ORTModelForSeq2SeqLM.from_pretrained(folders / "onnx")
    expected = json.loads((folders / "onnx" / "expected.json").read_text("utf-8"))
    batch = tokenizer(expected["sentences"], padding=True, return_tensors="pt")
    rows = model.generate(**batch, num_beams=4, max_new_tokens=60)
    equal = [row == own for row, own in zip(rows.tolist(), expected["ids"], strict=True)]
    assert all(equal), f"{sum(equal)} of {len(equal)} equal"
    return f"ORTModelForSeq2SeqLM.generate, 4 beams: the ids of ours for {len(equal)} sentences"


def check_examples(folders: Path) -> str:
    """Four example scripts of transformers train, evaluate, and save folders that open."""
    rows = [{"translation": {"en": text, "de": text}} for text in TEXTS * 8]
    (folders / "pairs.json").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    rows = [{"sentence": text, "label": label} for label, text in enumerate(TEXTS)] * 8
    (folders / "labels.json").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folders / "text.txt").write_text("\n".join(TEXTS * 40))
    languages = ["--source_lang", "en", "--target_lang", "de", "--max_source_length", "256"]
    steps = ["--do_train", "--do_eval", "--max_steps", "6", "--use_cpu", "--report_to", "none"]
    for script, model, data, auto, flags in (
        ("translation/run_translation", "translation", "pairs.json", AutoModelForSeq2SeqLM,
         [*steps, *languages, "--predict_with_generate", "--num_beams", "2"]),
        ("translation/run_translation_no_trainer", "translation", "pairs.json",
         AutoModelForSeq2SeqLM, [*languages, "--max_train_steps", "6", "--num_beams", "2"]),
        ("text-classification/run_glue", "translation", "labels.json",
         AutoModelForSequenceClassification, [*steps, "--max_seq_length", "64"]),
        ("language-modeling/run_clm", "language_model", "text.txt", AutoModelForCausalLM,
         [*steps, "--block_size", "32"]),
    ):  # fmt: skip
        output = folders / Path(script).name
        files = ["--train_file", folders / data, "--validation_file", folders / data]
        remote = ["--trust_remote_code", *(["true"] if "no_trainer" not in script else [])]
        given = ["--model_name_or_path", folders / model, *remote, "--output_dir", output]
        command = [sys.executable, _example(script, folders), *given, *files, *flags]
        # Its errors go to the stderr of this process.
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        auto.from_pretrained(output, **REMOTE)
    return "run_translation, its version without Trainer, run_glue and run_clm train and save"


def _example(script: str, folder: Path) -> Path:
    """An example script: from the folder in HF_EXAMPLES, or from GitHub.

    It would download its metric; a stand-in replaces that.
    """
    name = f"{Path(script).name}.py"
    given = os.environ.get("HF_EXAMPLES")
    if given:
        source = (Path(given) / name).read_text("utf-8")
    else:
        source = urllib.request.urlopen(f"{EXAMPLES}/{script}.py").read().decode()
    source = re.sub(r"evaluate\.load\(.*?\)\n", "Metric()\n", source)
    path = folder / name
    path.write_text(source.replace("\nimport ", f"\n{METRIC}\nimport ", 1), "utf-8")
    return path


# Clients of LibreTranslate for Node.js, and a form as browsers send it.
NODE = """
import { libreTranslate } from "libretranslate-ts";
import { translate } from "libretranslate";
import other from "translate";
const [url] = process.argv.slice(2);
libreTranslate.setApiEndpoint(url);
const detected = await libreTranslate.detect("Der Hund rennt.");
const found = await libreTranslate.translate("The dog runs.", "en", "de");
Object.assign(other, { engine: "libre", url: `${url}/translate`, from: "en" });
const form = new FormData();
for (const [name, value] of [["q", "The dog runs."], ["source", "auto"], ["target", "de"]])
  form.append(name, value);
const answer = await fetch(`${url}/translate`, { method: "POST", body: form });
console.log(JSON.stringify([
  detected.language, found.translatedText, (await answer.json()).translatedText,
  await translate({ query: "The dog runs.", source: "auto", target: "de", apiurl: url }),
  await other("The dog runs.", "de"),
]));
"""


def check_libretranslate(folders: Path) -> str:
    """Clients of LibreTranslate translate and detect by `aiayn serve`."""
    from deep_translator import LibreTranslator
    from libretranslatepy import LibreTranslateAPI

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url, directions = f"http://127.0.0.1:{port}", ("aiayn-en-de", "aiayn-de-en")
    command = [AIAYN, "serve", "--directions", *directions, "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert any("Running on" in line for line in server.stderr)
            options = {"source": "en", "target": "de", "api_key": "x", "custom_url": f"{url}/"}
            assert LibreTranslator(**options).translate("The dog runs.") == DOG
            client = LibreTranslateAPI(f"{url}/")
            assert client.translate("The dog runs.", "en", "de") == DOG
            assert client.detect("Der Hund rennt.")[0]["language"] == "de"
            if shutil.which("npm") is None:
                return "Python's clients translate and detect; npm is not installed"
            packages = ("libretranslate-ts@0.5.12", "libretranslate@1.0.1", "translate@3.1.0")
            subprocess.run(["npm", "install", "--silent", *packages], cwd=folders, check=True)
            (folders / "clients.mjs").write_text(NODE)
            node = ["node", folders / "clients.mjs", url]
            found = json.loads(subprocess.run(node, capture_output=True, check=True).stdout)
            assert found == ["de", *[DOG] * 4], found
        finally:
            server.terminate()
    return "2 clients in Python, 3 for Node.js and a browser's form translate, 2 detect"


def kill_actors(job: psutil.Process, count: int) -> None:
    """Kill a random actor of a job of Ray every two to six seconds."""
    kills, chosen = 0, random.Random(0)
    while kills < count:
        processes = job.children(recursive=True)
        actors = [process for process in processes if "ray::MapWorker" in process.name()]
        if actors:
            chosen.choice(actors).kill()
            kills += 1
        time.sleep(chosen.uniform(2, 6))


def check_ray(folders: Path) -> str:
    """A job that is killed, resumed, and loses 20 actors translates each row once."""
    rows = [{"text": f"The dog sees {{cat{number}}}."} for number in range(40_000)]
    corpus, output = folders / "corpus.json", folders / "ray"
    corpus.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    command = [sys.executable, ROOT / "examples" / "translate_with_ray.py", corpus, output]
    command += ["--format", "json", "--output_format", "json", "--batch_size", "100"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    options = {"env": environment, "stderr": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    with subprocess.Popen(command, **options) as killed:
        while not list(output.glob("*.json")):
            time.sleep(0.1)
        killed.kill()
    time.sleep(5)  # Ray ends its own processes
    with subprocess.Popen([*command, "--resume"], **options) as resumed:
        kill_actors(psutil.Process(resumed.pid), 20)
        assert resumed.poll() is None
    found = [json.loads(line) for file in output.glob("*.json") for line in file.open()]
    assert resumed.returncode == 0
    assert sorted(row["id"] for row in found) == list(range(len(rows)))
    assert all(row["text"] == rows[row["id"]]["text"] for row in found)
    assert all(f"{{cat{row['id']}}}" in row["translation"] for row in found)
    return f"{len(rows)} rows, each once, though the job and 20 actors were killed"


def check_spark(folders: Path) -> str:
    """spark-submit runs the example in two tasks."""
    texts = [f"The dog sees {{cat{number}}}." for number in range(3000)]
    corpus, output = folders / "corpus.parquet", folders / "spark"
    Dataset.from_dict({"id": list(range(3000)), "text": texts}).to_parquet(corpus)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    options = ("--master", "local[2]", "--conf", "spark.sql.files.maxPartitionBytes=16k")
    example = ROOT / "examples" / "translate_with_spark.py"
    command = ["spark-submit", *options, example, corpus, output]
    subprocess.run(command, env=environment, capture_output=True, check=True)
    found = Dataset.from_parquet([str(file) for file in output.glob("*.parquet")])
    assert sorted(zip(found["id"], found["text"], strict=True)) == list(enumerate(texts))
    assert all(f"{{cat{row['id']}}}" in row["translation"] for row in found)
    return f"mapInPandas in {len(list(output.glob('*.parquet')))} tasks: 3000 rows, each once"


def check_libreoffice(folders: Path) -> str:
    """Documents that LibreOffice wrote are translated, and it opens them again."""
    if shutil.which("soffice") is None:
        return "skipped: LibreOffice is not installed (apt-get install libreoffice-writer-nogui)"
    (folders / "a.fodt").write_text(FODT)
    texts = {}
    for kind in ("odt", "docx"):
        _convert(folders, "a.fodt", kind)
        names = ["--input", f"a.{kind}", "--output", f"b.{kind}"]
        subprocess.run([AIAYN, "translate", *names], cwd=folders, check=True)
        for name in ("a", "b"):
            _convert(folders, f"{name}.{kind}", "txt:Text")
            texts[name] = (folders / f"{name}.txt").read_text("utf-8-sig").splitlines()
        (folders / "a.txt").unlink(), (folders / "b.txt").unlink()
        assert len(texts["a"]) == len(texts["b"]) == 6, texts
        assert "Der alte Mann" in "".join(texts["b"]), texts
        assert not re.search("The|the ", "".join(texts["b"])), texts
    return f"2 documents of {len(texts['a'])} lines are translated and open again"


def _convert(folder: Path, name: str, kind: str) -> None:
    home = f"-env:UserInstallation=file://{folder}/office"
    command = ["soffice", home, "--headless", "--convert-to", kind, name]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


if __name__ == "__main__":
    client, folders = sys.argv[1:]
    sys.stdout.write(f"\n{globals()[f'check_{client}'](Path(folders))}\n")
