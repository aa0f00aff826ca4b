"""The HTTP server: LibreTranslate's interface, batches of concurrent requests, and bounds."""

import asyncio
import io
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from urllib.parse import urlencode
from zipfile import ZipFile

import httpx
import pytest
import torch
from conftest import ROOT
from libretranslatepy import LibreTranslateAPI
from prometheus_client.parser import text_string_to_metric_families
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.testclient import TestClient

from modeling_aiayn.commands.flags import EngineFlags, ModelFlags, SourceFlags
from modeling_aiayn.commands.serve import served_directions
from modeling_aiayn.serving.batching import Batcher, ModelThread, QueueFullError
from modeling_aiayn.serving.keys import ApiKeys
from modeling_aiayn.serving.requests import read_fields
from modeling_aiayn.serving.service import ServedModel, Service, make_app, served_model
from modeling_aiayn.serving.translated_files import TranslatedFiles
from modeling_aiayn.translation import Translator
from modeling_aiayn.translation.segments.placement import units_of


def upper(sentences):
    return [sentence.upper() for sentence in sentences]


def attention(source, target):
    """Each word looks at the word in its place."""
    return torch.eye(len(units_of(target)), len(units_of(source)))


def several(sentences, count):
    return [[sentence.upper() + "!" * n for n in range(count)] for sentence in sentences]


def client_of(translate=upper, max_characters=100, max_waiting=50, keys=None):
    batcher = Batcher(translate, 8, max_waiting, ModelThread())
    model = ServedModel(batcher, lambda text: len(text) > 60, attention, several)
    service = Service({("en", "de"): model}, max_characters, keys)
    return TestClient(make_app(service), raise_server_exceptions=False)


def ask(client, q, source="en", target="de", **more):
    return client.post("/translate", json={"q": q, "source": source, "target": target, **more})


def test_html_keeps_its_tags():
    with client_of() as client:
        text = "<p>We <b>go</b> &amp; see.</p>\n<code>x</code> Stop!"
        wanted = "<p>WE <b>GO</b> &amp; SEE.</p>\n<code>x</code> STOP!"
        assert ask(client, text, format="html").json() == {"translatedText": wanted}
        both = ask(client, [text, "<i></i>"], format="html").json()
        assert both == {"translatedText": [wanted, "<i></i>"]}
    with client_of() as client:
        answer = ask(client, text, format="docx")
        assert answer.status_code == 400
        wanted = "format must be text or html or markdown or srt or vtt or po or xliff, got 'docx'."
        assert answer.json() == {"error": wanted}


def test_many_tags_take_no_long_time():
    with client_of(max_characters=9000) as client:
        for text in ("<b>" * 800 + "a b" + "</b>" * 800, "<b>a</b> " * 30 + "<i>" * 900):
            answer = ask(client, text, format="html").json()["translatedText"]
            assert answer == text.upper().replace("B>", "b>").replace("I>", "i>").strip()


def test_answers_have_the_shape_of_the_question():
    with client_of() as client:
        assert ask(client, "We go. See!").json() == {"translatedText": "WE GO. SEE!"}
        assert ask(client, ["a", "", "b\nc"]).json() == {"translatedText": ["A", "", "B\nC"]}
        assert ask(client, "a", source="auto", format="text").json()["translatedText"] == "A"
        half = client.post("/translate", content=b'{"q": "a \\ud800", "target": "de"}')
        assert half.json() == {"translatedText": "A \ufffd"}
        assert client.get("/health").json() == {"status": "ok"}
        languages = client.get("/languages").json()
        assert [found["targets"] for found in languages] == [["de"], []]


