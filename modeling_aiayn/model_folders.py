"""Folders of models: what must be there before a library is asked to read one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel
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


def refuse_unfit_weights(
    path: str | Path, model: PreTrainedModel, loading_info: dict[str, Any]
) -> None:
    """Refuse a model of which a part was not read or is no number: what it says would be noise.

    Args:
        path: Where the model came from.
        model: The model.
        loading_info: What from_pretrained says of its loading.

    Raises:
        ValueError: A weight is missing, is not the model's, or is not finite.
    """
    for kind, trouble in (("missing_keys", "is missing"), ("unexpected_keys", "has no place")):
        if loading_info[kind]:
            first, *others = sorted(loading_info[kind])
            more = f" and {len(others)} others" if others else ""
            raise ValueError(
                f"{path}: the weight {first}{more} {trouble}. A model must have all of its "
                "weights and no others: save it again from where it was trained."
            )
    for name, weight in model.state_dict().items():
        if not weight.is_meta and not weight.isfinite().all():
            raise ValueError(
                f"{path}: the weight {name} is not finite (NaN or infinity). Take an earlier "
                "checkpoint of this training."
            )
