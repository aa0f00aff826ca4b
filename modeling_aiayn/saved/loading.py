"""Load models and tokenizers from a folder or a repository, and check that they are complete."""

import copy
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
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
from transformers.utils.peft_utils import find_adapter_config_file

from ..configuration_aiayn import AiaynConfig
from ..data.parsing import read_json_object
from ..modeling_aiayn import AiaynForConditionalGeneration
from ..tokenization import TARGET_TOKENIZER_FOLDER, is_tokenizer_failure, portable_tokenizer
from .int8_weights import INT8_WEIGHTS_NAME, read_int8_weights
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
# Options of from_pretrained that locate a repository's files.
LOCATION_OPTIONS = ("subfolder", "revision", "token", "cache_dir", "local_files_only")
# The models that are part of the package, the default first, and the folder that holds them.
BUNDLED_MODELS = ("aiayn-en-de", "aiayn-de-en")
BUNDLED_MODEL = BUNDLED_MODELS[0]
CHECKPOINTS = Path(__file__).parent.parent / "checkpoints"
HUB_HINT = "To load a repository from the Hub, pass hub=True (or --hub)."


def find_model(path: str | Path) -> str | Path:
    """Find a model: an existing folder, or one of the package's own if path is its name.

    checkpoints/NAME means the package's own too, as recipes/NAME does for recipes.
    """
    named = Path(path)
    is_bundled = named.parent in (Path(), Path("checkpoints")) and named.name in BUNDLED_MODELS
    return CHECKPOINTS / named.name if is_bundled and not named.exists() else path


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


def load_checked(
    auto_class: Any,
    path: str | Path,
    *,
    hub: bool = False,
    new_prefix: str | None = None,
    **options: Any,
) -> Any:
    """Load a model, and check its files and its weights.

    Only safetensors files are read, and no code from the folder is run unless options say so.

    Args:
        auto_class: The class that loads the model: AutoModelForCausalLM, ...
        path: A folder, or with hub the name of a repository.
        hub: Whether path is a repository on the Hub.
        new_prefix: Prefix of the names of weights that may be missing or have another shape, such
            as a new head's. They are initialised, and weights that the model does not need are
            ignored.
        **options: Passed to auto_class.from_pretrained.

    Raises:
        OSError: There is no such model, or a file is damaged.
        ValueError: The configuration is invalid, or a weight is missing, unexpected, of the wrong
            shape or not finite.
    """
    if fixed := sorted(options.keys() & ENFORCED.keys()):
        raise ValueError(
            f"{fixed[0]} cannot be set: only safetensors files are loaded, and all weights are "
            "checked. Leave it out."
        )
    options = {"trust_remote_code": False, "local_files_only": not hub} | options
    if not hub:
        check_settings_files(path)
        check_weight_files(path)
    elif index := _find_index(path, options):
        shards_in(index)
    with named_load_errors(path), without_load_report():
        model, loading_info = auto_class.from_pretrained(path, **options | ENFORCED)
    if new_prefix is not None:
        loading_info = loading_info | {
            "missing_keys": [
                name for name in loading_info["missing_keys"] if not name.startswith(new_prefix)
            ],
            "mismatched_keys": [
                key for key in loading_info["mismatched_keys"] if not key[0].startswith(new_prefix)
            ],
            "unexpected_keys": set(),
        }
    check_weights(path, model, loading_info)
    return model


def _find_index(path: str | Path, options: dict[str, Any]) -> Path | None:
    """The index of a repository's weights, which might name files of another format."""
    return find_file(path, SAFE_WEIGHTS_INDEX_NAME, options)


def find_file(path: str | Path, name: str, options: dict[str, Any]) -> Path | None:
    """A file of a repository, downloaded if needed; None if there is no such file."""
    file = cached_file(
        path,
        name,
        _raise_exceptions_for_missing_entries=False,
        **{name: options[name] for name in LOCATION_OPTIONS if name in options},
    )
    return None if file is None else Path(file)


