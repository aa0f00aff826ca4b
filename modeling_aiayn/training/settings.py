"""What a run is made of: noted in each checkpoint, compared when the run goes on."""

import hashlib
import logging
from pathlib import Path
from typing import Any

import pyarrow.compute
from datasets import Dataset
from transformers import PreTrainedConfig

from .arguments import AiaynTrainingArguments
from .checkpoints import read_manifest

logger = logging.getLogger(__name__)

# Another value makes another run: the batches, the state of the optimiser or the numbers would not
# be those that the checkpoint goes with.
FIXED = (
    *("seed", "data_seed", "world_size", "max_tokens_per_batch", "per_device_train_batch_size"),
    *("gradient_accumulation_steps", "pad_to_multiple_of"),
    *("train_sampling_strategy", "optim", "adam_beta1", "adam_beta2", "adam_epsilon"),
    *("weight_decay", "bf16", "fp16", "ema_decay"),
)
# Another value is used from then on, and said.
FREE = (
    *("learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "max_steps"),
    *("num_train_epochs", "label_smoothing_factor", "max_grad_norm", "early_stopping_patience"),
)
# What says nothing about a model's shape or numbers.
_INCIDENTAL = {"transformers_version", "dtype", "auto_map", "architectures", "_name_or_path"}


def run_settings(
    args: AiaynTrainingArguments, config: PreTrainedConfig, datasets: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """What a checkpoint notes of its run.

    Args:
        args: The run's arguments.
        config: The model's configuration, with its vocabularies' hashes.
        datasets: Training and validation data, by these names.

    Returns:
        Values by name: "fixed", "free", and the model's as "model".
    """
    return {
        "fixed": {name: _plain(getattr(args, name, None)) for name in FIXED}
        | {f"{name} data": data_sha256(dataset) for name, dataset in datasets.items()},
        "free": {name: _plain(getattr(args, name)) for name in FREE},
        "model": model_settings(config),
    }


def model_settings(config: PreTrainedConfig) -> dict[str, Any]:
    """A model's sizes and options.

    Args:
        config: The model's configuration.

    Returns:
        Values by name.
    """
    return {
        name: _plain(value)
        for name, value in config.to_dict().items()
        if name not in _INCIDENTAL and not name.startswith("_")
    }


def _plain(value: Any) -> Any:
    """As it comes back from JSON."""
    is_plain = isinstance(value, str | int | float | bool | list | dict) or value is None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value if is_plain else str(value)


def data_sha256(dataset: Any) -> str | None:
    """A hash of encoded pairs, or of texts with a class each, in their order.

    Args:
        dataset: "input_ids" and "labels", or what has a `data_sha256()` of its own.

    Returns:
        The hash; None for a stream, which cannot be looked at beforehand.
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


def refuse_changes(then: dict[str, Any], now: dict[str, Any]) -> None:
    """Compare a checkpoint's settings with a run's that is to go on from it.

    Args:
        then: The checkpoint's, as `run_settings` gave them.
        now: The run's.

    Raises:
        ValueError: One that must stay has another value.
    """
    for kind in ("fixed", "model"):
        for name, value, before in _changes(then.get(kind, {}), now[kind]):
            raise ValueError(
                f"{name} was {before!r} when this run began, and is {value!r} now. Go on with what "
                "it began with, or begin another run in a new --output_dir."
            )
    for name, value, before in _changes(then.get("free", {}), now["free"]):
        logger.warning("%s is %r from here on; it was %r.", name, value, before)


def is_more_patient(now: int, then: int) -> bool:
    """Whether a run that stopped early would have gone on.

    Args:
        now: Its early_stopping_patience now; 0: it never stops.
        then: What that was when it stopped.

    Returns:
        Whether it is to go on.
    """
    return then > 0 and (now == 0 or now > then)


def refuse_other_model(checkpoint: Path, config: PreTrainedConfig) -> None:
    """Compare a checkpoint's model with one that is to be built, before its vocabulary is there.

    Args:
        checkpoint: A whole checkpoint.
        config: The model's configuration; its vocabularies do not count.

    Raises:
        ValueError: A size or an option has another value.
    """
    of_vocabulary = {"vocab_size", "decoder_vocab_size", "vocabulary_sha256"}
    now = {
        name: value for name, value in model_settings(config).items() if name not in of_vocabulary
    }
    then = read_manifest(checkpoint).get("settings", {})
    refuse_changes(then, {"fixed": {}, "free": {}, "model": now})


def _changes(then: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Names, values and former values, of what both have and differs."""
    return [
        (name, now[name], then[name]) for name in now if name in then and now[name] != then[name]
    ]
