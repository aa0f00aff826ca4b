"""Folders of models: what must be there before a library is asked to read one."""

from collections.abc import Sequence
from pathlib import Path

from transformers.utils import CONFIG_NAME


def require_directory(folder: str | Path, hint: str = "") -> None:
    """Refuse a name that is no folder's: the libraries would take it for a repository's.

    Args:
        folder: The name.
        hint: What else a user may have meant by it, a sentence.

    Raises:
        FileNotFoundError: There is no such folder.
    """
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"No such directory: {folder}. {hint}".rstrip())


def require_model_folder(
    folder: str | Path, configurations: Sequence[str] = (CONFIG_NAME,), hint: str = ""
) -> None:
    """Refuse what is no folder with a model in it.

    Args:
        folder: Its name.
        configurations: Files of which a model's folder has one at least.
        hint: As for `require_directory`.

    Raises:
        FileNotFoundError: There is no such folder, or no model in it.
    """
    require_directory(folder, hint)
    if not any(Path(folder, name).is_file() for name in configurations):
        raise FileNotFoundError(f"{folder} holds no model: there is no {CONFIG_NAME} in it.")
