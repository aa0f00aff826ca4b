"""Standard streams that break: logs are dropped, results that cannot be written are errors."""

import os
import subprocess
import sys
from itertools import chain

import pytest
from conftest import ROOT

from modeling_aiayn.data.embedded_corpus import generate_pairs

STREAMS = ROOT / "modeling_aiayn" / "commands" / "streams.py"
# A job with a log on stderr, and lines on stdout that are its results or another log. It imports
# the module by its path: importing the package would take seconds.
JOB = f"""
import sys
from importlib.util import module_from_spec, spec_from_file_location

import aiayn

aiayn._open_closed_streams()
spec = spec_from_file_location("streams", {str(STREAMS)!r})
streams = module_from_spec(spec)
spec.loader.exec_module(streams)
streams.protect_streams(is_stdout_log=sys.argv[1] == "log")
for number in range(3):
    sys.stdout.write(f"{{number}} é\\n")
    sys.stdout.flush()
    sys.stderr.write("working\\n")
open(sys.argv[2], "w").write("done")
"""
# PIPE stands for the descriptor of a pipe that nobody reads.
BROKEN = {"gone": ">&PIPE", "full": "> /dev/full", "closed": ">&-"}


def run_job(tmp_path, kind, redirections):
    """Run the job with redirections of a shell."""
    done = tmp_path / "done"
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = f'exec "$@" {redirections.replace("PIPE", str(writer))}'
        job = subprocess.run(
            ["bash", "-c", command, "bash", sys.executable, "-c", JOB, kind, str(done)],
            cwd=ROOT,
            pass_fds=(writer,),
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
    finally:
        os.close(writer)
    return job, done.exists()


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("number", [1, 2])
def test_a_broken_log_is_dropped_with_one_warning(tmp_path, number, kind):
    job, is_done = run_job(tmp_path, "log", f"{number}{BROKEN[kind]}")
    assert (job.returncode, is_done) == (0, True)
    name, shown = (("stdout", job.stderr), ("stderr", job.stdout))[number - 1]
    assert shown.count(f"WARNING {name} cannot be written (") == 1
    assert shown.count("working" if number == 1 else "é") == 3


@pytest.mark.parametrize("kind", BROKEN)
def test_both_logs_may_break(tmp_path, kind):
    job, is_done = run_job(tmp_path, "log", f"1{BROKEN[kind]} 2{BROKEN[kind]} <&-")
    assert (job.returncode, is_done, job.stdout, job.stderr) == (0, True, "", "")


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("gone", "BrokenPipeError: [Errno 32] Broken pipe: 'stdout'"),
        ("full", "OSError: [Errno 28] No space left on device: 'stdout'"),
        ("closed", "OSError: [Errno 9] Bad file descriptor: 'stdout'"),
    ],
)
def test_results_that_cannot_be_written_are_an_error(tmp_path, kind, error):
    job, is_done = run_job(tmp_path, "results", f"1{BROKEN[kind]}")
    assert (job.returncode, is_done) == (1, False)
    assert job.stderr.splitlines()[-1] == error


def test_results_are_utf_8_whatever_the_locale(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    job, is_done = run_job(tmp_path, "results", "")
    assert (is_done, job.stdout.count("é")) == (True, 3)


def test_a_closed_stream_gives_its_descriptor_to_no_file(tmp_path):
    """Without this, libraries that write to descriptor 1 would write into that file."""
    job, _ = run_job(tmp_path, "log", "1>&- 2>&-")
    assert job.returncode == 0
    assert (tmp_path / "done").read_text() == "done"


@pytest.mark.long
def test_training_continues_when_the_reader_of_its_log_has_gone(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    for name in ("train", "validation", "test"):
        pairs = [f"{pair.source}\t{pair.target}\n" for pair in generate_pairs(name, 20)]
        (tmp_path / f"{name}.tsv").write_text("".join(pairs))
    files = [(f"--{path.stem}_file", path) for path in tmp_path.glob("*.tsv")]
    sizes = ("--vocab_size", 500, "--preset", "tiny", *chain(*files))
    steps = ("--max_steps", 2, "--logging_steps", 1, "--save_strategy", "no", "--use_cpu", "true")
    words = ("--predict_with_generate", "false", "--output_dir", tmp_path / "run")
    job = subprocess.run(
        [sys.executable, "scripts/train_translation.py", *map(str, (*sizes, *steps, *words))],
        cwd=ROOT,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert job.returncode == 0
    assert job.stderr.count("stdout cannot be written (Broken pipe). The job continues.") == 1
    assert (tmp_path / "run" / "finished.json").exists()
