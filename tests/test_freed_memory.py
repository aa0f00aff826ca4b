"""Commands keep freed memory for the next batch."""

import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest

from modeling_aiayn.commands import streams

# Prints how many pages the system must give to a process that fills 240 MiB for the second time.
# With the largest pages, of 2 MiB, these are 120.
PAGES_OF_SECOND_TIME = """
import resource, runpy, sys
runpy.run_path(sys.argv[1])["keep_freed_memory"]()
def fill():
    [b"x" * (24 * 2**20) for _ in range(10)]
fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
fill()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages_of_second_time(**variables):
    """Run the program above with variables of the environment."""
    environment = {name: os.environ[name] for name in os.environ if "MALLOC" not in name}
    command = [sys.executable, "-c", PAGES_OF_SECOND_TIME, str(streams.__file__)]
    result = subprocess.run(
        command, env=environment | variables, capture_output=True, text=True, check=True
    )
    return int(result.stdout)


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc has options for freed memory"
)
def test_freed_memory_is_kept_unless_variables_say_otherwise():
    assert pages_of_second_time() < 64
    assert pages_of_second_time(MALLOC_MMAP_THRESHOLD_="131072") > 100


def test_older_glibc_gets_the_largest_threshold_that_it_takes(monkeypatch):
    options = {}

    def mallopt(option, value):
        if option == streams.MMAP_THRESHOLD and value > 32 * 2**20:
            return 0
        options[option] = value
        return 1

    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(streams.ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=mallopt))
    streams.keep_freed_memory()
    assert options == {
        streams.TRIM_THRESHOLD: 2**30,
        streams.MMAP_THRESHOLD: 32 * 2**20,
    }
