"""The exported model in JavaScript: transformers.js in Node, and the example's page in Chromium."""

import http.server
import json
import re
import shutil
import subprocess
import threading
from functools import partial

import pytest
from conftest import ROOT

from modeling_aiayn.data.embedded_corpus import generate_pairs
from modeling_aiayn.interop.onnx_export import export_onnx
from modeling_aiayn.translation import Translator

pytestmark = pytest.mark.long

MODEL = "aiayn-en-de"
IDS = """
import { env } from "@huggingface/transformers";
import { load, translate, translatedIds } from "./translator.mjs";
import { readFileSync } from "node:fs";

env.allowRemoteModels = false;
env.localModelPath = "models/";
const { texts, sentences } = JSON.parse(readFileSync(0, "utf-8"));
const loaded = await load("aiayn-en-de", "fp32");
const ids = [];
for (const sentence of sentences) ids.push(await translatedIds(loaded, sentence));
const tokens = texts.map((text) => loaded.tokenizer(text).input_ids.tolist()[0].map(Number));
const first = await translate(loaded, sentences[0]);
console.log(JSON.stringify({ tokens, ids, first }));
"""


@pytest.fixture(scope="module")
def translator():
    return Translator.from_pretrained(MODEL)


@pytest.fixture(scope="module")
def site(translator, tmp_path_factory):
    """The example, built as its users build it, with the bundled model."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed (apt-get install npm)")
    folder = tmp_path_factory.mktemp("browser") / "site"
    built = shutil.ignore_patterns("node_modules", "vendor", "models")
    shutil.copytree(ROOT / "examples" / "browser", folder, ignore=built)
    for command in (("install", "--no-audit", "--no-fund"), ("run", "build")):
        subprocess.run(["npm", *command], cwd=folder, check=True)
    export_onnx(translator, folder / "models" / MODEL)
    return folder


@pytest.fixture(scope="module")
def server(site):
    """The site on loopback."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@pytest.fixture
def page(browser, server):
    """The page with its model loaded; at the end, nothing foreign was requested and no error."""
    page = browser.new_page(viewport={"width": 390, "height": 800})
    errors, requests = [], []
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("dialog", lambda dialog: (errors.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(server)
    page.locator("button:enabled").wait_for(timeout=60_000)
    yield page
    assert errors == []
    assert all(url.startswith((server, "data:", f"blob:{server}")) for url in requests), requests
    page.close()


def submit(page, text):
    """Translate a text by the page's form: its output, when it is whole."""
    page.fill("textarea", text)
    page.click("button")
    page.get_by_text(re.compile(r"words in .* a second")).wait_for(timeout=60_000)
    return page.locator("#output").text_content()


def test_node_has_our_tokens_and_ids(site, translator):
    texts = [
        *("", " ", "  two  spaces ", "▁x ▁", "\u2028a\ttab\nline"),
        *("naïve Übergang ß", "中文 😀 e\u0301", "100,000.50 $", "a" * 300, "\x00\x07", "don't"),
    ]
    sentences = [pair.source for pair in generate_pairs("test", 200)]
    command = ["node", "--input-type=module", "--eval", IDS]
    given = json.dumps({"texts": texts, "sentences": sentences}).encode()
    done = subprocess.run(command, cwd=site, input=given, stdout=subprocess.PIPE, check=True)
    found = json.loads(done.stdout)
    tokenizer = translator.source_tokenizer
    for text, ids in zip(texts, found["tokens"], strict=True):
        assert ids == tokenizer(text).input_ids, text
    batch = tokenizer(sentences, padding=True, return_tensors="pt")
    expected = translator.model.float().generate(**batch, num_beams=1, max_new_tokens=200)
    for sentence, ids, row in zip(sentences, found["ids"], expected.tolist(), strict=True):
        assert ids == row[: row.index(tokenizer.eos_token_id) + 1], sentence
    assert found["first"] == translator([sentences[0]], num_beams=1)[0]


def test_the_int8_model_is_small(site):
    files = [
        path
        for path in (site / "models" / MODEL).rglob("*.*")
        if path.suffix != ".onnx" or path.stem.endswith("_quantized")
    ]
    assert len(files) == 6 and sum(path.stat().st_size for path in files) <= 12e6


def test_the_page_translates_whole_texts(page):
    given = "Two men are standing in front of a house. A dog runs.\n\nThe children play."
    found = submit(page, given)
    first, empty, last = found.split("\n")
    assert empty == "" and first.count(".") == 2 and last.endswith(".")
    assert "Zwei Männer stehen vor einem Haus." in first and "Kinder" in last
    assert "15 words in" in page.locator("#state").text_content()
    # Another one, after the first.
    assert submit(page, "A dog runs.") in first


def test_the_page_draws_hostile_text_literally(page):
    before = page.locator("*").count()
    given = '<img src=x onerror=alert(1)> <script>alert(2)</script> </s> & "x" \''
    assert submit(page, given).strip()
    assert page.locator("*").count() == before
    assert submit(page, " \n ") == "\n"


def test_the_page_fits_a_phone_and_says_what_failed(browser, server, page, site):
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    other = browser.new_page()
    other.route("**/*.onnx", lambda route: route.abort())
    other.goto(server)
    other.locator("#state.error").wait_for(timeout=60_000)
    assert other.locator("button:disabled").count() == 1
    other.close()
