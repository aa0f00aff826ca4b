"""Check that the versions of constraints.txt can be installed by every Python, on every system.

    python tests/versions/installable.py

pip may be set up to take builds of packages that no user of ours gets, such as torch without its
libraries for GPUs. uv ignores that setup: it reads from PyPI what each package needs, and installs
nothing.
"""

import itertools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
SYSTEMS = (
    "x86_64-manylinux_2_28",
    "aarch64-manylinux_2_28",
    "aarch64-apple-darwin",
    "x86_64-pc-windows-msvc",
)


def conflict(python: str, system: str) -> str:
    """What stands in the way of all extras for a version of Python on a system, or ""."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--only-binary", ":all:"]
    command += ["--no-python-downloads"]  # uv resolves without that Python
    command += ["--python-version", python, "--python-platform", system]
    command += ["--constraint", "constraints.txt", "--extra", "dev", "pyproject.toml"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        # The oldest macOS for which torch has wheels.
        env=os.environ | {"MACOSX_DEPLOYMENT_TARGET": "14.0"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr if done.returncode else ""


def main() -> None:
    """Print each conflict, and end with exit code 1 if there is one."""
    found = 0
    places = [*itertools.product(PYTHONS, SYSTEMS)]
    with ThreadPoolExecutor(4) as pool:  # uv mostly waits for answers
        conflicts = list(pool.map(conflict, *zip(*places, strict=True)))
    for (python, system), why in zip(places, conflicts, strict=True):
        if why:
            sys.stderr.write(f"Python {python}, {system}:\n{why}")
            found += 1
    if found:
        sys.exit(f"{found} of {len(places)} installations have conflicts.")
    sys.stdout.write(f"Installable by Python {', '.join(PYTHONS)}, on {', '.join(SYSTEMS)}.\n")


if __name__ == "__main__":
    main()
