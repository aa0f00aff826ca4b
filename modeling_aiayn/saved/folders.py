"""A model's folder or repository: its files, its configuration, and checks of both."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.dynamic_module_utils import get_relative_import_files
from transformers.models.auto.tokenization_auto import tokenizer_class_from_name
from transformers.tokenization_utils_base import (
    ADDED_TOKENS_FILE,
    FULL_TOKENIZER_FILE,
    SPECIAL_TOKENS_MAP_FILE,
    TOKENIZER_CONFIG_FILE,
)
from transformers.utils import (
    ADAPTER_CONFIG_NAME,
    ADAPTER_SAFE_WEIGHTS_NAME,
    CONFIG_NAME,
    GENERATION_CONFIG_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    cached_file,
)

from ..data.parsing import read_json_object
from ..tokenization import TARGET_TOKENIZER_FOLDER

# A name that transformers does not read: it would use the unscaled integers as weights.
INT8_WEIGHTS_NAME = "model.int8.safetensors"
WEIGHT_FILES = (
    *(SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, "model-?????-of-?????.safetensors"),
    *(INT8_WEIGHTS_NAME, ADAPTER_CONFIG_NAME, ADAPTER_SAFE_WEIGHTS_NAME),
)
# Files that a tokenizer of any class may have, besides its class's own vocabulary files.
TOKENIZER_FILES = (
    *(TOKENIZER_CONFIG_FILE, FULL_TOKENIZER_FILE),
    *(ADDED_TOKENS_FILE, SPECIAL_TOKENS_MAP_FILE),
)


def location_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options of from_pretrained that locate a repository's files."""
    names = ("subfolder", "revision", "token", "cache_dir", "local_files_only")
    return {name: options[name] for name in names if name in options}


def find_file(path: str | Path, name: str, options: dict[str, Any]) -> Path | None:
    """A file of a folder or a repository, downloaded if needed; None if there is no such file."""
    where = location_options(options) | {"_raise_exceptions_for_missing_entries": False}
    file = cached_file(path, name, **where)
    return None if file is None else Path(file)


def model_files(folder: str | Path) -> list[Path]:
    """The weights, configurations, tokenizers' files and code of a model's folder, sorted.

    The code is the folder's own modeling_aiayn.py and pipelines, and the files that they import.
    """
    folder = Path(folder)
    patterns = (*WEIGHT_FILES, CONFIG_NAME, GENERATION_CONFIG_NAME)
    found = {path for pattern in patterns for path in folder.glob(pattern)} | _code_files(folder)
    for place in (folder, folder / TARGET_TOKENIZER_FOLDER):
        name = _settings(place / TOKENIZER_CONFIG_FILE).get("tokenizer_class")
        tokenizer_class = tokenizer_class_from_name(name or "") or PreTrainedTokenizerFast
        names = (*TOKENIZER_FILES, *tokenizer_class.vocab_files_names.values())
        found |= {place / name for name in names}
    return sorted(path for path in found if path.is_file())


def _settings(file: Path) -> dict[str, Any]:
    return read_json_object(file) if file.is_file() else {}


def _code_files(folder: Path) -> set[Path]:
    settings = _settings(folder / CONFIG_NAME)
    pipelines = settings.get("custom_pipelines", {}).values()
    modules = ["modeling_aiayn", *(task["impl"].partition(".")[0] for task in pipelines)]
    files = [path for path in (folder / f"{module}.py" for module in modules) if path.is_file()]
    imported = {Path(name) for path in files for name in get_relative_import_files(path)}
    return imported.union(files)


def check_directory(folder: str | Path, hint: str = "") -> None:
    """Check that a folder exists; otherwise transformers would look for a repository."""
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"No such directory: {folder}. {hint}".rstrip())


def check_model_folder(folder: str | Path, *others: str, hint: str = "") -> None:
    """Check that a folder exists and holds a configuration, or one of the other files."""
    check_directory(folder, hint)
    if not any(Path(folder, name).is_file() for name in (CONFIG_NAME, *others)):
        raise FileNotFoundError(f"{folder} holds no model: there is no {CONFIG_NAME} in it.")


def check_one_model(folder: Path, *own: str) -> None:
    """Check that a folder with all files in own, such as an adapter's, has no whole model too."""
    for name in (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME):
        if (folder / name).is_file() and all((folder / other).is_file() for other in own):
            raise OSError(f"{folder} holds two models, in {name} and {own[0]}. Move one of them.")


def find_base(path: str | Path, options: dict[str, Any]) -> str | Path | None:
    """The model that an adapter belongs to, or None if path holds a whole model."""
    config = find_file(path, ADAPTER_CONFIG_NAME, options)
    if config is None:
        return None
    check_one_model(config.parent, ADAPTER_CONFIG_NAME, CONFIG_NAME)
    if (config.parent / CONFIG_NAME).is_file():
        return None
    return read_json_object(config)["base_model_name_or_path"]


def find_int8_weights(path: str | Path, **options: Any) -> Path | None:
    """The file of 8-bit weights in a folder or a repository; None if there is no such file."""
    weights = find_file(path, INT8_WEIGHTS_NAME, options)
    if weights is not None:
        check_one_model(weights.parent, INT8_WEIGHTS_NAME)
    return weights


def check_index(path: str | Path, options: dict[str, Any]) -> None:
    """Check that an index of weights, if there is one, names only safetensors files beside it.

    transformers would also read a pickle, which may run code, or a file elsewhere.
    """
    index = find_file(path, SAFE_WEIGHTS_INDEX_NAME, options)
    for name in set(read_json_object(index)["weight_map"].values()) if index else ():
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise OSError(f"{index} must name .safetensors files in its folder, got {name!r}.")


def check_weights(path: str | Path, model: PreTrainedModel, loading_info: dict[str, Any]) -> None:
    """Check that all weights were loaded, by from_pretrained's loading_info, and are finite."""
    weights = model.state_dict().items()
    known = [(name, weight) for name, weight in weights if not weight.is_meta]
    not_finite = [name for name, weight in known if not weight.isfinite().all()]
    shapes = [name for name, *_ in loading_info.get("mismatched_keys", ())]
    faults = {
        "has another shape than the configuration says": shapes,
        "is missing": loading_info["missing_keys"],
        "does not fit the model": loading_info["unexpected_keys"],
        "is not finite (NaN or infinity)": not_finite,
    }
    for fault, names in faults.items():
        if names:
            raise ValueError(
                f"{path}: the weight {min(names)} {fault}. Check that the folder holds a model for "
                "this task, and that config.json and the weights were saved together."
            )


@contextmanager
def named_weight_errors(path: str | Path) -> Iterator[None]:
    """Add the model's path to errors of safetensors, which do not name a file."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(
            f"{path}: the weights are damaged ({error}). Download them again, or run git lfs pull."
        ) from error


def load_config(path: str | Path, hub: bool = False, **options: Any) -> Any:
    """Load the configuration of a model's folder or, with hub, of a repository."""
    if not hub:
        check_model_folder(path)
    fixed = {"trust_remote_code": False, "local_files_only": not hub}
    return AutoConfig.from_pretrained(path, **fixed | options)