def test_each_direction_of_the_table_has_its_model():
    translators = {("en", "de"): upper, ("de", "en"): lambda texts: [*map(str.lower, texts)]}
    table = {
        direction: ServedModel(
            Batcher(translate, 8, 50, ModelThread()), lambda _: False, attention, several
        )
        for direction, translate in translators.items()
    }
    with TestClient(make_app(Service(table, 100))) as client:
        assert ask(client, "Abc").json() == {"translatedText": "ABC"}
        assert ask(client, "Abc", "de", "en").json() == {"translatedText": "abc"}
        targets = [(found["code"], found["targets"]) for found in client.get("/languages").json()]
        assert targets == [("en", ["de"]), ("de", ["en"])]


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (b'{"q": "a", "source": "en", "target": "fr"}', 400, "translates from en to de, got"),
        (b'{"q": ["a", null], "target": "de"}', 400, "q must be a text"),
        (
            b'{"q": "a", "target": "de", "format": "md"}',
            400,
            "format must be text or html or markdown or srt or",
        ),
        (b'{"q": "a"', 400, "must be JSON or a form in UTF-8"),
        (b"\xff", 400, "must be JSON or a form in UTF-8"),
        (b"[" * 5000, 400, "must be JSON or a form"),
        (json.dumps({"q": ["a" * 60, "b" * 60], "target": "de"}).encode(), 413, "at most 100"),
        (json.dumps({"q": "a" * 61, "target": "de"}).encode(), 413, "sentence is too long for"),
        (b"x" * 12_000, 413, "at most 100 characters"),
    ],
    ids=str,
)
def test_bad_requests_are_refused_with_one_line(content, status, message):
    with client_of() as client:
        headers = {"content-type": "application/json"}
        answer = client.post("/translate", content=content, headers=headers)
    assert (answer.status_code, answer.json().keys()) == (status, {"error"})
    assert message in answer.json()["error"] and "\n" not in answer.json()["error"]


def test_a_failure_tells_nothing_and_the_next_request_works():
    def fail(sentences):
        if "bad" in sentences:
            raise RuntimeError("/secret/path")
        return sentences

    with client_of(fail) as client:
        answer = ask(client, ["bad", "other"])
        assert (answer.status_code, answer.json()) == (500, {"error": "The translation failed."})
        assert ask(client, "good").status_code == 200


class HeldTranslator:
    """Translates once it may go on."""

    def __init__(self):
        self.batches, self.started, self.goes_on = [], threading.Event(), threading.Event()

    def __call__(self, sentences):
        self.batches.append(sentences)
        self.started.set()
        assert self.goes_on.wait(10)
        return upper(sentences)


def test_waiting_sentences_of_all_requests_are_one_batch():
    """While the first batch is translated, the sentences of four requests come."""
    translate = HeldTranslator()

    async def run():
        batcher = Batcher(translate, 6, 50, ModelThread())
        first = asyncio.create_task(batcher(["first"]))
        await asyncio.to_thread(translate.started.wait)
        others = [asyncio.create_task(batcher([f"{n}a", f"{n}b"])) for n in range(4)]
        await asyncio.sleep(0)
        translate.goes_on.set()
        assert await first == ["FIRST"]
        assert await asyncio.gather(*others) == [[f"{n}A", f"{n}B"] for n in range(4)]

    asyncio.run(run())
    assert [len(batch) for batch in translate.batches] == [1, 6, 2]


def test_a_request_of_one_sentence_waits_for_no_request_of_many():
    """Each request has a sentence in a batch before another has its second."""
    translate = HeldTranslator()

    async def run():
        batcher = Batcher(translate, 4, 9, ModelThread())
        first = asyncio.create_task(batcher(["first"]))
        await asyncio.to_thread(translate.started.wait)
        many = [asyncio.create_task(batcher([f"{n}{m}" for m in range(7)])) for n in "ab"]
        one = asyncio.create_task(batcher(["one"]))
        await asyncio.sleep(0)
        # Each of the many counts as a batch: 4 + 4 + 1 sentences wait.
        with pytest.raises(QueueFullError):
            await batcher(["z"])
        translate.goes_on.set()
        assert await one == ["ONE"] and await first == ["FIRST"]
        assert await asyncio.gather(*many) == [[f"{n}{m}" for m in range(7)] for n in "AB"]

    asyncio.run(run())
    assert translate.batches[:3] == [["first"], ["a0", "b0", "one", "a1"], ["b1", "a2", "b2", "a3"]]


