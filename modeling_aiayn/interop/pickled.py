"""Reading pickled checkpoints without running code from them."""

import argparse
import pickle
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

# Entries that hold a state dict, and prefixes of all its names; see `read_state_dict`.
ENTRIES = ("model_state_dict", "state_dict", "model")
PREFIXES = ("module.", "model.", "_orig_mod.")


class Meter:
    """A placeholder for the training statistics in fairseq's checkpoints, which nobody reads."""


# A checkpoint may hold these beside tensors and Python's own types.
ALLOWED: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
    argparse.Namespace,
    *(
        (Meter, f"fairseq.{module}.{name}")
        for module in ("meters", "logging.meters")
        for name in ("AverageMeter", "TimeMeter", "StopwatchMeter")
    ),
]


def read_checkpoint_file(path: str | Path) -> dict[str, Any]:
    """Read a file that torch.save wrote, or a .safetensors file.

    Raises:
        OSError: There is no such file, or it is damaged.
        ValueError: It holds more than tensors and settings. Reading such a pickle could run code.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"No such file: {path}.")
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        with torch.serialization.safe_globals(ALLOWED), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickles that torch.save did not write
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if forbidden := re.search(r"GLOBAL (\S+)", str(error)):
            raise ValueError(
                f"{path} must hold tensors and settings only, but it also holds {forbidden[1]}. "
                f"A pickle can run code, so this file is not read. {_remedy(forbidden[1])}"
            ) from error
        raise OSError(f"{path} is damaged, or torch.save did not write it.") from error
    except PermissionError:
        raise
    except Exception as error:  # torch's reader raises errors of many types for damaged bytes
        raise OSError(
            f"{path} is damaged, or not a checkpoint ({type(error).__name__})."
        ) from error
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} must hold a dictionary of tensors, got {type(content).__name__}.")
    return dict(content)


def _remedy(forbidden: str) -> str:
    """What to do with a file that holds an object of a forbidden class."""
    if forbidden.startswith(("onmt.", "torchtext.")):
        return "It is older than OpenNMT-py 3: convert it with its tools/convertv2_v3.py."
    return (
        "Load it where it was trained and save only the weights and settings again, under the "
        "same names."
    )


def tensors_in(state: Mapping[str, Any], where: str) -> dict[str, Tensor]:
    """Copy a state dict, which must hold tensors only; `where` is its name in error messages."""
    others = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if others:
        raise ValueError(f"{where} must hold tensors only, but {others[0]} is not a tensor.")
    if not state:
        raise ValueError(f"{where} must hold tensors, but it is empty.")
    return dict(state)


def read_state_dict(source: str | Path | Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a copy of a state dict, or read it from a file, without what wraps it.

    Training scripts and Lightning keep it under an entry of a checkpoint; DataParallel, Lightning
    and torch.compile put a prefix before each name.
    """
    where = "The state dict" if isinstance(source, Mapping) else str(source)
    state: dict[str, Any] = read_mapping(source)
    inner = next((name for name in ENTRIES if isinstance(state.get(name), Mapping)), None)
    if inner is not None:
        state, where = state[inner], f"{where}: {inner!r}"
    tensors = tensors_in(state, where)
    while prefix := next((each for each in PREFIXES if _all_start_with(tensors, each)), None):
        tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return tensors


def read_mapping(source: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a mapping, or read it from a file."""
    return dict(source) if isinstance(source, Mapping) else read_checkpoint_file(source)


def _all_start_with(tensors: Mapping[str, Tensor], prefix: str) -> bool:
    return all(name.startswith(prefix) for name in tensors)


def options_in(options: Any) -> dict[str, Any] | None:
    """Return options as a dictionary, from a Namespace or a mapping; None if they are neither."""
    if isinstance(options, argparse.Namespace):
        return dict(vars(options))
    return dict(options) if isinstance(options, Mapping) else None


def dtype_of(tensors: Mapping[str, Tensor]) -> torch.dtype:
    """Return the type that a checkpoint's weights are stored in: its largest tensor's."""
    return max(tensors.values(), key=Tensor.numel).dtype
