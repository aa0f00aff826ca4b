"""Adapters (LoRA): find their base model, and merge them into it."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.utils import (
    ADAPTER_CONFIG_NAME,
    ADAPTER_SAFE_WEIGHTS_NAME,
    CONFIG_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
)
from transformers.utils.peft_utils import find_adapter_config_file

from ..data.parsing import read_json_object
from ..modeling_aiayn import AiaynForConditionalGeneration
from .folders import check_weights


def base_of_adapter(path: str | Path, **where: Any) -> str | None:
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


def merge_adapter(
    model: AiaynForConditionalGeneration, path: str | Path, **where: Any
) -> AiaynForConditionalGeneration:
    """Add an adapter's changes to the weights of its base model."""
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
