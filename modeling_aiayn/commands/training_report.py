"""Write the model card and the scores of a finished translation run."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from datasets import DatasetDict
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from ..loading import find_model
from ..training import AiaynTrainer
from ..training.data import DataArguments
from ..training.fine_tuning import FineTuningArguments
from ..translation.evaluation import score_table
from ..translation.options import SearchOptions, search_defaults
from ..whole_files import write_file
from .public_paths import corpus_name, without_folders

TEMPLATE = Path(__file__).parent.parent / "cards" / "translation.md"


def run_facts(
    trainer: AiaynTrainer,
    data: DataArguments,
    fine_tuning: FineTuningArguments,
    splits: DatasetDict,
    command: Sequence[str],
) -> dict[str, Any]:
    """Collect the values that the card's template needs, without paths or names of this machine.

    The command is the one that started the run.
    """
    args, state = trainer.args, trainer.state
    held_out = splits["test" if "test" in splits else "validation"]
    dataset = data.dataset_name or "the embedded English-German grammar"
    if data.train_file is not None:
        dataset = " and ".join(corpus_name(file) for file in data.train_file)
    base = fine_tuning.start_from
    source_lang, target_lang = data.languages()
    return {
        "source_lang": source_lang,
        "target_lang": target_lang,
        "model_name": Path(args.output_dir).resolve().name,
        "parameters": f"{_parameters(trainer.model, fine_tuning.merge_lora):,}",
        "config": trainer.model.config,
        "example": json.dumps(held_out["source"][0], ensure_ascii=False),
        "has_target_tokenizer": trainer.target_tokenizer is not None,
        "dataset": dataset,
        "dataset_id": data.dataset_name,
        "base_model": base if base is None or fine_tuning.hub else Path(base).resolve().name,
        "hub": fine_tuning.hub,
        "is_adapter": fine_tuning.lora_rank is not None and not fine_tuning.merge_lora,
        "license": "apache-2.0" if base is None else _license(find_model(base), fine_tuning.hub),
        "train_pairs": f"{len(splits['train']):,}",
        "command": without_folders(command),
        "updates": f"{state.global_step:,}",
        "epochs": state.epoch or 0.0,
        "minutes": round(_training_seconds(state.log_history) / 60),
        "hardware": _hardware(),
        "seed": args.seed,
        "kept": _kept_weights(trainer),
        "scored_pairs": f"{len(held_out):,}",
        "search": SearchOptions(**search_defaults(trainer.model.generation_config)),
    }


def write_report(folder: str | Path, scores: dict[str, Any], facts: dict[str, Any]) -> None:
    """Write scores.json, and the card filled with the values of `run_facts` as README.md."""
    results = [
        EvalResult(
            task_type="translation",
            dataset_type=facts["dataset"],
            dataset_name=facts["dataset"],
            metric_type=name,
            metric_value=round(value, 2),
        )
        for name, value in scores.items()
        if isinstance(value, float)
    ]
    metadata = ModelCardData(
        language=[facts["source_lang"], facts["target_lang"]],
        license=facts["license"],
        library_name="peft" if facts["is_adapter"] else "transformers",
        base_model=facts["base_model"],
        datasets=facts["dataset_id"] and [facts["dataset_id"]],
        pipeline_tag="translation",
        tags=["aiayn", "attention-is-all-you-need"],
        model_name=facts["model_name"],
        eval_results=results,
    )
    text = TEMPLATE.read_text("utf-8")
    card = ModelCard.from_template(metadata, template_str=text, table=score_table(scores), **facts)
    write_file(Path(folder) / "README.md", str(card))
    write_file(Path(folder) / "scores.json", json.dumps(scores, indent=2) + "\n")


def _parameters(model: Any, is_merged: bool) -> int:
    """The number of parameters; merging removes those of an adapter."""
    if is_merged:
        model = model.get_base_model()
    names = dict(model.named_parameters())
    return sum(each.numel() for name, each in names.items() if not is_merged or "lora_" not in name)


def _license(base: str | Path, hub: bool) -> str:
    """The licence in a model's card; "other" if there is no card, or no licence in it.

    The card is read from the Hub only if base was said to be a repository there.
    """
    card = Path(base, "README.md")
    if not (hub or card.is_file()):
        return "other"
    try:
        return ModelCard.load(card if card.is_file() else base).data.license or "other"
    except (OSError, ValueError, yaml.YAMLError):
        return "other"


def _kept_weights(trainer: AiaynTrainer) -> str:
    args, state = trainer.args, trainer.state
    if not args.load_best_model_at_end or state.best_model_checkpoint is None:
        return "the last weights"
    best = f"the checkpoint with the best validation {args.metric_for_best_model}"
    # The best step of the run may not have been saved.
    is_best_step = state.best_model_checkpoint.endswith(f"-{state.best_global_step}")
    return f"{best} ({state.best_metric:.2f})" if is_best_step else f"{best} of those saved"


def _training_seconds(log_history: list[dict[str, Any]]) -> float:
    summaries = [entry for entry in log_history if "seconds_of_all_starts" in entry]
    return summaries[-1]["seconds_of_all_starts"] if summaries else 0.0


def _hardware() -> str:
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return f"{torch.get_num_threads()} of {os.cpu_count()} CPU cores"
