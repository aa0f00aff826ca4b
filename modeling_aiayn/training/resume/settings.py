"""The settings of a run: saved in each checkpoint, compared when the run resumes."""

import hashlib
import json
import logging
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, TrainingArguments

from ...data.lines import content_sha256
from ..arguments import PLATEAU_SCHEDULES
from ..data import data_sha256

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
SCORES = ("metric_for_best_model", "greater_is_better")
# With other values of these, too, a finished run counts as a different run.
LEARNING = (
    *("learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps"),
    *("max_grad_norm", "label_smoothing_factor", "load_best_model_at_end"),
)
# Never compared: they only say where a run is, how it resumes, or how its data is prepared.
PLACE = (
    *("output_dir", "resume", "logging_dir", "run_name", "local_rank", "allow_inexact_resume"),
    *("preprocessing_num_workers", "overwrite_cache"),
)
# Metrics with these endings are better if smaller. One of several sets has a loss as news_loss.
LOSSES = ("loss", "perplexity")
# Fields of a configuration that change neither a model's shape nor its results.
UNCOMPARED_FIELDS = ("transformers_version", "dtype", "auto_map", "architectures")


def run_settings(
    args: TrainingArguments, model: Any, fingerprints: dict[str, str | None]
) -> dict[str, dict[str, Any]]:
    """Settings to save in a checkpoint: "arguments", "model", and "fingerprints"."""
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    return {
        "arguments": argument_values(args),
        "model": model_settings(model.config) | {"number of trained parameters": trained},
        "fingerprints": fingerprints,
    }


def argument_values(args: TrainingArguments) -> dict[str, Any]:
    """The training arguments by name, with values that JSON preserves."""
    values = args.to_dict() | {"world_size": args.world_size}
    return _plain({name: value for name, value in values.items() if name not in PLACE})


def model_settings(config: PreTrainedConfig) -> dict[str, Any]:
    """A model's sizes and options by name."""
    settings = {
        name: value
        for name, value in config.to_dict().items()
        if name not in UNCOMPARED_FIELDS and not name.startswith("_")
    }
    if settings.get("problem_type") is None:  # a classifier infers it from its first labels
        settings.pop("problem_type", None)
    return _plain(settings)


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(values, default=str))
    return plain


def run_fingerprints(model: Any, datasets: dict[str, Any]) -> dict[str, str | None]:
    """Hashes of the data, and of the frozen weights that an adapter is trained on."""
    frozen = [weight for weight in model.parameters() if not weight.requires_grad]
    hashes = {f"{name} data": data_sha256(dataset) for name, dataset in datasets.items()}
    return hashes | {"frozen weights": _weights_sha256(frozen)}


def _weights_sha256(weights: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for weight in weights:
        if type(weight.data) is Tensor and not weight.is_meta:  # neither distributed nor quantized
            content = weight.detach().cpu().flatten().view(torch.uint8)
            digest.update(content.numpy().tobytes())
    return digest.hexdigest()


def check_settings(before: dict[str, Any], now: dict[str, Any]) -> None:
    """Check that a run has the fixed settings of the checkpoint that it resumes from.

    All other arguments may change. The log says which.
    """
    # Check the data first: new data may change the vocabulary, too.
    for name, *_ in _changes(before["fingerprints"], now["fingerprints"]):
        raise ValueError(
            f"The {name} changed since this run began. Restore it, or start another run in a "
            "new --output_dir."
        )
    check_model_settings(before, now["model"])
    for name, value, former in _changes(before["arguments"], now["arguments"]):
        if name in FIXED or (name in SCORES and former is not None):
            raise ValueError(_CHANGED.format(name=name, former=former, value=value))
        if name == "lr_scheduler_type" and {value, former}.intersection(PLATEAU_SCHEDULES):
            raise ValueError(
                f"{name} was {former!r} when this run began, and is {value!r} now: the state of "
                "one does not fit the other. Resume with the earlier value."
            )
        logger.warning("%s is %r from here on; it was %r.", name, value, former)


_CHANGED = (
    "{name} was {former!r} when this run began, and is {value!r} now. Resume with the earlier "
    "value, or start another run in a new --output_dir."
)


def check_model_settings(before: dict[str, Any], model: dict[str, Any]) -> None:
    """Check that a model has the settings of a checkpoint's model."""
    for name, value, former in _changes(before["model"], model):
        raise ValueError(_CHANGED.format(name=name, former=former, value=value))


def flag_values(flags: Iterable[Any]) -> dict[str, Any]:
    """The values of a command's dataclasses by name, with content hashes of files and folders."""
    every = {name: value for group in flags for name, value in asdict(group).items()}
    values = {name: value for name, value in every.items() if name not in PLACE}
    languages = [values.get("source_lang"), values.get("target_lang")]
    for name, value in values.items():
        is_folder = name == "start_from" and Path(value or "").is_dir()
        is_stream = name == "train_file" and values.get("streaming")  # too large to read twice
        is_file = name.endswith("_file") or name in ("corpora", "add_pieces_from")
        if value is not None and (is_file or is_folder) and not is_stream:
            paths = value if isinstance(value, list) else [value]
            values[name] = f"sha256:{_content_sha256(paths, languages)}"
    return _plain(values)


def _content_sha256(paths: Iterable[str], languages: Iterable[str | None]) -> str:
    endings = ["", *(f".{name}{zipped}" for name in languages for zipped in ("", ".gz"))]
    candidates = [Path(f"{path}{ending}") for path in paths for ending in endings]
    folders = [sorted(path.glob("*.safetensors")) for path in candidates if path.is_dir()]
    files = [*candidates, *(path for folder in folders for path in folder)]
    return content_sha256(path for path in files if path.is_file())


def check_same_run(before: dict[str, Any], now: dict[str, Any]) -> None:
    """Check that a finished run was started with the same flags, data, and learning arguments."""
    compared = (*FIXED, *SCORES, *LEARNING)
    changes = _changes(before["arguments"], now["arguments"])
    changes = [change for change in changes if change[0] in compared and change[0] != "world_size"]
    for name, value, former in changes + _changes(before["flags"], now["flags"]):
        how = f"was {former!r} then, and is {value!r} now"
        if all(str(content).startswith("sha256:") for content in (former, value)):
            how = "had other content when the run was made"
        raise ValueError(
            f"This run is finished. --{name} {how}. Give a new --output_dir for another run."
        )


def _changes(before: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Name, new value and old value of each setting that both have with different values."""
    return [
        (name, now[name], before[name])
        for name in now
        if name in before and now[name] != before[name]
    ]
