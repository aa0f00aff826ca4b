"""One file, translated by several processes that a launcher has started."""

import gzip
import io
from itertools import chain

import pytest
import torch
from conftest import ROOT
from modeling_aiayn.commands.saved_model import default_device
from modeling_aiayn.commands.shares import Share, merge
from test_parallel import ACCELERATE, TORCHRUN, launch

from modeling_aiayn.commands import shares

TEXTS = [f"We see {number} cats." for number in range(11)]


@pytest.fixture
def small_pools(monkeypatch):
    monkeypatch.setattr(shares, "POOL_SIZE", 3)


def launched(monkeypatch, rank, processes):
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")


@pytest.mark.usefixtures("small_pools")
@pytest.mark.parametrize("count", [0, 1, 3, 5, 6, 7, 9, 12, 14])
@pytest.mark.parametrize("processes", [1, 2, 3, 5])
def test_pools_go_round_and_are_merged_in_order(tmp_path, count, processes):
    all_shares = [Share(rank, processes) for rank in range(processes)]
    items = [list(share.of(range(count))) for share in all_shares]
    assert sorted(chain.from_iterable(items)) == list(range(count))
    if processes == 3:
        assert items[1] == [each for each in range(count) if each // 3 % 3 == 1]
    parts = all_shares[0].parts(str(tmp_path / "out.partial"))
    assert len(set(parts)) == processes and parts == all_shares[-1].parts(str(parts[0])[:-7])
    for part, own in zip(parts, items, strict=True):
        part.write_text("".join(f"{each}\n" for each in own))
    merged = io.BytesIO()
    merge(parts, merged)
    assert merged.getvalue().decode().split() == [str(each) for each in range(count)]


def test_a_process_alone_reads_no_text_ahead():
    texts = iter(range(9))
    own = Share().of(texts)
    assert (next(own), next(texts)) == (0, 1)


def test_a_share_is_read_from_the_variables_of_launchers(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert Share.of_this_process() == Share(0, 1)
    launched(monkeypatch, 2, 3)
    assert Share.of_this_process() == Share(2, 3)
    for rank, processes in (("3", "3"), ("-1", "2"), ("x", "2"), ("1", "")):
        launched(monkeypatch, rank, processes)
        with pytest.raises(ValueError, match="RANK must be a number below WORLD_SIZE, got "):
            Share.of_this_process()
    launched(monkeypatch, 1, 2)
    monkeypatch.delenv("MASTER_PORT")
    with pytest.raises(ValueError, match="WORLD_SIZE=2 needs MASTER_PORT, which launchers set"):
        Share.of_this_process()
    monkeypatch.delenv("MASTER_ADDR")
    with pytest.raises(ValueError, match="WORLD_SIZE=2 needs MASTER_ADDR and MASTER_PORT"):
        Share.of_this_process()


def test_each_process_of_a_machine_gets_its_own_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert default_device(None) == "cuda"
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert (default_device(None), default_device("meta")) == ("cuda:1", "meta")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "2 processes were launched. They need an --output that is a file"),
        (("--output", "/dev/null"), "2 processes were launched. They need an --output"),
        (("--output", "a", "--nbest", "2"), "Several launched processes need --nbest 1"),
    ],
    ids=str,
)
def test_launched_processes_need_one_file_with_a_line_for_each_text(
    run, model_folder, tmp_path, monkeypatch, flags, message
):
    monkeypatch.chdir(tmp_path)
    launched(monkeypatch, 0, 2)
    code, out, err = run("translate.py", "--model", model_folder, "--text", "We see.", *flags)
    assert (code, out) == (1, "") and message in err


def test_launched_processes_do_not_share_stdin(run, model_folder, tmp_path, monkeypatch):
    launched(monkeypatch, 0, 2)
    code, _, err = run("translate.py", "--model", model_folder, "--output", tmp_path / "out")
    assert code == 1 and "need --input or --text" in err


@pytest.mark.parametrize(
    ("processes", "left"),
    [(1, "out.partial.1-of-2"), (2, "out.partial"), (3, "out.partial.2-of-2")],
)
def test_a_run_resumes_with_as_many_processes(
    run, model_folder, tmp_path, monkeypatch, processes, left
):
    launched(monkeypatch, 0, processes)
    (tmp_path / left).write_text("Wir\n")
    flags = ("--model", model_folder, "--text", "We see.", "--output", tmp_path / "out")
    code, _, err = run("translate.py", *flags, "--resume", "true")
    assert code == 1
    assert f"needs as many processes as before, got {processes} and the file {left}" in err
    assert (tmp_path / left).read_text() == "Wir\n"


def test_a_run_resumes_beside_a_copy_of_its_file(run, model_folder, tmp_path):
    (tmp_path / "out[1].partial").write_text("Wir\n")
    (tmp_path / "out[1].partial.bak").write_text("Wir\n")
    flags = ("--model", model_folder, "--text", "We see.", "We see.", "--output")
    code, _, err = run("translate.py", *flags, tmp_path / "out[1]", "--resume", "true")
    assert code == 0, err
    assert (tmp_path / "out[1]").read_text().startswith("Wir\n")


@pytest.mark.usefixtures("small_pools")
def test_a_process_resumes_its_own_share(run, model_folder, tmp_path, monkeypatch):
    """The second of two: it has pool 1, of texts 3 to 5, and pool 3, of texts 9 and 10."""
    monkeypatch.setattr(Share, "wait", lambda self: None)
    (tmp_path / "texts").write_text("\n".join([*TEXTS, ""]))
    flags = ("--model", model_folder, "--input", tmp_path / "texts", "--output", tmp_path / "out")
    assert run("translate.py", *flags)[0] == 0
    expected = (tmp_path / "out").read_text().splitlines()
    launched(monkeypatch, 1, 2)
    part = tmp_path / "out.partial.2-of-2"
    part.write_text("kept 3\nkept 4\nunfin")
    code, _, err = run("translate.py", *flags, "--resume", "true")
    assert code == 0, err
    assert part.read_text().splitlines() == ["kept 3", "kept 4", expected[5], *expected[9:]]
    # The first process writes its own, and then the output.
    launched(monkeypatch, 0, 2)
    assert run("translate.py", *flags, "--resume", "true")[0] == 0
    merged = (tmp_path / "out").read_text().splitlines()
    assert merged == [*expected[:3], "kept 3", "kept 4", *expected[5:]]
    assert not list(tmp_path.glob("out.*"))


@pytest.mark.long
@pytest.mark.parametrize("launcher", [TORCHRUN, ACCELERATE], ids=["torchrun", "accelerate"])
def test_two_processes_write_the_file_of_one(run, tmp_path, launcher):
    texts = [f"We see {number} cats." for number in range(2 * shares.POOL_SIZE + 3)]
    (tmp_path / "texts").write_text("\n".join([*texts, ""]))
    flags = ["--input", tmp_path / "texts", "--num_beams", "1"]
    flags += ["--max_length_factor", "0", "--max_length_offset", "4"]
    assert run("translate.py", *flags, "--output", tmp_path / "one.gz")[0] == 0
    program = ROOT / "scripts" / "translate.py"
    done = launch(program, *flags, "--output", tmp_path / "two.gz", launcher=launcher)
    assert done.returncode == 0, done.stderr
    one, two = (gzip.decompress((tmp_path / f"{name}.gz").read_bytes()) for name in ("one", "two"))
    assert one == two and one.count(b"\n") == len(texts)
    assert {path.name for path in tmp_path.iterdir()} == {"texts", "one.gz", "two.gz"}
