"""Files of translations: whole, resumable, and written by one process."""

import errno
import gzip
import json
import random
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
import torch
from conftest import ROOT, small_model

from modeling_aiayn.translation import Translator
from modeling_aiayn.translation import translate_file as module
from modeling_aiayn.translation.options import SearchOptions
from modeling_aiayn.translation.translate_file import open_output, translate_file

TEXTS = [f"The dog sees {count} cats." for count in range(5)]
PREFIXES = ["Der", "", "Die", "Ein", "Wir"]


@pytest.fixture
def job(tokenizer, tmp_path):
    """Translates a file whose lines depend on their numbers: samples with prefixes."""
    torch.manual_seed(0)
    translator = Translator(small_model(vocab_size=len(tokenizer)), tokenizer)
    for name, lines in (("texts", TEXTS), ("prefixes", PREFIXES)):
        (tmp_path / name).write_text("\n".join([*lines, ""]))
    options = SearchOptions(do_sample=True, max_length_factor=0, max_length_offset=9)
    files = (tmp_path / "texts", tmp_path / "out")
    more = {"prefixes": tmp_path / "prefixes", "show_progress": False, "pool_size": 1}
    return partial(translate_file, translator, *files, options, **more)


def stopping(count):
    """Formats count texts, and then stops the run."""

    def format_lines(number, translations):
        if number == count:
            raise KeyboardInterrupt
        return [translations[0].text]

    return format_lines


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.glob("out*")}


@pytest.mark.parametrize("count", [0, 1, 3, 5])
def test_a_stopped_translation_continues_after_its_whole_lines(job, tmp_path, count, caplog):
    job()
    expected = files_of(tmp_path)
    (tmp_path / "out").unlink()
    if count < len(TEXTS):
        with pytest.raises(KeyboardInterrupt):
            job(format_lines=stopping(count))
        kept = f"The lines written so far are in {tmp_path / 'out'}.partial"
        assert (kept in caplog.text) == (count > 0)
        with (tmp_path / "out.partial").open("ab") as file:
            file.write(b"unfinished")
        assert sorted(files_of(tmp_path)) == ["out.partial", "out.partial.json"]
    lines = []
    job(resume=True, format_lines=lambda number, found: lines.append(number) or [found[0].text])
    assert files_of(tmp_path) == expected
    assert lines == list(range(count % len(TEXTS), len(TEXTS)))


