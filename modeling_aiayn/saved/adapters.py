"""Merge an adapter (LoRA) into its base model."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.utils import ADAPTER_SAFE_WEIGHTS_NAME

from ..modeling_aiayn import AiaynForConditionalGeneration
from .folders import check_weights, find_file, location_options, named_weight_errors


def merge_adapter(
    model: AiaynForConditionalGeneration, path: str | Path, options: dict[str, Any]
) -> AiaynForConditionalGeneration:
    """Add an adapter's changes to the weights of its base model."""
    from peft import PeftConfig, get_peft_model

    if find_file(path, ADAPTER_SAFE_WEIGHTS_NAME, options) is None:  # peft would read a pickle
        raise FileNotFoundError(
            f"{path}: the adapter must be saved as {ADAPTER_SAFE_WEIGHTS_NAME}. Save it again "
            "without safe_serialization=False."
        )
    where = location_options(options)
    config = PeftConfig.from_pretrained(str(path), **where)
    is_tied = model.config.tie_word_embeddings
    config.base_model_name_or_path = None  # peft warns if it is not the path of the loaded model
    adapted = get_peft_model(model, config)
    with named_weight_errors(path):
        keys = adapted.load_adapter(str(path), "default", torch_device="cpu", **where)
    loaded = {"missing_keys": keys.missing_keys, "unexpected_keys": keys.unexpected_keys}
    check_weights(path, adapted, loaded)
    # An adapter on one of several tied layers must not change the others.
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