def test_batches_are_short_while_small_requests_come():
    """Alone, a request has whole batches; then they take 0.1 s, of 20 ms a sentence."""
    sizes = []

    def translate(sentences):
        sizes.append(len(sentences))
        time.sleep(0.02 * len(sentences))
        return sentences

    async def run():
        batcher = Batcher(translate, 30, 99, ModelThread(), shared_seconds=0.1)
        many = asyncio.create_task(batcher(["many"] * 60))
        await asyncio.sleep(0.3)
        await asyncio.gather(*(batcher(["one"]) for _ in range(7)))
        await many

    asyncio.run(run())
    assert sizes[0] == 30
    # Eight requests have two sentences each, or what they have.
    assert sizes[1] == 16 and max(sizes[2:]) <= 5 and sum(sizes) == 67


def test_a_full_queue_refuses_and_cancelled_requests_leave_it():
    translate = HeldTranslator()

    async def run():
        batcher = Batcher(translate, 6, 5, ModelThread())
        first = asyncio.create_task(batcher(["first"]))
        await asyncio.to_thread(translate.started.wait)
        gone = asyncio.create_task(batcher(["x"] * 4))
        waiting = asyncio.create_task(batcher(["y"]))
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError):
            await batcher(["z"])
        gone.cancel()
        await asyncio.sleep(0)
        translate.goes_on.set()
        assert await first == ["FIRST"] and await waiting == ["Y"]

    asyncio.run(run())
    assert translate.batches == [["first"], ["y"]]


