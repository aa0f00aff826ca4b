"""aiayn app: its pages translate, classify and complete, and show the attention, in Chromium."""

import os
import re
import socket
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import httpx
import pytest
import torch
from conftest import save_folder, small_model
from foreign_peers import nllb_folder
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError
from versions.environments import environment

from modeling_aiayn import AiaynForCausalLM, AiaynForSequenceClassification
from modeling_aiayn.commands.app import make_page
from modeling_aiayn.commands.flags import ModelFlags, SourceFlags, sentence_preparation
from modeling_aiayn.interop.importing import import_model
from modeling_aiayn.interop.m2m100 import read_m2m100
from modeling_aiayn.pages.parts import LAUNCH_OPTIONS
from modeling_aiayn.pages.space import space_operations
from modeling_aiayn.pages.translation_page import TranslationPage
from modeling_aiayn.saved.loading import find_model
from modeling_aiayn.serving.batching import ModelThread
from modeling_aiayn.tokenization import byte_tokenizer
from modeling_aiayn.translation import Translator

# gradio leaves sockets to the garbage collector.
pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    # gradio calls pandas as before pandas 3, and a warning there would end an event.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:gradio.queueing"),
]


# pytest compiles anyio's modules anew, and anyio imports this one at its first use, in the thread
# of the server. In Python 3.11, compiling in two threads at once may fail.
_ = anyio.open_file


def launched(model, examples=()):
    page = make_page(ModelFlags(model=[str(model)]), SourceFlags(), 300, list(examples))
    options = {"server_name": "127.0.0.1", "prevent_thread_lock": True, **LAUNCH_OPTIONS}
    _, url, _ = page.queue(max_size=100).launch(**options)
    return page, url


@pytest.fixture(scope="module")
def url():
    page, url = launched("aiayn-en-de", ["A dog runs."])
    yield url
    page.close()


