"""Load whole models, bundled or saved, and check that they are complete."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, GenerationConfig
from transformers.utils import ADAPTER_CONFIG_NAME

from ..modeling_aiayn import AiaynForConditionalGeneration
from .adapters import merge_adapter
from .folders import (
    check_index,
    check_model_folder,
    check_weights,
    find_base,
    find_int8_weights,
    load_config,
    location_options,
    named_weight_errors,
)
from .int8 import read_int8_weights

# from_pretrained ignores weights of another shape here, because check_weights names them.
LOADING_OPTIONS = {"output_loading_info": True, "ignore_mismatched_sizes": True}
# The models that are part of the package, the default first, and the folder that holds them.
BUNDLED_MODELS = ("aiayn-en-de", "aiayn-de-en")
BUNDLED_MODEL = BUNDLED_MODELS[0]
CHECKPOINTS = Path(__file__).parent.parent / "checkpoints"


def find_model(path: str | Path) -> str | Path:
    """Find a model: an existing folder, or a bundled model as NAME or checkpoints/NAME."""
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
    path is a folder or, with hub, a repository. With new_prefix, weights whose names begin with it,
    such as a new head's, may be missing or have another shape: they are initialized. Weights that
    the model does not need are then ignored.
    """
    if not hub:
        check_model_folder(path)
    options = {"trust_remote_code": False, "local_files_only": not hub} | options
    check_index(path, options)
    with named_weight_errors(path):
        model, loading_info = auto_class.from_pretrained(
            path, **options, use_safetensors=True, **LOADING_OPTIONS
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


def _load_int8(
    path: str | Path, weights: Path, hub: bool, **options: Any
) -> AiaynForConditionalGeneration:
    """Load a model with 8-bit weights, which become floating-point numbers."""
    if options.get("dtype") in (None, "auto"):  # config.json has the original weights' dtype
        options["dtype"] = torch.float32
    config, others = load_config(path, hub, return_unused_kwargs=True, **options)
    with named_weight_errors(path):
        state = read_int8_weights(weights)
    others |= LOADING_OPTIONS | {"dtype": options["dtype"]}
    model, loading_info = AiaynForConditionalGeneration.from_pretrained(
        None, config=config, state_dict=state, **others
    )
    model.generation_config = GenerationConfig.from_pretrained(path, **location_options(options))
    check_weights(path, model, loading_info)
    return model


def load_model(path: str | Path, hub: bool, **options: Any) -> AiaynForConditionalGeneration:
    """Load a translation model as `load_checked` does; merge an adapter into its base model."""
    if not hub:
        hint = "To load a repository from the Hub, pass hub=True (or --hub)."
        check_model_folder(path, ADAPTER_CONFIG_NAME, hint=hint)
    options = {"local_files_only": not hub} | options
    weights = find_int8_weights(path, **options)
    if weights is not None:
        return _load_int8(path, weights, hub, **options)
    base = find_base(path, options)
    if base is None:
        return load_checked(AutoModelForSeq2SeqLM, path, hub=hub, **options)
    # The revision and the subfolder are the adapter's, not the base model's.
    base_options = {key: options[key] for key in options.keys() - {"revision", "subfolder"}}
    base = find_model(base)
    model = load_model(base, hub and not Path(base).is_dir(), **base_options)
    return merge_adapter(model, path, options)