def load_model(path: str | Path, hub: bool, **options: Any) -> AiaynForConditionalGeneration:
    """Load a translation model as `load_checked` does; merge an adapter into its base model.

    Args:
        path: A folder, or with hub the name of a repository, with a model or an adapter.
        hub: Whether path is a repository on the Hub.
        **options: Passed to AutoModelForSeq2SeqLM.from_pretrained.
    """
    if not hub:
        check_model_folder(path, (CONFIG_NAME, ADAPTER_CONFIG_NAME), HUB_HINT)
    options = {"local_files_only": not hub} | options
    if (weights := find_int8_weights(path, hub, **options)) is not None:
        return _load_int8(path, weights, hub, **options)
    where = {name: options[name] for name in LOCATION_OPTIONS if name in options}
    base: str | Path | None = _base_of_adapter(path, **where)
    if base is None:
        return load_checked(AutoModelForSeq2SeqLM, path, hub=hub, **options)
    # The revision and the subfolder are the adapter's, not the base model's.
    own = ("revision", "subfolder")
    base_options = {name: value for name, value in options.items() if name not in own}
    base = find_model(base)
    model = load_model(base, hub and not Path(base).is_dir(), **base_options)
    if find_file(path, ADAPTER_SAFE_WEIGHTS_NAME, options) is None:
        raise FileNotFoundError(
            f"{path}: the adapter must be saved as {ADAPTER_SAFE_WEIGHTS_NAME}. Save it again "
            "without safe_serialization=False."
        )
    if not hub:
        check_weight_files(path)
    return _merge_adapter(model, path, **where)


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


def find_int8_weights(path: str | Path, hub: bool, **options: Any) -> Path | None:
    """The file of weights in 8 bits of a folder, or with hub of a repository, if it has one."""
    if not hub:
        check_one_model(path)
        weights = Path(path, INT8_WEIGHTS_NAME)
        return weights if weights.is_file() else None
    return find_file(path, INT8_WEIGHTS_NAME, options)


def _load_int8(
    path: str | Path, weights: Path, hub: bool, **options: Any
) -> AiaynForConditionalGeneration:
    """Load a model whose weights have 8 bits, as floating-point numbers."""
    check_weight_file(weights, (*FLOATS, "I8"))
    where = {name: options[name] for name in LOCATION_OPTIONS if name in options}
    others = {name: value for name, value in options.items() if name not in LOCATION_OPTIONS}
    if others.get("dtype") in (None, "auto"):  # the configuration's is that of the original weights
        others["dtype"] = torch.float32
    # from_pretrained sets fields of a configuration that it reads, not of one that it is given.
    names = others.keys() & load_config(path, hub, **where).to_dict().keys() - {"dtype"}
    config = load_config(path, hub, **where, **{name: others.pop(name) for name in names})
    with named_load_errors(path), without_load_report():
        state = read_int8_weights(weights)
        model, loading_info = AiaynForConditionalGeneration.from_pretrained(
            None, config=config, state_dict=state, **others | ENFORCED
        )
        model.generation_config = GenerationConfig.from_pretrained(path, **where)
    check_weights(path, model, loading_info)
    return model


def _base_of_adapter(path: str | Path, **where: Any) -> str | None:
    """The model that an adapter belongs to, or None if path holds a whole model.

    Raises:
        OSError: path holds both. transformers would load the adapter into the model.
    """
    config = find_adapter_config_file(str(path), **where)
    if config is None:
        return None
    folder = Path(config).parent
    for name in (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME):
        if (folder / CONFIG_NAME).is_file() and (folder / name).is_file():
            raise OSError(
                f"{path} holds a model in {name} and an adapter. Move {ADAPTER_CONFIG_NAME} and "
                f"{ADAPTER_SAFE_WEIGHTS_NAME} to a folder of their own, or delete them."
            )
    return None if (folder / CONFIG_NAME).is_file() else adapter_base(config)


def adapter_base(config: str | Path) -> str:
    """The name of the base model in an adapter's configuration file."""
    base = read_json_object(config).get("base_model_name_or_path")
    if not isinstance(base, str):
        raise ValueError(
            f"{config}: base_model_name_or_path must name the base model, got {base!r}."
        )
    return base


def _merge_adapter(
    model: AiaynForConditionalGeneration, path: str | Path, **where: Any
) -> AiaynForConditionalGeneration:
    if find_spec("peft") is None:
        raise ModuleNotFoundError(f"{path} holds an adapter. Install peft to load it.")
    from peft import PeftConfig, get_peft_model

    config = PeftConfig.from_pretrained(str(path), **where)
    if config.is_prompt_learning:
        raise ValueError(f"{path}: a {config.peft_type.value} adapter cannot be merged.")
    is_tied = model.config.tie_word_embeddings
    config.base_model_name_or_path = None  # peft warns if it is not the path of the loaded model
    adapted = get_peft_model(model, config)
    keys = adapted.load_adapter(str(path), "default", torch_device="cpu", **where)
    check_weights(
        path,
        adapted,
        {"missing_keys": keys.missing_keys, "unexpected_keys": keys.unexpected_keys},
    )
    # Merging changes weights in place: an adapter on one of several tied layers must not
    # change the others.
    _untie_weights(model)
    merged: AiaynForConditionalGeneration = adapted.merge_and_unload()
    merged.requires_grad_(True)  # the adapter has frozen it
    weights = merged.state_dict()
    tied = merged.all_tied_weights_keys.items()
    if is_tied and all(torch.equal(weights[name], weights[source]) for name, source in tied):
        merged.config.tie_word_embeddings = True
        merged.tie_weights()
    return merged


