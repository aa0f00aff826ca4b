"""The settings of an unfinished translation: a run that resumes it must have the same ones."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..data.parsing import read_json_object
from ..saved.whole_files import write_file
from .output_files import claimed


def settings_file(unfinished: Path) -> Path:
    """The file beside an unfinished file that holds the settings of its run."""
    return Path(f"{unfinished}.settings")


def content_settings(files: Iterable[Path]) -> dict[str, str]:
    """A setting for each file: the lines depend on its content, and its name may stay the same."""
    settings = {}
    for path in filter(Path.is_file, files):  # not a pipe
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        settings[f"the content of {path}"] = digest[:16]
    return settings


def check_same_settings(unfinished: Path, settings: Mapping[str, Any]) -> None:
    """Check that an unfinished file, if its settings were recorded, had the same settings.

    Raises:
        ValueError: A setting differs, or the record is damaged.
    """
    if not settings_file(unfinished).is_file():
        return
    earlier = read_json_object(settings_file(unfinished))
    for name, value in settings.items():
        before, now = json.dumps(earlier.get(name)), json.dumps(value)
        if before != now:
            raise ValueError(
                f"{unfinished} was written with {name}={before}, got {now}. Repeat the command as "
                "before, or delete that file to translate everything again."
            )


def check_other_settings(unfinished: Path, settings: Mapping[str, Any]) -> None:
    """Check that an unfinished file is not of a run with the same settings, which can be resumed.

    Raises:
        OSError: Its run is still running.
        ValueError: Its settings were recorded, and are the same.
    """
    with claimed(unfinished):
        try:
            check_same_settings(unfinished, settings)
        except ValueError:
            return
    if settings_file(unfinished).is_file():
        raise ValueError(
            f"{unfinished} holds the lines of a stopped run of this command. Add --resume true to "
            "keep them, or delete that file to translate everything again."
        )


@contextmanager
def recorded_settings(unfinished: Path, settings: Mapping[str, Any]) -> Iterator[None]:
    """Record settings beside an unfinished file until the block has ended without an error."""
    write_file(settings_file(unfinished), json.dumps(settings))
    yield
    settings_file(unfinished).unlink(missing_ok=True)
