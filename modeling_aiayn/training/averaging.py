"""Section 6.1: a model whose weights are the mean of several checkpoints' weights."""

import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelCard
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import ADAPTER_CONFIG_NAME, CONFIG_NAME, SAFE_WEIGHTS_NAME

from ..data.parsing import read_json_object
from ..saved.folders import INT8_WEIGHTS_NAME, load_config, model_files, named_weight_errors
from ..saved.publishing import renamed_card
from ..saved.whole_files import check_unused, new_folder
from .ema import load_weights
from .resume.checkpoints import MANIFEST_FILE, check_checkpoint, list_checkpoints
from .resume.settings import LOSSES, model_settings

# Follows the title of the run's card.
NOTE = (
    "The weights are the mean of {names}. What follows describes the training run. Its scores are "
    "those of the weights that the run itself saved, not of the mean."
)


def average_weights(folders: Iterable[Path], dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """The mean of several models' weights by name; sums are in float64.

    A tied matrix is included once, as it is saved. For checkpoints of a run with ema_decay, these
    are the means of its averaged weights.

    Args:
        folders: The models.
        dtype: Type of the means. None: that of the weights, which must be the same in all models.

    Raises:
        ValueError: Weights have other names, shapes or types than in the first model, or one is
            not finite.
    """
    sums: dict[str, Tensor] = {}
    first: dict[str, Tensor] = {}
    number = 0
    for folder in folders:
        with named_weight_errors(folder):
            weights = load_weights(folder)
        first = first or weights
        _check_shapes(first, weights, folder)
        if dtype is None:
            _check_types(first, weights, folder)
        for name, weight in weights.items():
            if not weight.isfinite().all():
                raise ValueError(
                    f"{folder}: the weight {name} is not finite (NaN or infinity). Leave this "
                    "checkpoint out."
                )
            sums[name] = sums[name] + weight if name in sums else weight.double()
        number += 1
    if not number:
        raise ValueError("There is no checkpoint to average. Pass at least one folder.")
    return {name: (total / number).to(dtype or first[name].dtype) for name, total in sums.items()}


def _check_shapes(first: dict[str, Tensor], weights: dict[str, Tensor], folder: Path) -> None:
    for name in sorted(first.keys() | weights.keys()):
        shapes = [
            tuple(each[name].shape) if name in each else "missing" for each in (first, weights)
        ]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"{folder}: {name} is {shapes[1]}, and {shapes[0]} in the first checkpoint. "
                "Average checkpoints of one run."
            )


def _check_types(first: dict[str, Tensor], weights: dict[str, Tensor], folder: Path) -> None:
    for name, weight in weights.items():
        if weight.dtype != first[name].dtype:
            raise ValueError(
                f"{folder}: {name} is in {weight.dtype}, and in {first[name].dtype} in the first "
                "checkpoint. Choose the type of the mean: --dtype float32."
            )


def check_same_model(folders: Iterable[Path]) -> None:
    """Check that models have the same options and vocabulary; only dropout may differ."""
    first: dict[str, Any] = {}
    for folder in folders:
        config = load_config(folder)
        settings = model_settings(config)
        first = first or settings
        for name in sorted(first.keys() | settings.keys()):
            if settings.get(name) != first.get(name) and "dropout" not in name:
                raise ValueError(
                    f"{folder}: {name} is {settings.get(name)!r}, and {first.get(name)!r} in the "
                    "first model. Average models with the same options and vocabulary."
                )


def last_checkpoints(run: Path, number: int) -> list[Path]:
    """The newest checkpoints of a run, oldest first; all must exist and be intact."""
    return _check_number(list_checkpoints(run)[-number:], number, run)


