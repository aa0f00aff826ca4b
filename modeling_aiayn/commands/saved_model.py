"""Load the model that a flag names, if it is not a translation model."""

import os
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import CONFIG_NAME

from ..saved.folders import find_file, load_config
from ..saved.loading import load_checked
from ..saved.tokenizers import load_tokenizer

# Help of --device.
DEVICE_HELP = "cpu, cuda, ... Default: a GPU if there is one."


def default_device(device: str | None) -> str:
    """The given device, or a GPU if there is one, or the CPU.

    Of several processes that a launcher has started on a machine, each gets its own GPU.
    """
    if device is None and torch.cuda.is_available():
        rank = os.environ.get("LOCAL_RANK")
        return "cuda" if rank is None else f"cuda:{int(rank) % torch.cuda.device_count()}"
    if device is None:
        return "cpu"
    try:
        return str(torch.empty(0, device=device).device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts that it has it
        raise ValueError(
            "device must be a device of torch that this machine has, such as cpu or cuda:0, got "
            f"{device!r}."
        ) from error


def saved_architecture(path: str | Path, hub: bool = False) -> str:
    """The class that a model was saved as; "" for a folder without one, such as an adapter's."""
    is_whole = Path(path, CONFIG_NAME).is_file()
    if not (is_whole or (hub and find_file(path, CONFIG_NAME, {}) is not None)):
        return ""
    return next(iter(load_config(path, hub=hub).architectures or []), "")


def check_head(folder: str, head: str) -> None:
    """Check that a folder holds a model that was saved as the class named head."""
    config = load_config(folder)
    saved_as = next(iter(config.architectures or []), "none")
    if head not in (config.architectures or []):
        raise ValueError(f"{folder} must hold a model saved as {head}, got {saved_as}.")


def load_with_tokenizer(
    auto_class: Any, path: str | Path, hub: bool = False, **options: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model with `load_checked`, and its tokenizer."""
    model = load_checked(auto_class, path, hub=hub, **options)
    return model, load_tokenizer(path, trust_remote_code=False, local_files_only=not hub)
