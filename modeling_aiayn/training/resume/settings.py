"""The settings of a run: saved in each checkpoint, compared when the run resumes."""

import hashlib
import logging
from collections.abc import Iterable
from dataclasses import fields
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow.compute
import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedConfig, TrainingArguments

from ..arguments import PLATEAU_SCHEDULES

logger = logging.getLogger(__name__)

# These cannot change within a run: the batches or the optimizer's state would no longer fit.
FIXED = (
    *("seed", "data_seed", "world_size", "max_tokens_per_batch", "per_device_train_batch_size"),
    *("gradient_accumulation_steps", "pad_to_multiple_of", "train_sampling_strategy", "optim"),
    *("optim_args", "optim_target_modules", "adam_beta1", "adam_beta2", "adam_epsilon"),
    *("weight_decay", "bf16", "fp16", "ema_decay", "dataloader_drop_last", "ignore_data_skip"),
    *("neftune_noise_alpha", "r_drop"),
)
# Once set, these cannot change either: scores of two metrics cannot be compared.
COMPARISON = ("metric_for_best_model", "greater_is_better")
# Smaller values of metrics with these endings are better, as in news_loss of one of several sets.
LOSSES = ("loss", "perplexity")
# These set the length of a run. With larger values, a finished run can be continued.
LENGTH = ("max_steps", "num_train_epochs", "early_stopping_patience")
# The results do not depend on these. Any other argument may change too, and the log says so.
INCIDENTAL = frozenset(
    [
        *("output_dir", "resume", "resume_from_checkpoint", "local_rank", "ddp_backend"),
        *("do_train", "do_eval", "do_predict", "logging_strategy", "logging_steps", "debug"),
        *("logging_first_step", "log_on_each_node", "logging_nan_inf_filter", "log_level"),
        *("log_level_replica", "logging_dir", "disable_tqdm", "report_to", "run_name", "project"),
        *("trackio_space_id", "trackio_bucket_id", "trackio_static_space_id", "ddp_timeout"),
        *("include_num_input_tokens_seen", "per_device_eval_batch_size", "eval_accumulation_steps"),
        *("eval_do_concat_batches", "eval_use_gather_object", "batch_eval_metrics"),
        *("save_total_limit", "save_on_each_node", "enable_jit_checkpoint", "push_to_hub"),
        *("hub_token", "hub_private_repo", "hub_model_id", "hub_strategy", "hub_always_push"),
        *("hub_revision", "auto_find_batch_size", "skip_memory_metrics", "torch_empty_cache_steps"),
        *("dataloader_num_workers", "dataloader_pin_memory", "dataloader_persistent_workers"),
        *("dataloader_prefetch_factor", "dataloader_multiprocessing_context"),
    ]
)
# Where and how fast a run computes: announced when it resumes, not compared once it has finished.
PERFORMANCE = frozenset(
    [
        *("world_size", "use_cpu", "accelerator_config", "parallelism_config", "deepspeed", "tf32"),
        *("fsdp", "fsdp_config", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_static_graph"),
        *("ddp_find_unused_parameters", "torch_compile", "torch_compile_backend", "use_cache"),
        *("torch_compile_mode", "use_liger_kernel", "liger_kernel_config"),
        *("gradient_checkpointing", "gradient_checkpointing_kwargs"),
        *("activation_checkpointing", "activation_checkpointing_kwargs"),
    ]
)
NO_FILE = "no file"
# Ending of the names of hashes of data.
DATA = " data"
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
        | {name: value for name, value in _arguments(args, COMPARISON).items() if value is not None}
        | {f"{name}{DATA}": data_sha256(dataset) for name, dataset in datasets.items()}
        | {"number of trained parameters": trained, "frozen weights": _weights_sha256(frozen)},
        "free": free_arguments(args),
        "model": model_settings(model.config),
    }


def free_arguments(arguments: Any) -> dict[str, Any]:
    """The values of a dataclass that may change when a run resumes; a change logs a warning."""
    kept = {*FIXED, *COMPARISON, *INCIDENTAL}
    return _arguments(arguments, [each.name for each in fields(arguments) if each.name not in kept])


