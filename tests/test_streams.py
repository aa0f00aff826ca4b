"""Standard streams that a caller has closed or that cannot be written."""

import subprocess
import sys

import pytest
from conftest import ROOT

pytestmark = pytest.mark.long  # each test starts processes that import torch

# A job that writes results to stdout, and then a file.
JOB = """
import sys

import aiayn
from modeling_aiayn.commands import classify

def main():
    for number in range(3):
        sys.stdout.write(f"{number} é\\n")
        sys.stdout.flush()
    open(sys.argv[1], "w").write("done")

classify.main = main
aiayn.run_job("classify")
"""


def run_job(tmp_path, redirection):
    """Run the job with a redirection of a shell."""
    done = tmp_path / "done"
    command = f'exec "$@" {redirection}'
    job = subprocess.run(
        ["bash", "-c", command, "bash", sys.executable, "-c", JOB, str(done)],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    return job, done


@pytest.mark.parametrize(
    ("redirection", "error"),
    [("1> /dev/full", "[Errno 28] No space left on device"), ("1>&-", "[Errno 9] Bad file")],
)
def test_results_that_cannot_be_written_are_an_error(tmp_path, redirection, error):
    job, done = run_job(tmp_path, redirection)
    assert job.returncode != 0 and not done.exists()
    assert job.stderr.startswith(f"error: {error}")


def test_results_are_utf_8_and_no_file_gets_the_descriptor_of_a_closed_stream(
    tmp_path, monkeypatch
):
    """Else libraries that write to descriptor 2 would write into that file."""
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    job, done = run_job(tmp_path, "2>&-")
    assert (job.returncode, job.stdout.count("é"), done.read_text()) == (0, 3, "done")
