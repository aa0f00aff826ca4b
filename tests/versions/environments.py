"""Environments with another release of transformers, which share the other packages with this one."""

import os
import subprocess
import sysconfig
import venv
from pathlib import Path


def environment(folder: Path, *requirements: str) -> Path:
    """Create an environment, unless it exists, and return the path of its Python.

    Packages that the requirements do not replace, torch among them, are those of the Python that
    runs this. Editable installs, such as this package's own, are not visible.

    Raises:
        OSError: pip failed.
    """
    python = folder / "bin" / "python"
    done = folder / "installed.txt"
    if done.is_file() and done.read_text("utf-8").split() == list(requirements):
        return python
    venv.create(folder, clear=True, with_pip=True)
    paths = {"base": str(folder), "platbase": str(folder)}
    own = Path(sysconfig.get_path("purelib", vars=paths))
    (own / "shared.pth").write_text(sysconfig.get_path("purelib"), "utf-8")
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command = [*command, *requirements] if requirements else [python, "--version"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise OSError(f"pip could not install {' '.join(requirements)}:\n{result.stderr}")
    done.write_text("\n".join(requirements), "utf-8")
    return python


def run(python: Path, *arguments: object, home: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in an environment, offline and with a cache of its own."""
    hidden = ("PYTHONPATH", "PYTHONWARNINGS")
    inherited = {name: value for name, value in os.environ.items() if name not in hidden}
    return subprocess.run(
        [str(python), *map(str, arguments)],
        env=inherited | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
