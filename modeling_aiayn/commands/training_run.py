"""The run's folder, the scores and the model card of training jobs."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from transformers import set_seed

from ..data.metrics import only_numbers
from ..data.public_paths import without_folders
from ..saved.loading import find_model
from ..saved.whole_files import write_file
from ..training import AiaynTrainer
from ..training.progress import training_table
from ..training.resume.run import Run
from .command_line import typed_command

# Templates of cards: one for each task of the Hub, and one about the training, which comes last.
CARDS = Path(__file__).parent.parent / "cards"


@dataclass(kw_only=True)
class Report:
    """Facts about a trained model, for its scores.json and its card."""

    task: str  # the Hub's name of the task, which is also the name of the card's template
    dataset: str
    dataset_id: str | None = None  # its name on the Hub
    examples: str  # the number of training examples, and their kind
    example: str  # an input for the card's code
    scores: dict[str, Any]  # the content of scores.json
    metrics: dict[str, float]  # the scores in the card's metadata
    scored: str  # how the model was scored
    table: str  # the scores as text
    start_from: str | None = None  # the model that training started from
    hub: bool = False  # whether start_from is a repository on the Hub
    facts: dict[str, Any] = field(default_factory=dict)  # more values for the template


def start_run(args: Any, *flags: Any) -> Run | None:
    """Claim the folder of a run and set its seed; return None if the run is already finished."""
    run = Run(args, *flags)
    if run.is_finished:
        sys.stdout.write(f"Already finished: {args.output_dir}\n")
        return None
    set_seed(args.seed)
    return run


def train_and_save(trainer: AiaynTrainer, run: Run) -> None:
    trainer.train(run.checkpoint)
    trainer.save_model()
    trainer.save_state()


def finish_run(trainer: AiaynTrainer, run: Run, report: Report) -> None:
    """Write the scores and the card, record that the run is finished, and print its results."""
    write_report(trainer, report, typed_command())
    run.finish()
    table, parameters = training_table(trainer.state.log_history), _parameters(trainer, report)
    sys.stdout.write(f"{table}\n\n{report.table}\n{parameters:,} parameters\n")


def write_report(trainer: AiaynTrainer, report: Report, command: Sequence[str]) -> None:
    """Write scores.json, and the card with the run's command, without paths of this machine."""
    args, state = trainer.args, trainer.state
    base: dict[str, Any] = {"base_model": None, "license": "apache-2.0"}
    if (start := report.start_from) is not None:
        name = start if report.hub else Path(start).resolve().name
        base = {"base_model": name, "license": _license(find_model(start), report.hub)}
    key = "seconds_of_all_starts"
    seconds = next((entry[key] for entry in reversed(state.log_history) if key in entry), 0.0)
    facts = {
        **vars(report),
        "example": json.dumps(report.example, ensure_ascii=False),
        "model_name": Path(args.output_dir).resolve().name,
        "parameters": f"{_parameters(trainer, report):,}",
        "config": trainer.model.config,
        "command": without_folders(command),
        "updates": f"{state.global_step:,}",
        "epochs": state.epoch or 0.0,
        "minutes": round(seconds / 60),
        "hardware": _hardware(),
        "seed": args.seed,
        "kept": _kept_weights(trainer),
        **base,
        **report.facts,
    }
    folder = Path(args.output_dir)
    write_card(folder, facts)
    write_file(folder / "scores.json", json.dumps(report.scores, indent=2) + "\n")


def write_card(folder: Path, facts: dict[str, Any]) -> None:
    data = {"dataset_type": facts["dataset"], "dataset_name": facts["dataset"]}
    task, directions = facts["task"], facts.get("scores", {}).get("directions")
    results = [
        EvalResult(task, metric_type=name, metric_value=round(value, 2), dataset_config=one, **data)
        for one, scores in (directions or {None: facts["metrics"]}).items()
        for name, value in only_numbers(scores).items()
    ]
    metadata = ModelCardData(
        language=facts.get("language"),
        license=facts["license"],
        library_name="peft" if facts.get("is_adapter") else "transformers",
        base_model=facts["base_model"],
        datasets=facts["dataset_id"] and [facts["dataset_id"]],
        pipeline_tag=facts["task"],
        tags=["aiayn", "attention-is-all-you-need"],
        model_name=facts["model_name"],
        eval_results=results,
    )
    text = "".join((CARDS / f"{x}.md").read_text("utf-8") for x in (facts["task"], "training"))
    card = ModelCard.from_template(metadata, template_str=text, **facts)
    write_file(folder / "README.md", str(card))


def _license(base: str | Path, hub: bool) -> str:
    """Return the license in a model's card, from the Hub only if hub is true; else "other"."""
    card = Path(base, "README.md")
    if not (hub or card.is_file()):
        return "other"
    try:
        return ModelCard.load(card if card.is_file() else base).data.license or "other"
    except (OSError, ValueError, yaml.YAMLError):
        return "other"


def _parameters(trainer: AiaynTrainer, report: Report) -> int:
    """Count the parameters, without those of a merged adapter."""
    is_merged = report.facts.get("is_merged", False)
    parameters = trainer.model.named_parameters()
    return sum(values.numel() for name, values in parameters if not (is_merged and "lora_" in name))


def _kept_weights(trainer: AiaynTrainer) -> str:
    args, state = trainer.args, trainer.state
    if not args.load_best_model_at_end or state.best_model_checkpoint is None:
        return "the last weights"
    best = f"the checkpoint with the best validation {args.metric_for_best_model}"
    if state.best_model_checkpoint.endswith(f"-{state.best_global_step}"):
        return f"{best} ({state.best_metric:.2f})"
    return f"{best} of those saved"


def _hardware() -> str:
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return f"{torch.get_num_threads()} of {os.cpu_count()} CPU cores"
