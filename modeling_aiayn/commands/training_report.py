"""Write the model card and the scores of a finished training run."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from ..saved.loading import find_model
from ..saved.whole_files import write_file
from ..training import AiaynTrainer
from .public_paths import without_folders

# Templates of cards: one for each task of the Hub, and how the model was trained, which ends each.
CARDS = Path(__file__).parent.parent / "cards"
# The licence of a model that was trained from scratch.
LICENSE = "apache-2.0"


def run_facts(
    trainer: AiaynTrainer, dataset: str, examples: str, command: Sequence[str]
) -> dict[str, Any]:
    """Collect what the cards of all tasks say, without paths or names of this machine.

    Args:
        trainer: The finished run.
        dataset: Name of the training data.
        examples: Their number and kind, as in "29,000 training pairs".
        command: The command that started the run.
    """
    args, state = trainer.args, trainer.state
    return {
        "model_name": Path(args.output_dir).resolve().name,
        "parameters": f"{sum(each.numel() for each in trainer.model.parameters()):,}",
        "config": trainer.model.config,
        "dataset": dataset,
        "examples": examples,
        "command": without_folders(command),
        "updates": f"{state.global_step:,}",
        "epochs": state.epoch or 0.0,
        "minutes": round(_training_seconds(state.log_history) / 60),
        "hardware": _hardware(),
        "seed": args.seed,
        "kept": _kept_weights(trainer),
    }


def base_facts(base: str | None, hub: bool = False) -> dict[str, Any]:
    """What a card says of the model that training started from; None: from scratch."""
    if base is None:
        return {"base_model": None, "license": LICENSE}
    name = base if hub else Path(base).resolve().name
    return {"base_model": name, "license": _license(find_model(base), hub)}


def write_report(
    folder: str | Path,
    task: str,
    scores: dict[str, Any],
    metrics: dict[str, float],
    facts: dict[str, Any],
) -> None:
    """Write scores.json, and a filled card as README.md.

    Args:
        folder: The folder of the run.
        task: The Hub's name of the task, and of the card's template.
        scores: The content of scores.json.
        metrics: The scores that the card's metadata name.
        facts: The values of `run_facts` and `base_facts`; "scored", a sentence, and "table", of
            the results; and what the template and the metadata need besides.
    """
    results = [
        EvalResult(
            task_type=task,
            dataset_type=facts["dataset"],
            dataset_name=facts["dataset"],
            metric_type=name,
            metric_value=round(value, 2),
        )
        for name, value in metrics.items()
    ]
    dataset_id = facts.get("dataset_id")
    metadata = ModelCardData(
        language=facts.get("language"),
        license=facts["license"],
        library_name="peft" if facts.get("is_adapter") else "transformers",
        base_model=facts["base_model"],
        datasets=dataset_id and [dataset_id],
        pipeline_tag=task,
        tags=["aiayn", "attention-is-all-you-need"],
        model_name=facts["model_name"],
        eval_results=results,
    )
    text = "".join((CARDS / f"{name}.md").read_text("utf-8") for name in (task, "training"))
    card = ModelCard.from_template(metadata, template_str=text, **facts)
    write_file(Path(folder) / "README.md", str(card))
    write_file(Path(folder) / "scores.json", json.dumps(scores, indent=2) + "\n")


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