def test_documents_that_wait_are_bounded_too():
    goes_on = threading.Event()

    async def run():
        batcher = Batcher(upper, 6, 2, ModelThread())
        waiting = [asyncio.create_task(batcher.run(goes_on.wait)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError):
            await batcher.run(str)
        goes_on.set()
        await asyncio.gather(*waiting)
        assert await batcher.run(str) == ""

    asyncio.run(run())


def test_a_panic_of_a_library_is_reported_to_each_request():
    """pyo3's PanicException is no Exception."""

    class Panic(BaseException):
        pass

    def fail(sentences):
        raise Panic("index out of bounds")

    async def run():
        batcher = Batcher(fail, 6, 5, ModelThread())
        for _ in range(2):
            with pytest.raises(RuntimeError, match="index out of bounds"):
                await asyncio.wait_for(batcher(["a"]), 10)

    asyncio.run(run())


def test_long_sentences_are_counted_in_tokens():
    translator = Translator.from_pretrained("aiayn-en-de")
    assert not translator.is_too_long("a " * 200)
    assert not translator.is_too_long("A dog runs. " * 50)
    assert translator.is_too_long("a " * 520)
    # A character may be four tokens, its bytes.
    assert translator.is_too_long(f"The {'𓀀' * 200} end.")
    assert not translator.is_too_long("The \ud800 end.")


TOO_MANY_FILES = "OSError: [Errno 24] Too many open files"


def few_files():
    """At most 256 connections and files."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    log = tmp_path_factory.mktemp("server") / "log"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "scripts/serve.py", "--port", str(port), "--num_beams", "1"]
    with log.open("w") as stderr, subprocess.Popen(
        [*command, "--max_waiting", "40", "--max_characters", "20000", "--restore_case", "true"],
        cwd=ROOT, stderr=stderr, preexec_fn=few_files,
    ) as process:  # fmt: skip
        url = f"http://127.0.0.1:{port}"
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5)
                break
            except urllib.error.URLError:
                assert process.poll() is None, log.read_text()
                time.sleep(0.1)
        yield process, url, log
        process.kill()


@pytest.mark.long
def test_the_python_client_of_libretranslate_translates(server):
    client = LibreTranslateAPI(server[1])
    found = client.translate("A dog runs across the grass.", "en", "de")
    assert found == "Ein Hund rennt über das Gras."
    assert [language["code"] for language in client.languages()] == ["en", "de"]
    with pytest.raises(urllib.error.HTTPError, match="400"):
        client.translate("A dog.", "en", "fr")


@pytest.mark.long
def test_capitals_are_translated_as_normal_text(server):
    client = LibreTranslateAPI(server[1])
    wanted = client.translate("A dog runs across the grass.", "en", "de")
    assert client.translate("A DOG RUNS ACROSS THE GRASS.", "en", "de") == wanted
    with httpx.Client(base_url=server[1], timeout=60) as direct:
        found = ask(direct, "A DOG RUNS ACROSS <b>THE GRASS</b>.", format="html").json()
    assert found["translatedText"] == wanted.replace("das Gras", "<b>das Gras</b>")


@pytest.mark.long
def test_many_clients_get_the_translations_of_one(server):
    client = LibreTranslateAPI(server[1])
    texts = [f"A dog runs in {number} minutes." for number in range(48)]
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda text: client.translate(text, "en", "de"), texts))
    translator = Translator.from_pretrained("aiayn-en-de")
    assert found == translator(texts, num_beams=1)

    def status(text):
        try:
            return len(client.translate(text, "en", "de")) > 0
        except urllib.error.HTTPError as error:
            return error.code, error.headers["Retry-After"]

    with ThreadPoolExecutor(24) as pool:
        statuses = list(pool.map(status, ["A dog runs. " * 30] * 24))
    assert set(statuses) == {True, (429, "1")}


def send_on(connection, part, pause):
    connection.sendall(bytes(300_000))
    for _ in range(900):
        connection.sendall(part)
        time.sleep(pause)


@pytest.mark.long
def test_connections_that_send_nothing_or_on_and_on_are_closed(server):
    """More wait within a header, or without a word, than the server may have open."""
    address = ("127.0.0.1", int(server[1].rpartition(":")[2]))
    half = [socket.create_connection(address, timeout=60) for _ in range(300)]
    with ExitStack() as stack:
        for number, connection in enumerate(half):
            stack.enter_context(connection)
            if number % 2:
                connection.sendall(b"POST /translate HTTP/1.1\r\nHost: a\r\n")
        with httpx.Client(base_url=server[1], timeout=60) as direct:
            assert ask(direct, "A dog runs.").status_code == 200
        for connection in half:
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b""
    head = b"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n"
    for part, pause in ((bytes(1), 0.05), (bytes(2**20), 0)):
        with socket.create_connection(address, timeout=60) as connection:
            connection.sendall(head)
            with pytest.raises(ConnectionError):
                send_on(connection, part, pause)


def resident_memory(process):
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1])


@pytest.mark.slow
def test_memory_does_not_grow_with_requests(server):
    process, url, _ = server
    sentences = ["A dog runs across the grass. ", "Two <b>small</b> cats. ", "# An *old* man. "]
    statuses = Counter()

    def some(seed, number):
        """Requests of mixed lengths and formats; a tenth leaves before the answer."""
        random = Random(seed)
        for _ in range(number):
            fields = {
                "q": [random.choice(sentences) * random.randint(1, 5)] * random.choice([1, 1, 1, 3]),
                "format": random.choice(["text", "html", "markdown"]), "target": "de",
            }  # fmt: skip
            with suppress(httpx.TimeoutException):
                timeout = 0.01 if random.random() < 0.1 else 60
                statuses[clients.post("/translate", json=fields, timeout=timeout).status_code] += 1

    with httpx.Client(base_url=url) as clients, ThreadPoolExecutor(8) as pool:
        list(pool.map(some, range(8), [125] * 8))
        before = resident_memory(process)
        list(pool.map(some, range(8, 16), [2375] * 8))
        after = resident_memory(process)
    assert statuses[200] > 12_000, statuses
    assert after <= 1.1 * before, f"{before} kB after 1,000 requests, {after} kB after 20,000"


@pytest.mark.long
def test_sigterm_lets_requests_finish(server):
    process, url, log = server
    client = LibreTranslateAPI(url)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.translate, "A dog runs across the grass. " * 400, "en", "de")
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        assert answer.result(timeout=60).count(".") >= 300
    process.wait(timeout=30)
    assert re.search(r"Running on http://127\.0\.0\.1:\d+", log.read_text())
    assert set(re.findall(r"^\w*Error.*$", log.read_text(), re.MULTILINE)) <= {TOO_MANY_FILES}


def test_forms_are_read_in_one_encoding():
    fields = {"q": "a & ü", "source": "en", "target": "de"}
    form = {"content-type": "Application/x-www-form-urlencoded; charset=utf-8"}
    with client_of() as client:
        answer = client.post("/translate", content=urlencode(fields), headers=form)
        assert answer.json() == {"translatedText": "A & Ü"}
        parts = {name: (None, text) for name, text in fields.items()}
        assert client.post("/translate", files=parts).json() == {"translatedText": "A & Ü"}
        assert client.post("/translate", params=fields).json() == {"translatedText": "A & Ü"}


def test_keys_are_needed_and_limit_their_clients(tmp_path):
    path = tmp_path / "keys.yaml"
    path.write_text(
        "shop: {key: s3cret, requests: 3/minute}\nblog: {key: 0x5e, characters: 10 per day}\n"
    )
    keys = ApiKeys(path)
    with client_of(keys=keys) as client:

        def status(key, text="abc", **more):
            return ask(client, text, api_key=key, **more).status_code

        assert [status("wrong"), status(""), status(None), status(["s3cret"])] == [403] * 4
        bearer = {"Authorization": "Bearer s3cret"}
        fields = {"q": "a", "target": "de"}
        assert client.post("/translate", json=fields, headers=bearer).status_code == 200
        assert [status("s3cret") for _ in range(3)] == [200, 200, 429]
        assert [status("0x5e", text) for text in ("abcdef", "abcde", "abcd")] == [200, 429, 200]
        refused = ask(client, "ab", api_key="0x5e")
        assert refused.json() == {"error": "Your key allows 10 per 1 day (characters)."}
        assert refused.headers["Retry-After"]
        assert client.get("/languages").status_code == 200
        path.write_text("new: {key: other}\n")
        keys.read()
        assert [status("s3cret"), status("other")] == [403, 200]
        for wrong in (
            "new: {secret: a}",
            "new: {key: 7}",
            "new: a",
            "[",
            "- a",
            "new: {key: a, requests: 5}",
        ):
            path.write_text(wrong)
            with pytest.raises(ValueError, match=r"keys\.yaml"):
                keys.read()
        assert status("other") == 200


def measured(client):
    families = text_string_to_metric_families(client.get("/metrics").text)
    samples = [sample for family in families for sample in family.samples]
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples}


def test_metrics_and_the_log_tell_of_requests_but_not_their_texts(caplog, tmp_path):
    (tmp_path / "keys.yaml").write_text("shop: {key: s3cret}")
    caplog.set_level("INFO", "modeling_aiayn.serving.monitoring")
    with client_of(keys=ApiKeys(tmp_path / "keys.yaml")) as client:
        before = measured(client)
        ask(client, ["Private.", "words"], api_key="s3cret")
        ask(client, "Private.")
        after = measured(client)
    for status in ("200", "403"):
        name = ("aiayn_request_seconds_count", status)
        assert after[name] - before.get(name, 0) == 1
    lines = [json.loads(record.message) for record in caplog.records]
    first, second = [line for line in lines if line["path"] == "/translate"]
    assert (first["status"], first["characters"], first["key"]) == (200, 13, "shop")
    assert second["status"] == 403 and "key" not in second and first["seconds"] > 0
    assert not re.search("(?i)private|words|s3cret", caplog.text)


def test_a_model_is_served_once_it_is_warm():
    translator = Translator.from_pretrained("aiayn-en-de")
    calls = []
    translate = type(translator).__call__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Translator, "__call__", lambda *a, **k: calls.append(a[1]) or translate(*a, **k)
        )
        served = served_model(
            translator, ModelThread(), str.lower, 50, "x-y", batch_size=8, num_beams=1
        )
        assert len(calls) == 2
    with TestClient(make_app(Service({("x", "y"): served}, 100))) as client:
        found = ask(client, ["A dog runs.", "Two dogs."], "x", "y").json()["translatedText"]
        numbers = measured(client)
    assert numbers["aiayn_waiting_sentences", "x-y"] == 0
    assert numbers["aiayn_batch_sentences_sum", "x-y"] == 2
    tokens = sum(map(len, translator.target_tokenizer(found).input_ids))
    assert numbers["aiayn_target_tokens_total", "x-y"] == tokens


def test_models_of_different_directions_share_a_thread(run):
    thread, directions = ModelThread(), {}
    for name in ("aiayn-en-de", "aiayn-de-en"):
        flags = (ModelFlags(model=[name]), EngineFlags(), SourceFlags(), thread, 50)
        directions |= served_directions(*flags, {"batch_size": 8, "num_beams": 1})
    batchers = [served.batcher for served in directions.values()]
    assert batchers[0] is not batchers[1]
    with TestClient(make_app(Service(directions, 100))) as client:
        assert [found["targets"] for found in client.get("/languages").json()] == [["de"], ["en"]]
        texts = {"en": "A dog runs.", "de": "Ein Hund rennt."}
        for source, target in (("en", "de"), ("de", "en")):
            translator = Translator.from_pretrained(f"aiayn-{source}-{target}")
            (expected,) = translator([texts[source]], num_beams=1)
            for given in (source, "auto"):  # the target says which
                answer = ask(client, texts[source], given, target)
                assert answer.json()["translatedText"] == expected
    code, _, err = run("serve.py", "--directions", "aiayn-en-de", "aiayn-en-de")
    assert (code, err.count("Two models translate from en to de. Remove one.")) == (1, 1)


def upload(client, name, content, **fields):
    fields = {"source": "en", "target": "de"} | fields
    return client.post("/translate_file", data=fields, files={"file": (name, content)})


def test_files_are_translated_fetched_and_bounded():
    batcher = Batcher(upper, 8, 50, ModelThread())
    model = ServedModel(batcher, lambda text: len(text) > 60, attention, several)
    service = Service({("en", "de"): model}, 100, max_file_bytes=5000)
    subtitles = "1\n00:01,0 --> 00:02,0\nA <b>dog</b>\n"
    odt = io.BytesIO()
    with ZipFile(odt, "w") as archive:
        archive.writestr("content.xml", "<x><p>A dog</p></x>")
    with TestClient(make_app(service)) as client:
        for name, content, wanted in (
            ("a.srt", subtitles.encode(), subtitles.replace("A <b>dog", "A <b>DOG").encode()),
            ("A.ODT", odt.getvalue(), b"<x><p>A DOG</p></x>"),
            ("a.txt", "A cat. A dog.\nüb".encode(), "A CAT. A DOG.\nÜB".encode()),
        ):
            url = upload(client, name, content).json()["translatedFileUrl"]
            answer = client.get(url)
            assert wanted in answer.content
            assert url.startswith("http://testserver/download_file/")
            assert url.endswith(name[-4:].lower())
        for name, content, status, message in (
            ("a.exe", b"x", 400, "file must be a file that ends in .txt or .html"),
            ("a.odt", b"x", 400, "not a valid .odt"),
            ("a.srt", b"x", 400, "no untranslated text"),
            ("a.po", b"msgid", 400, "Syntax error"),
            ("a.txt", b"\xff", 400, "not UTF-8"),
            ("a.txt", b"x" * 70, 413, "too long for the model"),
        ):
            answer = upload(client, name, content)
            assert (answer.status_code, message in answer.json()["error"]) == (status, True)
        assert client.post("/translate_file", data={"source": "en"}).status_code == 400
        assert client.get("/download_file/..%2fa.txt").status_code == 404
        folder = Path(client.app_state["files"]._folder)
        assert len([*folder.iterdir()]) == 3
    assert not folder.exists()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_large_file_is_refused_while_it_arrives():
    with TestClient(make_app(Service({}, 100, max_file_bytes=5000))) as client:
        answer = upload(client, "a.txt", b"x. " * 6000)
    assert (answer.status_code, "at most 5,000 bytes" in answer.text) == (413, True)


def test_old_files_are_deleted(tmp_path, monkeypatch):
    files = TranslatedFiles(str(tmp_path))
    monkeypatch.setattr("modeling_aiayn.serving.translated_files.MAX_FILES", 2)
    names = [files.add(b"x", ".txt") for _ in range(3)]
    assert [files.path(name) is None for name in names] == [True, False, False]
    monkeypatch.setattr("modeling_aiayn.serving.translated_files.MAX_SECONDS", -1)
    files.add(b"x", ".txt")
    assert [*tmp_path.iterdir()] == []


def test_languages_are_detected():
    def model(name):
        batcher = Batcher(lambda texts: [f"{name} {text}" for text in texts], 8, 50, ModelThread())
        return ServedModel(batcher, lambda _: False, attention, several)

    directions = {(source, "fr"): model(source) for source in ("eng_Latn", "deu_Latn")}
    with TestClient(make_app(Service(directions, 100))) as client:
        for language, text in (("eng_Latn", "The dog runs home."), ("deu_Latn", "Der Hund rennt.")):
            ((found),) = client.post("/detect", json={"q": text}).json()
            assert found["language"] == language and 99 < found["confidence"] <= 100
            answer = ask(client, text, "auto", "fr").json()
            assert answer == {"translatedText": f"{language} {text}", "detectedLanguage": found}
        settings = client.get("/frontend/settings").json()
        assert settings["charLimit"] == 100 and not settings["keyRequired"]
        assert settings["language"]["source"]["code"] == "eng_Latn"
        assert {".srt", ".docx"} < {*settings["supportedFilesFormat"]}


def test_alternatives_are_other_translations():
    with client_of() as client:
        answer = ask(client, "A dog. A cat.", alternatives=2).json()
        assert answer["translatedText"] == "A DOG. A CAT."
        assert answer["alternatives"] == ["A DOG.! A CAT.!", "A DOG.!! A CAT.!!"]
        many = ask(client, ["a", "b"], alternatives=1000).json()
        assert [len(some) for some in many["alternatives"]] == [5, 5]
        assert "alternatives" not in ask(client, "a", alternatives=0).json()
    flags = (ModelFlags(), EngineFlags(), SourceFlags(), ModelThread(), 50)
    served = served_directions(*flags, {"batch_size": 8, "num_beams": 1})
    with TestClient(make_app(Service(served, 100))) as client:
        answer = ask(client, "Two dogs run across the green grass.", alternatives=3).json()
        texts = [answer["translatedText"], *answer["alternatives"]]
        assert len({*texts}) == len(texts) == 4


def test_pages_of_other_origins_need_leave():
    service = Service({("en", "de"): None}, 100)
    asked = {"Origin": "https://a.org", "Access-Control-Request-Method": "POST"}
    for origins, allowed in (((), None), (["https://a.org"], "https://a.org"), (["*"], "*")):
        with TestClient(make_app(service, origins)) as client:
            for answer in (client.options("/translate", headers=asked),):
                assert answer.headers.get("access-control-allow-origin") == allowed
                assert answer.status_code == (200 if allowed else 405)
            answer = client.get("/languages", headers=asked)
            assert answer.headers.get("access-control-allow-origin") == allowed


def test_bodies_that_do_not_arrive_are_given_up(monkeypatch):
    class Client:
        headers, query_params = {}, QueryParams()

        def __init__(self, leaves):
            self.leaves = leaves

        async def stream(self):
            yield b"{"
            if self.leaves:
                raise ClientDisconnect
            await asyncio.sleep(5)

    monkeypatch.setattr("modeling_aiayn.serving.requests.BODY_SECONDS", 0.01)
    for leaves, status in ((True, 400), (False, 408)):
        with pytest.raises(HTTPException) as raised:
            asyncio.run(read_fields(Client(leaves), 100, "too long"))
        assert raised.value.status_code == status


def test_sentences_of_a_client_that_has_gone_are_not_translated():
    """And they take nobody's place in the queue."""
    translate = HeldTranslator()
    batcher = Batcher(translate, 1, 2, ModelThread())
    service = Service(
        {("en", "de"): ServedModel(batcher, lambda text: False, attention, several)}, 100
    )

    async def ask(texts, leaves_after):
        body = json.dumps({"q": texts, "target": "de"}).encode()
        messages = iter([{"type": "http.request", "body": body}])

        async def receive():
            if message := next(messages, None):
                return message
            await asyncio.sleep(leaves_after)
            return {"type": "http.disconnect"}

        scope = {"type": "http", "headers": [], "query_string": b"", "state": {"facts": {}}}
        return await service.translate(Request(scope, receive))

    async def three_clients():
        first = asyncio.ensure_future(ask(["a"], 9))
        await asyncio.sleep(0.05)
        with pytest.raises(HTTPException, match="The connection was closed"):
            await ask(["b", "c"], 0.05)
        third = asyncio.ensure_future(ask(["d", "e"], 9))
        await asyncio.sleep(0.05)
        translate.goes_on.set()
        return [json.loads(found.body)["translatedText"] for found in (await first, await third)]

    assert asyncio.run(three_clients()) == [["A"], ["D", "E"]]
    assert translate.batches == [["a"], ["d"], ["e"]]


# In the container of Containerfile the server must start without a network, without rights and
# without a place to write but /tmp.
IN_CONTAINER = """
import json, subprocess, sys, time, urllib.request
server = subprocess.Popen([sys.executable, "-m", "modeling_aiayn", *sys.argv[1:]])
fields = {"q": "A dog runs.", "source": "en", "target": "de"}
asked = urllib.request.Request(
    "http://127.0.0.1:5000/translate", json.dumps(fields).encode(), {"Content-Type": "json"}
)
while True:
    try:
        print(urllib.request.urlopen(asked).read().decode())
        break
    except urllib.error.URLError:
        assert server.poll() is None
        time.sleep(0.1)
server.terminate()
sys.exit(server.wait())
"""


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("bwrap"), reason="needs bubblewrap, to imitate a container")
def test_the_container_needs_no_network_no_rights_and_no_disk():
    text = (ROOT / "Containerfile").read_text("utf-8")
    command = json.loads(re.search(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)[1])
    user = re.search(r"^USER (\d+):(\d+)$", text, re.MULTILINE).groups()
    settings = re.search(r"^ENV (.*)$", text, re.MULTILINE)[1].split()
    assert command[0] == "aiayn"
    box = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    box += ["--tmpfs", "/tmp", "--uid", user[0], "--gid", user[1], "--clearenv"]
    for folder in (ROOT, sys.prefix):
        box += ["--ro-bind", folder, folder]
    for setting in settings:
        box += ["--setenv", *setting.split("=", 1)]
    subprocess.run([sys.executable, "-m", "modeling_aiayn", "compile"], cwd=ROOT, check=True)
    box += ["--setenv", "XDG_CACHE_HOME", os.environ["XDG_CACHE_HOME"]]
    done = subprocess.run(
        [*box, "--chdir", ROOT, sys.executable, "-c", IN_CONTAINER, *command[1:], "--num_beams", "1"],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"translatedText": "Ein Hund rennt."}
    assert "Compiling" not in done.stderr
