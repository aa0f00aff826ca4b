"""Checkpoints that are pickles, read without running what is in them."""

import argparse
import pickle
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor


class Meter:
    """Stands for the meters that fairseq keeps beside a model; nobody reads them."""


# All that may be in a checkpoint beside tensors and Python's own types: settings, and meters.
ALLOWED: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
    argparse.Namespace,
    *(
        (Meter, f"fairseq.{module}.{name}")
        for module in ("meters", "logging.meters")
        for name in ("AverageMeter", "TimeMeter", "StopwatchMeter")
    ),
]

# What torch's reader and unpickler raise where bytes are not what they should be.
DAMAGE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SafetensorError,
    TypeError,
    ValueError,
)


def read_pickled(path: str | Path) -> dict[str, Any]:
    """A checkpoint that torch.save wrote, or a .safetensors file.

    Args:
        path: The file.

    Returns:
        What it holds by name.

    Raises:
        OSError: There is no such file, or it is damaged.
        ValueError: It holds something else than tensors and settings: to read such a pickle is to
            run what somebody wrote.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"No such file: {path}.")
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        with torch.serialization.safe_globals(ALLOWED), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickles that torch.save did not write
            found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if forbidden := re.search(r"GLOBAL (\S+)", str(error)):
            raise ValueError(
                f"{path} holds {forbidden[1]}, which is more than tensors and settings, and is not "
                "read: a pickle can run what is in it. Save it again where it was trained, with "
                "what is of use here: the weights and settings that it has, under the same names."
            ) from error
        raise OSError(f"{path}: damaged, or no checkpoint that torch.save wrote.") from error
    except PermissionError:
        raise
    except DAMAGE as error:
        raise OSError(f"{path}: damaged, or no checkpoint ({type(error).__name__}).") from error
    if not isinstance(found, Mapping):
        raise ValueError(f"{path} must hold names and tensors, got a {type(found).__name__}.")
    return dict(found)


def tensors_in(state: Mapping[str, Any], where: str) -> dict[str, Tensor]:
    """A state dict, of which each entry is a tensor.

    Args:
        state: What should be one.
        where: What to call it in the error.

    Returns:
        The same.

    Raises:
        ValueError: It is none.
    """
    strangers = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if strangers or not state:
        raise ValueError(
            f"{where} must hold tensors alone, got {strangers[0] if strangers else 'nothing'}."
        )
    return dict(state)


def read_state_dict(source: str | Path | Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict, or the file of one.

    Args:
        source: Either.

    Returns:
        Tensors by name, in a dictionary of its own.

    Raises:
        OSError: The file is missing or damaged.
        ValueError: It holds something else.
    """
    if isinstance(source, Mapping):
        return tensors_in(source, "The state dict")
    return tensors_in(read_pickled(source), str(source))


def dtype_of(tensors: Mapping[str, Tensor]) -> torch.dtype:
    """What a checkpoint's weights are kept in: the type of its largest tensor.

    Args:
        tensors: At least one.

    Returns:
        The type.
    """
    return max(tensors.values(), key=Tensor.numel).dtype
