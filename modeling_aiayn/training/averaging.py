"""Section 6.1: a model whose weights are the mean of several checkpoints' weights."""

import json
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
from ..saved.whole_files import check_unused, new_folder
from .ema import load_weights
from .resume.checkpoints import MANIFEST_FILE, check_checkpoint, list_checkpoints, update_of
from .resume.settings import LOSSES, model_settings


def average_weights(folders: Iterable[Path], dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """The mean of several models' weights by name; sums are in float64.

    A tied matrix is included once, as it is saved. For checkpoints of a run with ema_decay, the
    mean of their averaged weights is computed. Without a dtype, the means keep the weights' type.

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
        _check_same_kind(first, weights, folder, has_dtype=dtype is not None)
        for name, weight in weights.items():
            if not weight.isfinite().all():
                raise ValueError(
                    f"{folder}: the weight {name} is not finite (NaN or infinity). Leave this "
                    "checkpoint out."
                )
            sums[name] = sums[name] + weight if name in sums else weight.double()
        number += 1
    return {name: (total / number).to(dtype or first[name].dtype) for name, total in sums.items()}


def _check_same_kind(
    first: dict[str, Tensor], weights: dict[str, Tensor], folder: Path, *, has_dtype: bool
) -> None:
    for name in sorted(first.keys() | weights.keys()):
        if name not in first or name not in weights or weights[name].shape != first[name].shape:
            raise ValueError(
                f"{folder}: {name} is missing or has another shape than in the first checkpoint. "
                "Average checkpoints of one run."
            )
        if not has_dtype and weights[name].dtype != first[name].dtype:
            raise ValueError(
                f"{folder}: {name} is in {weights[name].dtype}, and in {first[name].dtype} in the "
                "first checkpoint. Choose the type of the mean: --dtype float32."
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
    """The checkpoints with the best loss, bleu, ... in the run's evaluations, best first."""
    metric = metric.removeprefix("eval_")
    key = f"eval_{metric}"
    folders = list_checkpoints(run)
    # If a signal postponed an evaluation, it is in a later log: the next checkpoint's or the run's.
    logs = [path for folder in (run, *folders) if (path := folder / TRAINER_STATE_NAME).is_file()]
    entries = [entry for path in logs for entry in read_json_object(path)["log_history"]]
    scores = {entry["step"]: entry[key] for entry in entries if key in entry}
    evaluated = [folder for folder in folders if update_of(folder) in scores]
    is_loss = metric.endswith(LOSSES)
    evaluated.sort(key=lambda folder: scores[update_of(folder)], reverse=not is_loss)
    return _check_number(evaluated[:number], number, run, f" evaluated by {metric}")


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
    if (folder / INT8_WEIGHTS_NAME).is_file():
        raise ValueError(
            f"{folder} holds weights in 8 bits. Average the models from which it was made."
        )
    if (folder / ADAPTER_CONFIG_NAME).is_file():
        raise ValueError(f"{folder} holds an adapter. Merge it: --merge_lora true.")
    if (folder / MANIFEST_FILE).is_file():
        check_checkpoint(folder)


def write_average(folders: list[Path], output: Path, dtype: str | None = None) -> None:
    """Write a model: weights are the mean over all folders, other files come from the last one.

    Its card has the metadata of the run's card. The folder is written completely or not at all.
    """
    check_unused(output)
    check_same_model(folders)
    for folder in folders:
        _check_folder(folder)
    card = _card_of_mean(folders, output.resolve().name)
    progress = tqdm(folders, desc="Averaging", unit="checkpoint")
    average = average_weights(progress, None if dtype is None else getattr(torch, dtype))
    with new_folder(output) as unfinished:
        for source in model_files(folders[-1]):
            if ".safetensors" not in source.name:
                target = unfinished / source.relative_to(folders[-1])
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(source, target)
        if card is not None:
            (unfinished / "README.md").write_text(card, "utf-8")
        if dtype is not None:  # fine-tuning in half precision would ruin the model
            config = read_json_object(unfinished / CONFIG_NAME) | {"dtype": "float32"}
            (unfinished / CONFIG_NAME).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        save_file(average, unfinished / SAFE_WEIGHTS_NAME, metadata={"format": "pt"})


def _card_of_mean(folders: list[Path], name: str) -> str | None:
    """Make a card from the card of the last model's run, without scores; None if it has no card."""
    last = folders[-1].resolve()
    owner = last.parent if last.name.startswith(PREFIX_CHECKPOINT_DIR) else last
    if not (owner / "README.md").is_file():
        return None
    card = ModelCard.load(owner / "README.md")
    card.data.eval_results = card.data.model_name = None
    names = ", ".join(f"`{folder.resolve().name}`" for folder in folders)
    card.text = f"# {name}\n\nThe weights are the mean of {names}, saved by a training run.\n"
    return str(card)