@pytest.fixture(params=[1280, 390])
def page(browser, url, request):
    """The page; at the end, no foreign address was asked and no message was shown."""
    page = browser.new_page(viewport={"width": request.param, "height": 900})
    errors, requests = [], []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("dialog", lambda dialog: (errors.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(url)
    yield page
    assert errors == []
    assert [each for each in requests if not each.startswith((url, "data:", "blob:"))] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= request.param
    page.close()


def submit(page, text):
    page.locator("#text textarea").fill(text)
    page.get_by_role("button", name="Translate").click()
    page.wait_for_function("document.querySelector('#output textarea').value")


def test_a_visitor_translates_and_sees_where_the_model_looks(page):
    page.get_by_text("A dog runs.").click()
    page.wait_for_function("document.querySelector('#text textarea').value")
    submit(page, page.locator("#text textarea").input_value())
    expected = Translator.from_pretrained("aiayn-en-de")(["A dog runs."])[0]
    assert page.locator("#output textarea").input_value() == expected
    page.locator("#best").get_by_text(expected, exact=True).filter(visible=True).first.wait_for()
    frame = page.frame_locator("#attention iframe")
    frame.locator("#row-strip button").first.hover()
    assert "attends to" in frame.locator("#shown").text_content()
    before = frame.locator("#shown").text_content()
    frame.locator("#head").select_option("1")
    frame.locator("#row-strip button").first.hover()
    assert frame.locator("#shown").text_content() != before


def test_each_sentence_of_a_text_can_be_chosen(page):
    submit(page, "A dog runs.\nWhere is the station?")
    page.get_by_label("Sentence").click()
    page.get_by_role("option", name="Where is the station?").click()
    page.locator("#best").get_by_text("Bahnhof").filter(visible=True).first.wait_for()
    assert page.locator("#output textarea").input_value().count("\n") == 1
    tokens = page.frame_locator("#attention iframe").locator("#column-strip button")
    tokens.get_by_text("station").wait_for()


def test_hostile_text_is_drawn_literally(page):
    given = "<img src=x onerror=alert(1)> <script>alert(2)</script> </iframe>"
    submit(page, given)
    frame = page.frame_locator("#attention iframe")
    frame.locator("#column-strip button").first.wait_for()
    assert frame.locator("img").count() == 0
    assert page.locator("img[src=x]").count() == 0


def test_clients_at_once_get_their_own_translations(url):
    texts = [f"{number} dogs run." for number in range(12)]
    with ThreadPoolExecutor(12) as pool:
        clients = list(pool.map(lambda _: Client(url, verbose=False), texts))
        pairs = zip(clients, texts, strict=True)
        jobs = [client.submit(text, 1, 1.0, "", api_name="/translate") for client, text in pairs]
        found = [job.result(timeout=120)[0] for job in jobs]
    expected = Translator.from_pretrained("aiayn-en-de")(texts, num_beams=1, batch_size=1)
    assert found == expected


@pytest.mark.parametrize(
    ("text", "message"), [("x" * 301, "at most 300 characters"), (" \n", "Write a text first")]
)
def test_a_text_that_cannot_be_translated_is_refused_by_the_server(url, text, message):
    with pytest.raises(AppError, match=message):
        Client(url, verbose=False).predict(text, 4, 1.0, "", api_name="/translate")


def test_a_classifier_has_a_page(tokenizer, tmp_path, browser):
    options = {"vocab_size": len(tokenizer), "id2label": {0: "<b>", 1: "good"}}
    model = small_model(AiaynForSequenceClassification, **options)
    page, url = launched(save_folder(model, tokenizer, tmp_path / "classes"))
    visitor = browser.new_page()
    visitor.goto(url)
    visitor.locator("#text textarea").fill("We see.")
    visitor.get_by_role("button", name="Classify").click()
    visitor.locator("#output").get_by_text("good").first.wait_for()
    visitor.locator("#output").get_by_text("<b>").first.wait_for()
    shown = visitor.locator("#output").text_content()
    assert sum(int(share) for share in re.findall(r"(\d+)%", shown)) in (99, 100, 101)
    assert visitor.frame_locator("#attention iframe").locator("#row-strip button").count() > 2
    visitor.close()
    page.close()


def test_a_language_model_has_a_page(tmp_path):
    tokenizer = byte_tokenizer()
    model = small_model(AiaynForCausalLM, vocab_size=len(tokenizer))
    page, url = launched(save_folder(model, tokenizer, tmp_path / "bytes"))
    client = Client(url, verbose=False)
    texts = [client.predict("We ", 7, 0, api_name="/complete")[0] for _ in range(2)]
    assert texts[0] == texts[1] and texts[0].startswith("We ") and len(texts[0]) > 3
    assert client.predict("We ", 7, 1.5, api_name="/complete")[0].startswith("We ")
    page.close()


def test_a_space_runs_without_this_checkout(tmp_path):
    """The files of a Space, in an environment that has only the packages around this one."""
    python = environment(tmp_path / "environment")
    for operation in space_operations(find_model("aiayn-en-de"), "me/try", ["A dog runs."]):
        path = tmp_path / "space" / operation.path_in_repo
        path.parent.mkdir(parents=True, exist_ok=True)
        with operation.as_file() as file:
            path.write_bytes(file.read())
    app = tmp_path / "space" / "app.py"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    text = app.read_text()
    here = f'host="127.0.0.1", **BOUNDS | {{"port": {port}}}'
    assert 'host="0.0.0.0", **BOUNDS' in text
    app.write_text(text.replace('host="0.0.0.0", **BOUNDS', here))
    hidden = ("PYTHONPATH", "PYTHONWARNINGS")
    variables = {name: value for name, value in os.environ.items() if name not in hidden}
    with subprocess.Popen([python, "app.py"], cwd=app.parent, env=variables) as process:
        try:
            client = connected(f"http://127.0.0.1:{port}", process)
            found = client.predict("A dog runs.", 4, 0.6, "", api_name="/translate")[0]
        finally:
            process.terminate()
    assert found == Translator.from_pretrained("aiayn-en-de")(["A dog runs."])[0]


def connected(url, process):
    """A client, once the server listens."""
    for _ in range(600):
        assert process.poll() is None
        try:
            return Client(url, verbose=False)
        except (OSError, ValueError, httpx.TransportError):
            time.sleep(0.1)
    raise TimeoutError(url)


def test_a_port_in_use_is_named_before_the_model_is_loaded(run, monkeypatch):
    monkeypatch.setattr("modeling_aiayn.commands.app.make_page", None)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        code, out, err = run("app.py", "--port", port)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert f"in use (while attempting to bind on address ('127.0.0.1', {port})" in err


def test_a_visitor_stores_no_large_files(url):
    answer = httpx.post(f"{url}gradio_api/upload", files={"files": ("a.txt", bytes(11_000_000))})
    assert answer.status_code == 413


def test_a_file_is_translated_with_a_glossary(page, tmp_path):
    path = tmp_path / "a.srt"
    path.write_text("1\n00:00:01,000 --> 00:00:02,000\n<i>The dog runs.</i>\n")
    page.get_by_role("button", name="Files and glossary").click()
    page.locator("#terms textarea").fill("dog = Köter\n")
    page.locator("input[type=file]").first.set_input_files(path)
    page.get_by_role("button", name="Translate the file").click()
    with page.expect_download() as download:
        page.locator("a[href*=a-translated]").click()
    written = download.value.path().read_text()
    assert written == path.read_text().replace("The dog runs", "Der Köter läuft")


def test_a_wrong_file_is_a_message(url):
    client = Client(url, verbose=False)
    for name, message in (
        ("a.srt", "no untranslated text"),
        ("a.xyz", "Invalid file type"),
        (None, "Choose a file"),
    ):
        path = Path(tempfile.mkdtemp(), name or "a")
        path.write_text("x")
        given = handle_file(path) if name else None
        with pytest.raises(AppError, match=message):
            client.predict(given, 4, 1.0, "", api_name="/translate_file")


def test_capitals_are_translated_as_normal_text():
    translator = Translator.from_pretrained("aiayn-en-de")
    _, prepare = sentence_preparation(SourceFlags(restore_case=True), ModelFlags())
    page = TranslationPage(translator, ModelThread(), "A", "en", 300, [], prepare)
    *_, (text, (_, found), _) = page.translate("A DOG RUNS. It sleeps.", 4, 0.6, "")
    assert text == " ".join(translator(["A dog runs.", "It sleeps."], length_penalty=0.6))
    assert [each[0].source for each in found] == ["A dog runs.", "It sleeps."]


def test_a_visitor_chooses_the_languages(browser, tmp_path):
    torch.manual_seed(0)
    nllb_folder(tmp_path / "peer")
    import_model(read_m2m100(tmp_path / "peer"), tmp_path / "ours", sources=2)
    translator = Translator.from_pretrained(
        tmp_path / "ours", source_lang="eng_Latn", target_lang="deu_Latn"
    )
    (expected,) = translator(["The dog sees."])
    page, url = launched(tmp_path / "ours")
    client = browser.new_page()
    client.goto(url)
    for label, language in (("From", "eng_Latn"), ("To", "deu_Latn")):
        menu = client.get_by_label(label, exact=True)
        menu.fill(language)
        client.get_by_role("option", name=language).last.click()
    submit(client, "The dog sees.")
    assert client.locator("#output textarea").input_value() == expected
    tokens = client.frame_locator("#attention iframe").locator("#column-strip button")
    tokens.get_by_text("eng_Latn").wait_for()
    client.close()
    found = Client(url, verbose=False)
    with pytest.raises(AppError, match="must be different"):
        found.predict("The dog.", 4, 1.0, "", "eng_Latn", "eng_Latn", api_name="/translate")
    page.close()
