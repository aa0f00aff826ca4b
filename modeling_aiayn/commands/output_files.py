"""The files that a command writes: checked before any work, and never one that it reads."""

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from ..loading import find_model
from ..publishing import MODEL_FILES


def check_outputs(outputs: Mapping[str, str | None], inputs: Mapping[str, Iterable[Path]]) -> None:
    """Check that each output can be written, is no input, and is not another output.

    Args:
        outputs: File to write by flag; None if the flag was not given.
        inputs: Files to read by flag.

    Raises:
        OSError: The folder of an output does not exist, or cannot be written.
        ValueError: An output is one of the inputs, also under another name, or two are the same.
    """
    read = {
        _identity(path.stat()): (flag, path)
        for flag, paths in inputs.items()
        for path in paths
        if path.is_file()
    }
    taken: dict[Path, str] = {}
    for flag, output in outputs.items():
        if output is None:
            continue
        path = Path(output).resolve()
        if path.is_dir():
            raise IsADirectoryError(f"--{flag} must be a file, got the folder {output}.")
        if not path.parent.is_dir():
            raise FileNotFoundError(
                f"--{flag} {output}: there is no folder {Path(output).parent}. Create it first."
            )
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise PermissionError(f"--{flag} {output} cannot be written. Pass another file.")
        if path.exists() and (found := read.get(_identity(path.stat()))) is not None:
            raise ValueError(
                f"--{flag} would overwrite --{found[0]}, {found[1]}. Pass another file."
            )
        if path in taken:
            raise ValueError(f"--{flag} and --{taken[path]} are the same file, {output}.")
        taken[path] = flag


def files_of_models(models: Iterable[str]) -> list[Path]:
    """The files that are read when models are loaded from their folders."""
    folders = [Path(find_model(model)) for model in models]
    names = (*MODEL_FILES, "*.safetensors", "*.json")
    return [path for folder in folders for name in names for path in folder.glob(name)]


def file_behind(stream: IO[Any]) -> str | None:
    """The path of the file behind stdin or stdout; None for a terminal or a pipe."""
    try:
        path = f"/dev/fd/{stream.fileno()}"
        is_file = stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):  # replaced by an object without a descriptor
        return None
    return path if is_file and os.path.exists(path) else None


def _identity(status: os.stat_result) -> tuple[int, int]:
    """What all names of a file share, hard links among them."""
    return status.st_dev, status.st_ino