def best_checkpoints(run: Path, number: int, metric: str) -> list[Path]:
    """The checkpoints that scored best in the run's own evaluations, best first.

    Metrics are loss, bleu, chrf...

    Raises:
        ValueError: Fewer than number were evaluated by metric, or one is damaged.
    """
    metric = metric.removeprefix("eval_")
    key = f"eval_{metric}"
    folders: dict[int, Path] = {}
    scores: dict[int, float] = {}
    if (run / TRAINER_STATE_NAME).is_file():  # has the last evaluation if a signal postponed it
        log = read_json_object(run / TRAINER_STATE_NAME)["log_history"]
        scores |= {each["step"]: each[key] for each in log if key in each}
    for folder in list_checkpoints(run):
        state = read_json_object(folder / TRAINER_STATE_NAME)
        folders[state["global_step"]] = folder
        # If a signal postponed an evaluation, the log of the next checkpoint has it.
        scores |= {each["step"]: each[key] for each in state["log_history"] if key in each}
    values = {folder: scores[step] for step, folder in folders.items() if step in scores}
    ordered = sorted(values, key=values.__getitem__, reverse=not metric.endswith(LOSSES))
    return _check_number(ordered[:number], number, run, f" evaluated by {metric}")


def _check_number(folders: list[Path], number: int, run: Path, how: str = "") -> list[Path]:
    if number < 1:
        raise ValueError(f"The number of checkpoints must be at least 1, got {number}.")
    if len(folders) < number:
        raise ValueError(
            f"{run} has {len(folders)} checkpoints{how}, {number} were asked for. A run keeps "
            "--save_total_limit checkpoints."
        )
    for folder in folders:
        check_checkpoint(folder)
    return folders


def _check_folder(folder: Path) -> None:
    """Check that a folder holds a whole model, in weights that can be averaged."""
    if not folder.is_dir():
        raise FileNotFoundError(f"No such checkpoint: {folder}.")
    if (folder / INT8_WEIGHTS_NAME).is_file():
        raise ValueError(
            f"{folder} holds weights in 8 bits. Average the models from which it was made."
        )
    if (folder / ADAPTER_CONFIG_NAME).is_file():
        raise ValueError(
            f"{folder} holds a LoRA adapter, which cannot be averaged. Merge each adapter into a "
            "model, and average these models."
        )
    if (folder / MANIFEST_FILE).is_file():
        check_checkpoint(folder)


def write_average(folders: list[Path], output: Path, dtype: str | None = None) -> None:
    """Write a model: weights are the mean over all folders, other files come from the last one.

    Its card is that of the run, with a note; there is none while the run has none. The folder
    appears whole or not at all. Without a dtype, weights keep the checkpoints' type.

    Raises:
        OSError: output is not empty, or a file cannot be read or written.
        ValueError: The models differ or have weights in 8 bits, a weight is not finite, or a
            checkpoint or the card is damaged.
    """
    check_unused(output)
    for folder in folders:
        _check_folder(folder)
    check_same_model(folders)
    card = _card_of_mean(folders, output.resolve().name)
    average = average_weights(
        tqdm(folders, desc="Averaging", unit="checkpoint"),
        None if dtype is None else getattr(torch, dtype),
    )
    with new_folder(output) as unfinished:
        for source in model_files(folders[-1]):
            if ".safetensors" not in source.name:
                target = unfinished / source.relative_to(folders[-1])
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(source, target)
        if card is not None:
            (unfinished / "README.md").write_text(card, "utf-8")
        if dtype is not None:
            _set_loading_dtype(unfinished / CONFIG_NAME)
        save_file(average, unfinished / SAFE_WEIGHTS_NAME, metadata={"format": "pt"})


def _set_loading_dtype(config_file: Path) -> None:
    """Set the dtype in which the model is loaded: fine-tuning in half precision would ruin it."""
    config = read_json_object(config_file) | {"dtype": "float32"}
    config_file.write_text(json.dumps(config, indent=2) + "\n", "utf-8")


def _card_of_mean(folders: list[Path], name: str) -> str | None:
    """The card of the last model, or of the run of the last checkpoint; None if there is none."""
    last = folders[-1].resolve()
    owner = last.parent if last.name.startswith(PREFIX_CHECKPOINT_DIR) else last
    if not (owner / "README.md").is_file():
        return None
    card = ModelCard(renamed_card(owner, name))
    for field in ("eval_results", "model_name"):
        setattr(card.data, field, None)
    note = NOTE.format(names=", ".join(f"`{folder.resolve().name}`" for folder in folders))
    card.text, titles = re.subn(
        r"^# [^:\n]+(.*)$",
        lambda title: f"# {name}{title[1]}\n\n{note}",
        card.text,
        count=1,
        flags=re.MULTILINE,
    )
    if not titles:
        card.text = f"\n{note}\n\n{card.text.lstrip()}"
    return str(card)
