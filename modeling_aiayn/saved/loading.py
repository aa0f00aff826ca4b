"""Load whole models, bundled or saved, and check that they are complete."""

import copy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM
from transformers.utils import ADAPTER_CONFIG_NAME

from ..modeling_aiayn import AiaynForConditionalGeneration
from .adapters import find_base, merge_adapter
from .folders import (
    check_index,
    check_model_folder,
    check_weights,
    named_weight_errors,
)
from .int8 import find_int8_weights, load_int8

# The models that are part of the package, the default first, and the folder that holds them.
BUNDLED_MODELS = ("aiayn-en-de", "aiayn-de-en")
BUNDLED_MODEL = BUNDLED_MODELS[0]
CHECKPOINTS = Path(__file__).parent.parent / "checkpoints"


def find_model(path: str | Path) -> str | Path:
    """Find a model: an existing folder, or one of the package's own if path is its name.

    checkpoints/NAME means the package's own too, as recipes/NAME does for recipes.
    """
    named = Path(path)
    is_bundled = named.parent in (Path(), Path("checkpoints")) and named.name in BUNDLED_MODELS
    return CHECKPOINTS / named.name if is_bundled and not named.exists() else path


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
        OSError: There is no such model, or its weights are damaged.
        ValueError: The configuration is invalid, or a weight is missing, unexpected, of the wrong
            shape or not finite.
    """
    if not hub:
        check_model_folder(path)
    options = {"trust_remote_code": False, "local_files_only": not hub} | options
    check_index(path, options)
    with named_weight_errors(path):
        model, loading_info = auto_class.from_pretrained(
            path,
            **options,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # check_weights names the weight
        )
    if new_prefix is not None:
        missing, mismatched = loading_info["missing_keys"], loading_info["mismatched_keys"]
        loading_info = {
            "missing_keys": [name for name in missing if not name.startswith(new_prefix)],
            "mismatched_keys": [key for key in mismatched if not key[0].startswith(new_prefix)],
            "unexpected_keys": [],
        }
    check_weights(path, model, loading_info)
    return model


def load_model(path: str | Path, hub: bool, **options: Any) -> AiaynForConditionalGeneration:
    """Load a translation model as `load_checked` does; merge an adapter into its base model.

    Args:
        path: A folder, or with hub the name of a repository, with a model or an adapter.
        hub: Whether path is a repository on the Hub.
        **options: Passed to AutoModelForSeq2SeqLM.from_pretrained.
    """
    if not hub:
        hint = "To load a repository from the Hub, pass hub=True (or --hub)."
        check_model_folder(path, ADAPTER_CONFIG_NAME, hint=hint)
    options = {"local_files_only": not hub} | options
    weights = find_int8_weights(path, **options)
    if weights is not None:
        return load_int8(path, weights, hub, **options)
    base = find_base(path, options)
    if base is None:
        model: AiaynForConditionalGeneration = load_checked(
            AutoModelForSeq2SeqLM, path, hub=hub, **options
        )
        return model
    # The revision and the subfolder are the adapter's, not the base model's.
    base_options = {
        name: value for name, value in options.items() if name not in ("revision", "subfolder")
    }
    base = find_model(base)
    model = load_model(base, hub and not Path(base).is_dir(), **base_options)
    return merge_adapter(model, path, options)


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
