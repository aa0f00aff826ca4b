"""A model's folder or repository: its files, its configuration, and checks of both."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
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
from ..tokenization import TARGET_TOKENIZER_FOLDER, is_tokenizer_failure
from .memory import is_out_of_memory

# check_weights names a weight of the wrong shape; transformers does not.
ENFORCED = {
    "use_safetensors": True,
    "output_loading_info": True,
    "ignore_mismatched_sizes": True,
}
# Libraries raise these errors for files with unexpected content.
CONTENT_ERRORS = (
    *(TypeError, LookupError, AttributeError),
    *(RuntimeError, ArithmeticError, AssertionError),
)
# safetensors' names of the types that weights may have.
FLOATS = ("F64", "F32", "F16", "BF16")
SETTINGS_FILES = (
    *(CONFIG_NAME, GENERATION_CONFIG_NAME, ADAPTER_CONFIG_NAME),
    *("tokenizer_config.json", "tokenizer.json"),
)
# Not a name that transformers reads: it would take the numbers for the weights themselves.
INT8_WEIGHTS_NAME = "model.int8.safetensors"
WEIGHT_FILES = (
    SAFE_WEIGHTS_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    "model-*-of-*.safetensors",
    INT8_WEIGHTS_NAME,
    ADAPTER_CONFIG_NAME,
    ADAPTER_SAFE_WEIGHTS_NAME,
)
# Files that every class of tokenizers may have, beside those that the class names.
TOKENIZER_FILES = (
    TOKENIZER_CONFIG_FILE,
    FULL_TOKENIZER_FILE,
    ADDED_TOKENS_FILE,
    SPECIAL_TOKENS_MAP_FILE,
)
# Options of from_pretrained that locate a repository's files.
LOCATION_OPTIONS = ("subfolder", "revision", "token", "cache_dir", "local_files_only")


def find_file(path: str | Path, name: str, options: dict[str, Any]) -> Path | None:
    """A file of a repository, downloaded if needed; None if there is no such file."""
    file = cached_file(
        path,
        name,
        _raise_exceptions_for_missing_entries=False,
        **{name: options[name] for name in LOCATION_OPTIONS if name in options},
    )
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


def check_one_model(folder: str | Path) -> None:
    """Check that a folder with weights in 8 bits has no others, which these would hide.

    Raises:
        OSError: It has.
    """
    for name in (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME):
        if Path(folder, name).is_file() and Path(folder, INT8_WEIGHTS_NAME).is_file():
            raise OSError(
                f"{folder} holds two models, in {INT8_WEIGHTS_NAME} and {name}. Delete one."
            )


def load_config(path: str | Path, hub: bool = False, **options: Any) -> PreTrainedConfig:
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
        check_settings_files(path)
    with named_load_errors(path):
        fixed = {"trust_remote_code": False, "local_files_only": not hub}
        return AutoConfig.from_pretrained(path, **fixed | options)


def check_directory(folder: str | Path, hint: str = "") -> None:
    """Check that a folder exists; transformers would take another name for a repository."""
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"No such directory: {folder}. {hint}".rstrip())


def check_model_folder(
    folder: str | Path, configurations: Sequence[str] = (CONFIG_NAME,), hint: str = ""
) -> None:
    """Check that a folder exists and holds at least one of the configuration files."""
    check_directory(folder, hint)
    if not any(Path(folder, name).is_file() for name in configurations):
        raise FileNotFoundError(f"{folder} holds no model: there is no {CONFIG_NAME} in it.")


def check_settings_files(folder: str | Path) -> None:
    """Check that each JSON file of a model's folder holds an object; some may be missing.

    Raises:
        OSError: A file is damaged, or cannot be read.
    """
    for place in (Path(folder), Path(folder, TARGET_TOKENIZER_FOLDER)):
        for name in SETTINGS_FILES:
            if (place / name).is_file():
                try:
                    read_json_object(place / name)
                except ValueError as error:
                    raise OSError(f"{error} Copy or download it again.") from error


def check_weight_file(path: Path, dtypes: Sequence[str] = FLOATS) -> None:
    """Check that a file is a complete safetensors file of numbers; only its header is read.

    Raises:
        OSError: The file is missing, a Git LFS pointer, truncated or corrupt.
        ValueError: A weight has a type that is not in dtypes (safetensors' names of types).
    """
    try:
        with safe_open(path, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118
                dtype = weights.get_slice(name).get_dtype()
                if dtype not in dtypes:
                    raise ValueError(
                        f"{path}: the weight {name} must have one of the types "
                        f"{', '.join(dtypes)}, got {dtype}. Save the model without quantization."
                    )
            return
    except SafetensorError as error:  # names neither the file nor a remedy
        with open(path, "rb") as file:
            is_pointer = file.read(19) == b"version https://git"
        reason = (
            "it is a Git LFS pointer. Download the file itself: git lfs pull"
            if is_pointer
            else f"it is truncated or corrupt ({error}). Copy or download it again"
        )
        raise OSError(f"{path} holds no safetensors weights; {reason}.") from error


def check_weight_files(folder: str | Path) -> None:
    """Check the safetensors files that transformers would read: whole, in shards, an adapter's.

    Raises:
        OSError: A file is missing or damaged, or the index names a file outside the folder.
    """
    names = (SAFE_WEIGHTS_NAME, ADAPTER_SAFE_WEIGHTS_NAME)
    paths = {path for path in (Path(folder, name) for name in names) if path.exists()}
    index = Path(folder, SAFE_WEIGHTS_INDEX_NAME)
    if index.is_file() and Path(folder, SAFE_WEIGHTS_NAME) not in paths:
        paths |= {Path(folder, name) for name in shards_in(index)}
    for path in sorted(paths):
        check_weight_file(path)


def shards_in(index: Path) -> set[str]:
    """The files that an index of weights names.

    Raises:
        OSError: The index is damaged, or names a file outside its folder or of another format.
    """
    try:
        shards = read_json_object(index)["weight_map"].values()
    except (ValueError, KeyError, AttributeError) as error:
        raise OSError(f"{index} is damaged. Copy or download it again.") from error
    for name in shards:
        if not isinstance(name, str) or not name.endswith(".safetensors"):
            raise OSError(f"{index}: the index must name .safetensors files, got {name!r}.")
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise OSError(f"{index}: the index names a file outside the folder, {name}.")
    return set(shards)


def check_weights(path: str | Path, model: PreTrainedModel, loading_info: dict[str, Any]) -> None:
    """Check that all weights of a model were loaded, and that each is finite.

    loading_info is the second result of from_pretrained(output_loading_info=True).

    Raises:
        ValueError: A weight is missing, unexpected, of the wrong shape, or not finite.
    """
    if loading_info.get("mismatched_keys"):
        name, shape, expected = sorted(loading_info["mismatched_keys"])[0]
        raise ValueError(
            f"{path}: {name} must have shape {tuple(expected)} by the configuration, got "
            f"{tuple(shape)}. Use the configuration that was saved with these weights."
        )
    for kind, trouble in (
        ("missing_keys", "is missing"),
        ("unexpected_keys", "does not fit the model"),
    ):
        if loading_info[kind]:
            first, *others = sorted(loading_info[kind])
            more = f" (and {len(others)} others)" if others else ""
            raise ValueError(
                f"{path}: the weight {first}{more} {trouble}. Check that the folder holds a model "
                "for this task, and that config.json and the weights were saved together."
            )
    for name, weight in model.state_dict().items():
        if not weight.is_meta and not weight.isfinite().all():
            raise ValueError(
                f"{path}: the weight {name} is not finite (NaN or infinity). Use an earlier "
                "checkpoint of this training."
            )


@contextmanager
def named_load_errors(path: str | Path) -> Iterator[None]:
    """Turn errors by which libraries report unusable files into one line that names the model.

    Raises:
        OSError: The weights are corrupt, or a library failed for another reason.
        ValueError: A library failed in a way that a damaged or wrong file may have caused.
    """
    try:
        yield
    except SafetensorError as error:
        raise OSError(f"{path}: the weights are corrupt ({error}). Download them again.") from error
    except (OSError, ValueError, ImportError, StrictDataclassError):
        raise
    except BaseException as error:
        is_failure = is_tokenizer_failure(error)
        if is_out_of_memory(error) or not (is_failure or isinstance(error, Exception)):
            raise
        reason = f"{path} cannot be loaded ({type(error).__name__}: {error})."
        if not is_failure and not isinstance(error, CONTENT_ERRORS):  # a network error, for example
            raise OSError(reason) from error
        raise ValueError(
            f"{reason} If the options are right, a file in it is damaged or of another kind: copy "
            "or download it again."
        ) from error


@contextmanager
def without_load_report() -> Iterator[None]:
    """Suppress the library's table of weights that do not fit: `check_weights` raises the first."""
    logger = logging.getLogger("transformers.modeling_utils")

    def is_shown(record: logging.LogRecord) -> bool:
        return "LOAD REPORT" not in record.getMessage()

    logger.addFilter(is_shown)
    try:
        yield
    finally:
        logger.removeFilter(is_shown)
