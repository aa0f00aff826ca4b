"""Run tests with the lowest versions that pyproject.toml allows, and this environment's torch.

    python tests/versions/oldest.py [arguments of pytest]

Creates an environment in .versions/oldest.
"""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from environments import environment

ROOT = Path(__file__).parent.parent.parent
# torch takes gigabytes; docs/versions.md says with which releases the tests have run.
SHARED = ("torch", "matplotlib")
TESTS = ("modeling", "generation", "hub", "loading", "tokenization", "corpus", "translation")
TRAINING_TESTS = ("training", "batches", "resuming")


def lowest_versions() -> list[str]:
    """The dependencies of pyproject.toml, each pinned to its lower bound."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    bounds = (re.match(r"([\w-]+)>=([\d.]+)", line) for line in project["dependencies"])
    return [f"{bound[1]}=={bound[2]}" for bound in bounds if bound and bound[1] not in SHARED]


def main() -> None:
    """Create the environment, and run pytest in it."""
    python = environment(ROOT / ".versions" / "oldest", *lowest_versions())
    files = [f"tests/test_{name}.py" for name in (*TESTS, *TRAINING_TESTS)]
    # Warnings of old releases are not errors.
    command = [python, "-m", "pytest", "-W", "default", "-p", "no:cacheprovider", "-q"]
    done = subprocess.run(
        [*command, *(sys.argv[1:] or files)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
