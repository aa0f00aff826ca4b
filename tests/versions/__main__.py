"""Check saved folders under other releases of transformers, and print a table.

    python tests/versions                     all releases
    python tests/versions 5.4 5.12            some

Creates one environment for each release in .versions, which shares torch with this one. Ends with
exit code 1 if any check fails. The full output of each release is in .versions/VERSION.log.
"""

import json
import sys
import tempfile
from pathlib import Path

import transformers
from contract import CHECKS
from environments import environment, run
from models import write_models

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
ENVIRONMENTS = ROOT / ".versions"
SUPPORTED = [f"5.{minor}" for minor in (4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 23, 24)]
TOO_OLD = ["4.57", "5.0", "5.3"]
NEEDED = "transformers>=5.4"


def check_version(version: str, folders: list[Path]) -> tuple[str, dict[str, dict[str, str]]]:
    """Return the exact version and each folder's results."""
    python = environment(ENVIRONMENTS / version, f"transformers=={version}.*")
    with tempfile.TemporaryDirectory() as work:
        done = run(python, HERE / "contract.py", work, *folders, home=Path(work) / "home")
    (ENVIRONMENTS / f"{version}.log").write_text(done.stdout + done.stderr, "utf-8")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return version, {folder.name: {"load": last} for folder in folders}
    report = json.loads(done.stdout.splitlines()[-1])
    return report["version"], report["results"]


def passes(version: str, result: dict[str, str]) -> bool:
    """Whether every check holds; a version that is too old has to say which it needs."""
    if version in TOO_OLD:
        return NEEDED in result["load"]
    return all(result.get(name) in ("ok", "-") for name in CHECKS)


def rows(version: str, folders: list[Path]) -> list[tuple[bool, str]]:
    """Check one release, and return whether each row of the table is right, and the row."""
    exact, results = check_version(version, folders)
    table = []
    for name, result in results.items():
        cells = [result.get(check, "-") for check in CHECKS]
        table.append((passes(version, result), f"| {exact} | {name} | {' | '.join(cells)} |"))
    return table


def main() -> None:
    """Check the releases that the arguments name, or all."""
    transformers.logging.disable_progress_bar()
    versions = sys.argv[1:] or [*TOO_OLD, *SUPPORTED]
    ENVIRONMENTS.mkdir(exist_ok=True)
    failed = 0
    print(f"| transformers | folder | {' | '.join(CHECKS)} |")
    print("|---|---|" + "---|" * len(CHECKS))
    with tempfile.TemporaryDirectory() as folder:
        folders = write_models(Path(folder))
        for version in versions:
            # One folder is enough to see the message of a release that is too old.
            for is_right, row in rows(version, folders[:1] if version in TOO_OLD else folders):
                failed += not is_right
                print(row, flush=True)
    sys.exit(f"{failed} folders failed. Their logs are in {ENVIRONMENTS}." if failed else 0)


if __name__ == "__main__":
    main()
