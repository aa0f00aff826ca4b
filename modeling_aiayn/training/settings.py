"""The settings of a run: saved in each checkpoint, compared when the run resumes."""

import hashlib
import logging
from collections.abc import Iterable
from typing import Any

import pyarrow.compute
import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedConfig, TrainingArguments

logger = logging.getLogger(__name__)

# These cannot change within a run: the batches or the optimizer's state would no longer fit.
FIXED = (
    *("seed", "data_seed", "world_size", "max_tokens_per_batch", "per_device_train_batch_size"),
    *("gradient_accumulation_steps", "pad_to_multiple_of", "train_sampling_strategy", "optim"),
    *("adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay", "bf16", "fp16", "ema_decay"),
)
# These can: the new value applies from the resumed update on, and the log says so.
FREE = (
    *("learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "max_steps"),
    *("num_train_epochs", "label_smoothing_factor", "max_grad_norm", "early_stopping_patience"),
)
# Fields of a configuration that change neither a model's shape nor its results.
_INCIDENTAL = {"transformers_version", "dtype", "auto_map", "architectures", "_name_or_path"}
# Fields that are known only after a vocabulary has been built.
_OF_VOCABULARY = {"vocab_size", "decoder_vocab_size", "vocabulary_sha256"}


def run_settings(
    args: TrainingArguments, model: Any, datasets: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """Settings to save in a checkpoint: "fixed", "free", and the model's as "model"."""
    trained = sum(each.numel() for each in model.parameters() if each.requires_grad)
    frozen = [each for each in model.parameters() if not each.requires_grad]
    return {
        "fixed": _arguments(args, FIXED)
        | {f"{name} data": data_sha256(dataset) for name, dataset in datasets.items()}
        | {"number of trained parameters": trained, "frozen weights": _weights_sha256(frozen)},
        "free": _arguments(args, FREE),
        "model": model_settings(model.config),
    }


def _weights_sha256(weights: Iterable[Tensor]) -> str:
    """A hash of weights: an adapter belongs to the frozen weights that it was trained on."""
    digest = hashlib.sha256()
    for weight in weights:
        if type(weight.data) is Tensor and not weight.is_meta:  # neither distributed nor quantized
            content = weight.detach().cpu().flatten().view(torch.uint8)
            digest.update(content.numpy().tobytes())
    return digest.hexdigest()


def _arguments(args: TrainingArguments, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: _plain(getattr(args, name)) for name in names if hasattr(args, name)}


def model_settings(config: PreTrainedConfig) -> dict[str, Any]:
    """A model's sizes and options by name."""
    return {
        name: _plain(value)
        for name, value in config.to_dict().items()
        if name not in _INCIDENTAL and not name.startswith("_")
    }


def _plain(value: Any) -> Any:
    """The value as JSON returns it."""
    is_plain = isinstance(value, str | int | float | bool | list | dict) or value is None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value if is_plain else str(value)


def data_sha256(dataset: Any) -> str | None:
    """A hash of a dataset's "input_ids" and "labels" in their order; None for a stream.

    A dataset may have its own method `data_sha256`.
    """
    if hasattr(dataset, "data_sha256"):
        return dataset.data_sha256()
    columns = ["input_ids", "labels"]
    if not isinstance(dataset, Dataset) or not {*columns} <= {*dataset.column_names}:
        return None
    digest = hashlib.sha256()
    for table in dataset.select_columns(columns).with_format("arrow").iter(10_000):
        for name in columns:
            column = table[name]
            is_number = pyarrow.types.is_integer(column.type)
            parts = (pyarrow.compute.list_value_length, pyarrow.compute.list_flatten)
            for part in [column] if is_number else [part(column) for part in parts]:
                digest.update(part.to_numpy().astype("int64").tobytes())
    return digest.hexdigest()


def check_settings(then: dict[str, Any], now: dict[str, Any]) -> None:
    """Check that a run has the fixed settings of the checkpoint that it resumes from."""
    for kind in ("model", "fixed"):
        for name, value, before in _changes(then.get(kind, {}), now[kind]):
            raise ValueError(
                f"{name} was {before!r} when this run began, and is {value!r} now. Resume with "
                "the earlier value, or start another run in a new --output_dir."
            )
    for name, value, before in _changes(then.get("free", {}), now["free"]):
        logger.warning("%s is %r from here on; it was %r.", name, value, before)


def check_model_settings(then: dict[str, Any], config: PreTrainedConfig) -> None:
    """Check a model to build against a checkpoint's; the vocabulary is not known yet."""
    now = {
        name: value for name, value in model_settings(config).items() if name not in _OF_VOCABULARY
    }
    check_settings(then, {"fixed": {}, "free": {}, "model": now})


def is_more_patient(now: int, then: int) -> bool:
    """Whether a run that stopped early continues with another patience; 0: never stop."""
    return then > 0 and (now == 0 or now > then)


def _changes(then: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Names, new values and old values of the settings that both have and that differ."""
    return [
        (name, now[name], then[name]) for name in now if name in then and now[name] != then[name]
    ]
