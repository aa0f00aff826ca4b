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

# Not a name that transformers reads: it would take the numbers for the weights themselves.
INT8_WEIGHTS_NAME = "model.int8.safetensors"
WEIGHT_FILES = (
    *(SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, "model-?????-of-?????.safetensors"),
    *(INT8_WEIGHTS_NAME, ADAPTER_CONFIG_NAME, ADAPTER_SAFE_WEIGHTS_NAME),
)
# Files that every class of tokenizers may have, beside those that the class names.
TOKENIZER_FILES = (
    *(TOKENIZER_CONFIG_FILE, FULL_TOKENIZER_FILE),
    *(ADDED_TOKENS_FILE, SPECIAL_TOKENS_MAP_FILE),
)
# Options of from_pretrained that locate a repository's files.
LOCATION_OPTIONS = ("subfolder", "revision", "token", "cache_dir", "local_files_only")


def location_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options of from_pretrained that locate a repository's files."""
    return {name: options[name] for name in LOCATION_OPTIONS if name in options}


def find_file(path: str | Path, name: str, options: dict[str, Any]) -> Path | None:
    """A file of a folder or a repository, downloaded if needed; None if there is no such file."""
    where = location_options(options)
    file = cached_file(path, name, _raise_exceptions_for_missing_entries=False, **where)
    return None if file is None else Path(file)


def model_files(folder: str | Path) -> list[Path]:
    """List the files of a model's folder from which the model is loaded, sorted.

    These are the weights, configurations, files of the tokenizers, and the code: what the folder's
    own modeling_aiayn.py and pipeline import, so folders of other releases keep all of theirs.
    """
    folder = Path(folder)
    found = {
        path
        for pattern in (*WEIGHT_FILES, CONFIG_NAME, GENERATION_CONFIG_NAME)
        for path in folder.glob(pattern)
    }
    for place in (folder, folder / TARGET_TOKENIZER_FOLDER):
        found |= {place / name for name in _tokenizer_files(place / TOKENIZER_CONFIG_FILE)}
    found |= _code_files(folder)
    return sorted(path for path in found if path.is_file())


def _tokenizer_files(settings: Path) -> set[str]:
    name = read_json_object(settings).get("tokenizer_class") if settings.is_file() else None
    tokenizer_class = tokenizer_class_from_name(name or "") or PreTrainedTokenizerFast
    return {*TOKENIZER_FILES, *tokenizer_class.vocab_files_names.values()}


def _code_files(folder: Path) -> set[Path]:
    config = folder / CONFIG_NAME
    settings = read_json_object(config) if config.is_file() else {}
    pipelines = settings.get("custom_pipelines", {}).values()
    modules = ["modeling_aiayn", *(task["impl"].partition(".")[0] for task in pipelines)]
    files = [path for path in (folder / f"{module}.py" for module in modules) if path.is_file()]
    imported = {Path(name) for path in files for name in get_relative_import_files(path)}
    return imported.union(files)


def check_directory(folder: str | Path, hint: str = "") -> None:
    """Check that a folder exists; transformers would take another name for a repository."""
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"No such directory: {folder}. {hint}".rstrip())


def check_model_folder(folder: str | Path, *others: str, hint: str = "") -> None:
    """Check that a folder exists and holds a configuration, or one of the other files."""
    check_directory(folder, hint)
    if not any(Path(folder, name).is_file() for name in (CONFIG_NAME, *others)):
        raise FileNotFoundError(f"{folder} holds no model: there is no {CONFIG_NAME} in it.")


def check_one_model(folder: Path, *own: str) -> None:
    """Check that a folder that holds its own files has no whole model, which would hide them."""
    for name in (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME):
        if (folder / name).is_file() and all((folder / other).is_file() for other in own):
            raise OSError(f"{folder} holds two models, in {name} and {own[0]}. Move one of them.")


def check_index(path: str | Path, options: dict[str, Any]) -> None:
    """Check that an index of weights, if there is one, names only safetensors files beside it.

    transformers would also read a pickle, which may run code, or a file elsewhere.
    """
    index = find_file(path, SAFE_WEIGHTS_INDEX_NAME, options)
    for name in set(read_json_object(index)["weight_map"].values()) if index else ():
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise OSError(f"{index} must name .safetensors files in its folder, got {name!r}.")


def check_weights(path: str | Path, model: PreTrainedModel, loading_info: dict[str, Any]) -> None:
    """Check that all weights of a model were loaded, and that each is finite.

    loading_info is the second result of from_pretrained(output_loading_info=True).

    Raises:
        ValueError: A weight is missing, unexpected, of the wrong shape, or not finite.
    """
    weights = model.state_dict().items()
    faults = {
        "has another shape than the configuration says": [
            name for name, *_ in loading_info.get("mismatched_keys", ())
        ],
        "is missing": loading_info["missing_keys"],
        "does not fit the model": loading_info["unexpected_keys"],
        "is not finite (NaN or infinity)": [
            name for name, weight in weights if not weight.is_meta and not weight.isfinite().all()
        ],
    }
    for fault, names in faults.items():
        if names:
            raise ValueError(
                f"{path}: the weight {min(names)} {fault}. Check that the folder holds a model for "
                "this task, and that config.json and the weights were saved together."
            )


@contextmanager
def named_weight_errors(path: str | Path) -> Iterator[None]:
    """Name the model whose weights safetensors cannot read: its own error names no file."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(
            f"{path}: the weights are damaged ({error}). Download them again; if they are pointers "
            "of Git LFS, by git lfs pull."
        ) from error


def load_config(path: str | Path, hub: bool = False, **options: Any) -> Any:
    """Load the configuration of a model's folder, or with hub of a repository.

    Args:
        path: A folder, or with hub the name of a repository.
        hub: Whether path is a repository on the Hub.
        **options: Passed to AutoConfig.from_pretrained: revision, token, ...

    Raises:
        OSError: There is no such model.
        ValueError: The configuration is invalid.
    """
    if not hub:
        check_model_folder(path)
    fixed = {"trust_remote_code": False, "local_files_only": not hub}
    return AutoConfig.from_pretrained(path, **fixed | options)