def run_flags(*arguments: Any) -> dict[str, Any]:
    """All flags that the result of a run depends on, except its length, by name.

    Files and folders count by their content, not by their path; NO_FILE stands for a missing one.
    The flags are those of dataclasses, TrainingArguments among them.
    """
    flags: dict[str, Any] = {}
    for each in arguments:
        flags |= free_arguments(each) | _arguments(each, (*FIXED, *COMPARISON))
    languages = [flags.get("source_lang"), flags.get("target_lang")]
    compared = {}
    for name, value in flags.items():
        paths = value if isinstance(value, list) else [value]
        is_folder = name == "start_from" and Path(value or "").is_dir()
        if value is not None and (name.endswith("_file") or is_folder):
            compared[name] = _content_sha256(paths, languages)
        elif name not in LENGTH and name not in PERFORMANCE:
            compared[name] = value
    return compared


def _content_sha256(paths: Iterable[str], languages: Iterable[str | None]) -> str:
    """A hash of files, of folders' weights, and of prefixes of one file for each language."""
    endings = ["", *(f".{name}{zipped}" for name in languages for zipped in ("", ".gz"))]
    candidates = [Path(f"{path}{ending}") for path in paths for ending in endings]
    folders = [sorted(path.glob("*.safetensors")) for path in candidates if path.is_dir()]
    files = [path for path in (*candidates, *chain(*folders)) if path.is_file()]
    if not files:
        return NO_FILE
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return f"sha256:{digest.hexdigest()}"


def _weights_sha256(weights: Iterable[Tensor]) -> str:
    """A hash of weights: an adapter belongs to the frozen weights that it was trained on."""
    digest = hashlib.sha256()
    for weight in weights:
        if type(weight.data) is Tensor and not weight.is_meta:  # neither distributed nor quantized
            content = weight.detach().cpu().flatten().view(torch.uint8)
            digest.update(content.numpy().tobytes())
    return digest.hexdigest()


def _arguments(args: Any, names: Iterable[str]) -> dict[str, Any]:
    return {name: _plain(getattr(args, name)) for name in names if hasattr(args, name)}


def model_settings(config: PreTrainedConfig) -> dict[str, Any]:
    """A model's sizes and options by name."""
    settings = {
        name: _plain(value)
        for name, value in config.to_dict().items()
        if name not in _INCIDENTAL and not name.startswith("_")
    }
    if settings.get("problem_type") is None:  # a classifier infers it from its first labels
        settings.pop("problem_type", None)
    return settings


def _plain(value: Any) -> Any:
    """The value as JSON returns it."""
    value = value.value if isinstance(value, Enum) else value
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
            is_list = hasattr(column.type, "value_type")
            parts = (pyarrow.compute.list_value_length, pyarrow.compute.list_flatten)
            for part in [part(column) for part in parts] if is_list else [column]:
                values = part.to_numpy()
                is_float = values.dtype.kind == "f"
                digest.update(values.astype("float64" if is_float else "int64").tobytes())
    return digest.hexdigest()


def check_settings(then: dict[str, Any], now: dict[str, Any]) -> None:
    """Check that a run has the fixed settings of the checkpoint that it resumes from."""
    # New data may change the vocabulary too: say first that the data changed.
    for name, *_ in _changes(then.get("fixed", {}), now["fixed"]):
        if name.endswith(DATA):
            raise ValueError(
                f"The {name} changed since this run began. Restore it, or start another run in a "
                "new --output_dir."
            )
    for kind in ("model", "fixed"):
        for name, value, before in _changes(then.get(kind, {}), now[kind]):
            raise ValueError(
                f"{name} was {before!r} when this run began, and is {value!r} now. Resume with "
                "the earlier value, or start another run in a new --output_dir."
            )
    for name, value, before in _changes(then.get("free", {}), now["free"]):
        if name == "lr_scheduler_type" and {value, before}.intersection(PLATEAU_SCHEDULES):
            raise ValueError(
                f"{name} was {before!r} when this run began, and is {value!r} now: the state of "
                "one does not fit the other. Resume with the earlier value."
            )
        logger.warning("%s is %r from here on; it was %r.", name, value, before)


def check_same_flags(then: dict[str, Any], now: dict[str, Any]) -> None:
    """Check that a finished run was started with the same flags; see `run_flags`."""
    for name, value, before in _changes(then, now):
        if value == NO_FILE:
            raise FileNotFoundError(
                f"This run is finished, and the files of --{name} are missing. Restore them, or "
                "give a new --output_dir for another run."
            )
        are_files = all(str(each).startswith("sha256:") for each in (before, value))
        was = (
            "had other content when the run was made"
            if are_files
            else f"was {before!r} then, and is {value!r} now"
        )
        raise ValueError(
            f"This run is finished. --{name} {was}. Give a new --output_dir for another run."
        )


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