def _untie_weights(model: PreTrainedModel) -> None:
    """Give each layer its own copy of a weight that several layers share."""
    model.config.tie_word_embeddings = False
    seen: set[int] = set()
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if id(parameter) in seen:
                copied = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
                setattr(module, name, copied)
            seen.add(id(getattr(module, name)))


def convert_for_cpu(model: AiaynForConditionalGeneration) -> AiaynForConditionalGeneration:
    """Copy a float16 model on a CPU to float32, in which CPUs compute; return others unchanged.

    The fast decoder notices that the values fit into float16, and stores them so (fast_linear.py).
    """
    if model.device.type == "cpu" and model.dtype == torch.float16:
        return copy.deepcopy(model).float()
    return model


def stored_dtype(model: AiaynForConditionalGeneration) -> torch.dtype:
    """The type that holds a model's weights exactly: float16 if convert_for_cpu copied them."""
    if model.dtype == torch.float32 and model.config.dtype == torch.float16:
        weights = model.state_dict().values()
        if all(torch.equal(weight, weight.half().float()) for weight in weights):
            return torch.float16
    return model.dtype


def check_package(name: str, extra: str) -> None:
    """Check that an optional package is installed; an extra of modeling_aiayn installs it."""
    if find_spec(name) is None:
        raise ModuleNotFoundError(
            f"The package {name} is not installed. Install it, or modeling_aiayn[{extra}]."
        )


def load_tokenizers(
    path: str | Path, config: AiaynConfig, **options: Any
) -> tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]:
    """Load the tokenizers of source and target from a model's folder, one object if shared.

    Raises:
        OSError: A tokenizer is missing, or the Hub could not be reached.
    """
    names = ("tokenizer_config.json", "tokenizer.json")
    if Path(path).is_dir() and not any(Path(path, name).is_file() for name in names):
        raise FileNotFoundError(
            f"{path} holds no tokenizer: there is no {names[0]} in it. Save the model's tokenizer "
            "there with save_pretrained."
        )
    source = load_tokenizer(path, **options)
    return source, load_target_tokenizer(path, config, **options) or source


def load_target_tokenizer(
    path: str | Path, config: AiaynConfig, *, subfolder: str = "", **options: Any
) -> PreTrainedTokenizerBase | None:
    """Load the tokenizer of the target language; None if source and target share one.

    subfolder is that of the model in a repository.

    Raises:
        OSError: The target has its own vocabulary and its tokenizer is missing, or the Hub could
            not be reached.
    """
    folder = PurePosixPath(subfolder, TARGET_TOKENIZER_FOLDER)
    is_there = config.decoder_vocab_size is not None or Path(path, folder).is_dir()
    if Path(path).is_dir() and is_there and not Path(path, folder).is_dir():
        raise FileNotFoundError(
            f"{path} holds no tokenizer of the target language, which has a vocabulary of its "
            f"own. Save it in {Path(path, folder)} with save_pretrained."
        )
    if not is_there and not Path(path).is_dir():
        where = {name: value for name, value in options.items() if name != "trust_remote_code"}
        is_there = None is not cached_file(
            path,
            "tokenizer_config.json",
            subfolder=str(folder),
            _raise_exceptions_for_missing_entries=False,
            **where,
        )
    if not is_there:
        return None
    return load_tokenizer(path, subfolder=str(folder), **options)


def load_tokenizer(path: str | Path, **options: Any) -> PreTrainedTokenizerBase:
    """Load a tokenizer from a folder or a repository; options are AutoTokenizer's.

    Raises:
        OSError: There is no tokenizer, or the Hub could not be reached.
        ValueError: A file of it is damaged.
    """
    if Path(path).is_dir():
        check_settings_files(path)
    with named_load_errors(path):
        return portable_tokenizer(AutoTokenizer.from_pretrained(path, **options))
