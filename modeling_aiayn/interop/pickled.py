"""Read pickled checkpoints without running their code."""

import argparse
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
    """A placeholder for the training statistics in fairseq's checkpoints, which are not used."""


# A checkpoint may hold these in addition to tensors and Python's own types.
ALLOWED: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
    argparse.Namespace,
    *(
        (Meter, f"fairseq.{module}.{name}")
        for module in ("meters", "logging.meters")
        for name in ("AverageMeter", "TimeMeter", "StopwatchMeter")
    ),
]


def read_checkpoint_file(path: str | Path) -> dict[str, Any]:
    """Read a file that torch.save wrote, or a .safetensors file, without running its code."""
    path = Path(path)
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with torch.serialization.safe_globals(ALLOWED), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickles that torch.save did not write
            return dict(torch.load(path, map_location="cpu", weights_only=True))
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        raise
    except Exception as error:  # torch's reader raises errors of many types for damaged bytes
        if forbidden := re.search(r"GLOBAL (\S+)", str(error)):
            remedy = "Where it was trained, save only its weights and settings, by the same names."
            if forbidden[1].startswith(("onmt.", "torchtext.")):
                remedy = "It is older than OpenNMT-py 3: convert it with tools/convertv2_v3.py."
            raise ValueError(
                f"{path} holds {forbidden[1]}. A pickle can run code, so files that hold more than "
                f"tensors and settings are not read. {remedy}"
            ) from error
        kind = type(error).__name__
        raise OSError(f"{path} is damaged, or not a checkpoint ({kind}).") from error


def read_state_dict(source: str | Path | Mapping[str, Any]) -> dict[str, Tensor]:
    """Return a copy of a state dict, or read it from a file; remove entries that wrap it.

    Also remove the prefixes that DataParallel, Lightning and torch.compile put before each name.
    """
    state = dict(source) if isinstance(source, Mapping) else read_checkpoint_file(source)
    state = next((state[name] for name in ENTRIES if isinstance(state.get(name), Mapping)), state)
    for prefix in PREFIXES * 2:  # DataParallel may wrap a compiled module, or the reverse
        if all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    return dict(state)


def options_in(options: Any) -> dict[str, Any]:
    """Return a copy of options, a Namespace or a mapping, as a dictionary; {} for None."""
    return dict(vars(options) if isinstance(options, argparse.Namespace) else options or {})