def test_a_resumed_translation_has_the_same_settings(job, tokenizer, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        job(format_lines=stopping(2))
    before = files_of(tmp_path)

    def check_refused(message, job=job, **changes):
        with pytest.raises(ValueError, match=message):
            job(**{"resume": True, **changes})
        assert files_of(tmp_path) == before

    check_refused(r"partial holds the lines of a stopped run .* --resume auto", resume=False)
    check_refused(r"was written with columns=null, got 2\. Repeat the", settings={"columns": 2})
    check_refused("was written with .*content of .*prefixes", prefixes=None)
    model = small_model(vocab_size=len(tokenizer))
    model.model.encoder.layers[0].fc1.bias.data[0] += 1
    other = Translator(model, tokenizer)
    job_of_other = partial(job.func, other, *job.args[1:], **job.keywords)
    check_refused("was written with the model=", job_of_other)
    (tmp_path / "texts").write_text("\n".join([*reversed(TEXTS), ""]))
    check_refused("was written with the content of .*texts=")
    (tmp_path / "texts").write_text("\n".join([*TEXTS, ""]))
    # A lost note could hide any of these differences.
    note = tmp_path / "out.partial.json"
    del before[note.name]
    content = note.read_bytes()
    note.unlink()
    check_refused("partial has no out.partial.json beside it")
    note.write_bytes(content)
    # Sizes of batches may change, and a finished run leaves only its output.
    job(resume=True, batch_size=1)
    assert sorted(files_of(tmp_path)) == ["out"]


def test_lines_of_another_command_are_not_resumed(job, tmp_path):
    """A run with other settings starts anew, and its note replaces the earlier one."""
    with pytest.raises(KeyboardInterrupt):
        job(format_lines=stopping(4))
    with pytest.raises(KeyboardInterrupt):
        job(settings={"columns": 2}, format_lines=stopping(1))
    assert (tmp_path / "out.partial").read_bytes().count(b"\n") == 1
    assert json.loads((tmp_path / "out.partial.json").read_text())["columns"] == 2
    # A format whose lines cannot be resumed has no note.
    with pytest.raises(KeyboardInterrupt):
        job(is_resumable=False, format_lines=stopping(1))
    assert sorted(files_of(tmp_path)) == ["out.partial"]


def test_more_lines_than_texts_are_an_error(job, tmp_path):
    def texts(**more):
        job.func(job.args[0], iter(TEXTS[:2]), *job.args[2:], **more)

    def too_many(number, found):
        return ["a", "b", "c"] if number == 0 else stopping(1)(number, found)

    with pytest.raises(KeyboardInterrupt):
        texts(prefixes=None, format_lines=too_many)
    with pytest.raises(ValueError, match="has 3 lines, more than there are texts"):
        texts(resume=True)
    assert (tmp_path / "out.partial").read_bytes() == b"a\nb\nc\n"


@pytest.mark.parametrize("name", ["out", "out.gz"])
def test_an_output_appears_when_it_is_complete(job, tmp_path, name):
    """One prefix is missing. The folder's permissions of an earlier output stay."""
    unpack = gzip.decompress if name == "out.gz" else bytes
    output = tmp_path / name
    output.write_text("of yesterday")
    output.chmod(0o640)
    (tmp_path / "prefixes").write_text("Der\n" * 4)
    run = partial(job.func, *job.args[:2], output, job.args[3], **job.keywords)
    with pytest.raises(ValueError, match="line 5 is missing in one of them"):
        run()
    assert output.read_text() == "of yesterday"
    assert unpack((tmp_path / f"{name}.partial").read_bytes()).count(b"Der") == 4
    run(prefixes=None)
    assert len(unpack(output.read_bytes()).splitlines()) == len(TEXTS)
    assert not (tmp_path / f"{name}.partial").exists()
    assert oct(output.stat().st_mode)[-3:] == "640"


def test_devices_and_compressed_files_are_not_resumed(job, tmp_path):
    run = partial(job.func, *job.args[:2], options=job.args[3], **job.keywords)
    run(output="/dev/null")
    for output in ("/dev/null", tmp_path / "out.gz", None):
        with pytest.raises(ValueError, match="Only an output that is a file, and not"):
            run(output=output, resume=True)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such locks")
@pytest.mark.parametrize("resume", [False, True])
def test_an_output_has_one_writer(job, tmp_path, resume):
    with open_output(tmp_path / "out", {}, False) as (file, _):
        file.write(b"Der Hund")
        file.flush()
        with pytest.raises(OSError, match="partial is being written by another process"):
            job(resume=resume)
        file.write(b" sieht.\n")
    assert files_of(tmp_path) == {"out": b"Der Hund sieht.\n"}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such locks")
def test_an_output_is_written_where_there_are_no_locks(tmp_path, monkeypatch, caplog):
    def flock(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(module.fcntl, "flock", flock)
    with open_output(tmp_path / "out", {}, False) as (file, _):
        file.write(b"Der Hund sieht.\n")
    assert (tmp_path / "out").read_bytes() == b"Der Hund sieht.\n"
    assert "out.partial cannot be locked (No locks available)" in caplog.text


@pytest.mark.parametrize("change", ["cut", "grown", "rewritten"])
def test_an_input_that_changes_while_it_is_translated_is_refused(job, tmp_path, change):
    texts = tmp_path / "texts"
    before = texts.read_text()
    cases = {"cut": before[:-9], "grown": f"{before}We see.\n"}

    def changing(number, found):
        texts.write_text(cases.get(change, before.replace("cats", "dogs")))
        return [found[0].text]

    with pytest.raises(ValueError, match=r"content of .*texts changed while it was"):
        job(format_lines=changing, prefixes=None)
    texts.write_text(before)
    # Its lines may be of both contents.
    with pytest.raises(ValueError, match=r"has no out\.partial\.json beside"):
        job(resume=True, prefixes=None)
    assert sorted(files_of(tmp_path)) == ["out.partial"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such links")
def test_links_at_the_names_of_unfinished_files_are_not_followed(job, tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "out.partial.json").symlink_to(tmp_path / "mine")
    job()
    (tmp_path / "out.partial").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="symbolic links"):
        job()
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.long
def test_a_killed_translation_loses_no_line(tmp_path):
    """Killed at random instants and resumed, a run gives the lines of one that was not killed."""
    (tmp_path / "texts").write_text("".join(f"We see {number} cats.\n" for number in range(300)))
    flags = ["scripts/translate.py", "--input", str(tmp_path / "texts"), "--num_beams", "1"]
    start = partial(subprocess.Popen, cwd=ROOT, stderr=subprocess.DEVNULL)
    whole = start([sys.executable, *flags, "--output", str(tmp_path / "whole")])
    assert whole.wait() == 0
    command = [sys.executable, *flags, "--output", str(tmp_path / "out"), "--resume", "auto"]
    for _ in range(3):
        process = start(command)
        deadline = time.monotonic() + 60
        while not (tmp_path / "out.partial").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(random.uniform(0, 1))
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert start(command).wait() == 0
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()
