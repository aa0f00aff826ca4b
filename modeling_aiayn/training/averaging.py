"""Section 6.1: the mean of the last checkpoints' weights, in the place of the last one's."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm import tqdm
from transformers import AutoConfig
from transformers.trainer import TRAINER_STATE_NAME
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_NAME

from ..publishing import MODEL_FILES
from .checkpoints import list_checkpoints, read_manifest
from .ema import EMA_FOLDER
from .settings import model_settings

# Of these a smaller value is the better one.
LOSSES = ("loss", "perplexity")


def average_weights(folders: Iterable[Path]) -> dict[str, Tensor]:
    """The mean of several models' weights; a tied matrix is there once, as it is saved.

    Of a run with ema_decay these are the averaged weights, by which it was evaluated.

    Args:
        folders: Models of one architecture and vocabulary.

    Returns:
        Mean weights by name, each in its own dtype; summed up in float64.

    Raises:
        OSError: A folder has no weights.
        ValueError: There is no folder, or models are not of the same sizes and vocabulary.
    """
    sums: dict[str, Tensor] = {}
    first: dict[str, Tensor] = {}
    number = 0
    for folder in folders:
        weights = _load(folder)
        first = first or weights
        _refuse_difference(first, weights, folder)
        for name, weight in weights.items():
            sums[name] = sums[name] + weight if name in sums else weight.double()
        number += 1
    if not number:
        raise ValueError("There is no checkpoint to average.")
    return {name: (total / number).to(first[name].dtype) for name, total in sums.items()}


def _load(folder: Path) -> dict[str, Tensor]:
    if (folder / EMA_FOLDER).is_dir():
        folder = folder / EMA_FOLDER
    paths = sorted(folder.glob("model*.safetensors"))
    if not paths:
        raise FileNotFoundError(f"No {SAFE_WEIGHTS_NAME} in {folder}.")
    return {name: tensor for path in paths for name, tensor in load_file(path).items()}


def _refuse_difference(first: dict[str, Tensor], weights: dict[str, Tensor], folder: Path) -> None:
    for name in sorted(first.keys() | weights.keys()):
        shapes = [
            tuple(each[name].shape) if name in each else "nothing" for each in (first, weights)
        ]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"{folder}: {name} is {shapes[1]}, and {shapes[0]} in the first one. Average the "
                "checkpoints of one run."
            )


def refuse_different_models(folders: Iterable[Path]) -> None:
    """Refuse models whose weights have the same shapes and not the same meaning.

    Args:
        folders: Models.

    Raises:
        OSError: One has no configuration.
        ValueError: One has another option or vocabulary than the first; dropout may differ.
    """
    first: dict[str, Any] = {}
    for folder in folders:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        found = model_settings(config)
        first = first or found
        for name in sorted(first.keys() | found.keys()):
            if found.get(name) != first.get(name) and "dropout" not in name:
                raise ValueError(
                    f"{folder}: {name} is {found.get(name)!r}, and {first.get(name)!r} in the "
                    "first one. Average models of one kind and vocabulary."
                )


def last_checkpoints(run: Path, number: int) -> list[Path]:
    """The newest checkpoints of a run.

    Args:
        run: The run's folder.
        number: How many.

    Returns:
        The checkpoints, oldest first.

    Raises:
        ValueError: There are not so many, or one is damaged.
    """
    return _as_many(list_checkpoints(run)[-number:], number, run)


def best_checkpoints(run: Path, number: int, metric: str) -> list[Path]:
    """The checkpoints of a run that did best in its own evaluations.

    Args:
        run: The run's folder.
        number: How many.
        metric: What they were evaluated by: loss, bleu, chrf...

    Returns:
        The checkpoints, best first.

    Raises:
        ValueError: There are not so many that were evaluated by metric, or one is damaged.
    """
    values: dict[Path, float] = {}
    for folder in list_checkpoints(run):
        state = json.loads((folder / TRAINER_STATE_NAME).read_text("utf-8"))
        for entry in state["log_history"]:
            if entry["step"] == state["global_step"] and f"eval_{metric}" in entry:
                values[folder] = entry[f"eval_{metric}"]
    ordered = sorted(values, key=values.__getitem__, reverse=metric not in LOSSES)
    return _as_many(ordered[:number], number, run, f" evaluated by {metric}")


def _as_many(folders: list[Path], number: int, run: Path, how: str = "") -> list[Path]:
    if number < 1 or len(folders) < number:
        raise ValueError(
            f"{run} has {len(folders)} checkpoints{how}, {number} were asked for. A run keeps as "
            "many as its --save_total_limit says."
        )
    for folder in folders:
        read_manifest(folder)
    return folders


def write_average(folders: list[Path], output: Path, dtype: str | None = None) -> None:
    """Write a model whose weights are the mean of others'; all else is the last one's.

    Args:
        folders: Models of one architecture.
        output: The folder to make.
        dtype: Type of the weights written. None: the checkpoints'.

    Raises:
        OSError: A file cannot be read or written.
        ValueError: output holds a model already, models differ, or see `average_weights`.
    """
    if (output / CONFIG_NAME).exists():
        raise ValueError(f"output {output} holds a model already. Give a new folder.")
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(f"No such checkpoint: {folder}.")
    refuse_different_models(folders)
    average = average_weights(tqdm(folders, desc="Averaging", unit="checkpoint"))
    output.mkdir(parents=True, exist_ok=True)
    for name in MODEL_FILES:
        source = folders[-1] / name
        if source.is_file():
            (output / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, output / name)
    if dtype is not None:
        average = {name: weight.to(getattr(torch, dtype)) for name, weight in average.items()}
        # The configuration's dtype is the one that a model is loaded and fine-tuned in: training in
        # half precision ruins it.
        config = json.loads((output / CONFIG_NAME).read_text("utf-8")) | {"dtype": "float32"}
        (output / CONFIG_NAME).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    save_file(average, output / SAFE_WEIGHTS_NAME, metadata={"format": "pt"})
    shutil.copymode(output / CONFIG_NAME, output / SAFE_WEIGHTS_NAME)
