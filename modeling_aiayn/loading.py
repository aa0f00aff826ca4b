"""Models and tokenizers of a folder or repository, whole and fit to translate."""

import copy
import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import ADAPTER_CONFIG_NAME, CONFIG_NAME, cached_file
from transformers.utils.peft_utils import find_adapter_config_file

from .configuration_aiayn import AiaynConfig
from .modeling_aiayn import AiaynForConditionalGeneration
from .tokenization import TARGET_TOKENIZER_FOLDER

HUB_HINT = "To load a repository from the Hub, say so (hub=True, or --hub)."


def check_directory(folder: str | Path, hint: str = "") -> None:
    """Refuse a name that is no folder's: the libraries would take it for a repository's.

    Args:
        folder: The name.
        hint: What else a user may have meant by it, a sentence.

    Raises:
        FileNotFoundError: There is no such folder.
    """
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"No such directory: {folder}. {hint}".rstrip())


def check_model_folder(
    folder: str | Path, configurations: Sequence[str] = (CONFIG_NAME,), hint: str = ""
) -> None:
    """Refuse what is no folder with a model in it.

    Args:
        folder: Its name.
        configurations: Files of which a model's folder has one at least.
        hint: As for `check_directory`.

    Raises:
        FileNotFoundError: There is no such folder, or no model in it.
    """
    check_directory(folder, hint)
    if not any(Path(folder, name).is_file() for name in configurations):
        raise FileNotFoundError(f"{folder} holds no model: there is no {CONFIG_NAME} in it.")


def check_weights(path: str | Path, model: PreTrainedModel, loading_info: dict[str, Any]) -> None:
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


def load_model(path: str | Path, hub: bool, **options: Any) -> AiaynForConditionalGeneration:
    """The model in a folder, or with hub in a repository.

    Args:
        path: The folder, or the repository's name.
        hub: Whether path names a repository on the Hub.
        **options: As for AutoModelForSeq2SeqLM.from_pretrained.

    Returns:
        The model, all of its weights there and finite.

    Raises:
        OSError: There is no such folder, or it holds no model.
        ValueError: The model's weights are not all there, or not all numbers.
    """
    if not hub:
        # The library follows an adapter's file to its model.
        check_model_folder(path, (CONFIG_NAME, ADAPTER_CONFIG_NAME), HUB_HINT)
    base = _base_of_adapter(path, **options)
    model, loading_info = AutoModelForSeq2SeqLM.from_pretrained(
        base or path, use_safetensors=True, output_loading_info=True, **options
    )
    check_weights(base or path, model, loading_info)
    if base is not None:
        # Loaded with its model, an adapter would hide what that lacks.
        where = {name: each for name, each in options.items() if name in ("revision", "token")}
        where["local_files_only"] = not hub
        found = model.load_adapter(str(path), adapter_kwargs=where)
        check_weights(path, model, found.to_dict())
    merge_adapters(model)
    return model


def _base_of_adapter(
    path: str | Path, local_files_only: bool = True, revision: str | None = None, **_: Any
) -> str | None:
    """The model that an adapter's folder or repository names; None: there is one in it."""
    where = {"local_files_only": local_files_only, "revision": revision}
    config = find_adapter_config_file(str(path), **where)
    if config is None or (Path(config).parent / CONFIG_NAME).is_file():
        return None
    return str(json.loads(Path(config).read_text("utf-8"))["base_model_name_or_path"])


def merge_adapters(model: AiaynForConditionalGeneration) -> None:
    """Put adapters into the weights that they adapt, and leave a model without any.

    Args:
        model: A model, loaded with adapters or without.
    """
    if not getattr(model, "_hf_peft_config_loaded", False):
        return
    from peft.tuners.tuners_utils import BaseTunerLayer

    _take_trained_layers(model)
    modules: dict[str, Any] = dict(model.named_modules())
    adapters = {name: each for name, each in modules.items() if isinstance(each, BaseTunerLayer)}
    tied = [*model.all_tied_weights_keys, *model.all_tied_weights_keys.values()]
    if any(f"{name}.weight" in tied for name in adapters):
        # Of layers that share a weight one is adapted, and from now on each has its own.
        for name in model.all_tied_weights_keys:
            layer = modules[name.removesuffix(".weight")]
            layer = getattr(layer, "base_layer", layer)
            layer.weight = nn.Parameter(layer.weight.detach().clone())
        model.config.tie_word_embeddings = False
    for name, adapter in adapters.items():
        if not adapter.disable_adapters:
            adapter.merge()
        model.set_submodule(name, adapter.get_base_layer())
    model._hf_peft_config_loaded = False
    del model.peft_config
    # By them saving would give the weights an adapter's names.
    model.__dict__.pop("_weight_conversions", None)


def _take_trained_layers(model: nn.Module) -> None:
    """Put in place what was trained whole beside adapters: layers, or some of a layer's rows."""
    from peft.utils.other import AuxiliaryTrainingWrapper

    for name, module in list(model.named_modules()):
        if isinstance(module, AuxiliaryTrainingWrapper):
            trained = module.original_module
            if not module.disable_adapters:
                trained = module.unload_and_optionally_merge_module(
                    merge=True, safe_merge=False, adapter_names=None
                )
            model.set_submodule(name, trained)


def computable(model: AiaynForConditionalGeneration) -> AiaynForConditionalGeneration:
    """A copy in float32 of what is kept in float16 on a CPU, which cannot compute in that.

    The decoder finds that float16 holds its weights, and keeps them so (fast_model.py).

    Args:
        model: A model.

    Returns:
        The copy, or where there is no need of one the model itself.
    """
    if model.device.type == "cpu" and model.dtype == torch.float16:
        return copy.deepcopy(model).float()
    return model


def check_package(name: str, extra: str) -> None:
    """Refuse to begin what a package is missing for.

    Args:
        name: The package.
        extra: Which of our extras has it.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    if find_spec(name) is None:
        raise ModuleNotFoundError(
            f"This needs the package {name}, which the extra {extra!r} of modeling_aiayn has: "
            "install it."
        )


def load_target_tokenizer(
    path: str | Path, config: AiaynConfig, **options: Any
) -> PreTrainedTokenizerBase | None:
    """The tokenizer of the target in a model's folder or repository, where it has one.

    Args:
        path: The folder, or a repository's name.
        config: The model's.
        **options: As for AutoTokenizer.from_pretrained.

    Returns:
        The tokenizer, or None: the source's serves.

    Raises:
        OSError: The target has a vocabulary of its own and there is no tokenizer for it, or the
            Hub could not be reached.
    """
    folder = Path(path) / TARGET_TOKENIZER_FOLDER
    is_there = config.decoder_vocab_size is not None or folder.is_dir()
    if not is_there and not Path(path).is_dir():
        where = {name: value for name, value in options.items() if name != "trust_remote_code"}
        is_there = None is not cached_file(
            path,
            "tokenizer_config.json",
            subfolder=TARGET_TOKENIZER_FOLDER,
            _raise_exceptions_for_missing_entries=False,
            **where,
        )
    if not is_there:
        return None
    return AutoTokenizer.from_pretrained(path, subfolder=TARGET_TOKENIZER_FOLDER, **options)
