"""What all training jobs share: their run's folder, their scores and their model card."""

import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from transformers import set_seed

from ..saved.loading import find_model
from ..saved.whole_files import write_file
from ..training import AiaynTrainer
from ..training.progress import training_table
from ..training.resume.run import Run
from .command_line import typed_command

# Templates of cards: one for each task of the Hub, and how the model was trained, which ends each.
CARDS = Path(__file__).parent.parent / "cards"
# The entry of a log with the training time.
SECONDS = "seconds_of_all_starts"
# The licence of a model that was trained from scratch.
LICENSE = "apache-2.0"


@dataclass(kw_only=True)
class Report:
    """What a training job knows of its model besides the trainer.

    Args:
        task: The Hub's name of the task, and of the card's template.
        dataset: Name of the training data.
        dataset_id: Their name on the Hub, if they come from there.
        examples: Their number and kind, as in "29,000 training pairs".
        example: An input for the card's code.
        scores: The content of scores.json.
        metrics: The scores that the card's metadata name.
        scored: A sentence on how the model was scored.
        table: The scores as text.
        start_from: The model that training started from. None: from scratch.
        hub: Whether start_from is a repository on the Hub.
        facts: What the template and the metadata need besides.
    """

    task: str
    dataset: str
    dataset_id: str | None = None
    examples: str
    example: str
    scores: dict[str, Any]
    metrics: dict[str, float]
    scored: str
    table: str
    start_from: str | None = None
    hub: bool = False
    facts: dict[str, Any] = field(default_factory=dict)


def start_run(args: Any, *flags: Any) -> Run | None:
    """Claim the folder of a run and set its seed; None if the run is finished already."""
    run = Run(args, *flags)
    if run.is_finished:
        sys.stdout.write(f"Already finished: {args.output_dir}\n")
        return None
    set_seed(args.seed)
    return run


def train_and_save(trainer: AiaynTrainer, run: Run) -> None:
    """Train, from the run's checkpoint if it has one, and save the model."""
    trainer.train(run.checkpoint)
    trainer.save_model()
    trainer.save_state()


def finish_run(trainer: AiaynTrainer, run: Run, report: Report) -> None:
    """Write the scores and the card, record that the run is finished, and print its results."""
    write_report(trainer, report, typed_command())
    run.finish()
    table = training_table(trainer.state.log_history)
    sys.stdout.write(f"{table}\n\n{report.table}\n")
    sys.stdout.write(f"{_parameters(trainer, report):,} parameters\n")


def write_report(trainer: AiaynTrainer, report: Report, command: Sequence[str]) -> None:
    """Write scores.json, and the card as README.md, without paths or names of this machine.

    The command is the one that started the run.
    """
    args, state = trainer.args, trainer.state
    base: dict[str, Any] = {"base_model": None, "license": LICENSE}
    if (start := report.start_from) is not None:
        name = start if report.hub else Path(start).resolve().name
        base = {"base_model": name, "license": _license(find_model(start), report.hub)}
    log = reversed(state.log_history)
    seconds = next((entry[SECONDS] for entry in log if SECONDS in entry), 0.0)
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
    """Fill the card of a task with facts, and write it as README.md."""
    results = [
        EvalResult(
            task_type=facts["task"],
            dataset_type=facts["dataset"],
            dataset_name=facts["dataset"],
            metric_type=name,
            metric_value=round(value, 2),
        )
        for name, value in facts["metrics"].items()
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
    names = (facts["task"], "training")
    text = "".join((CARDS / f"{name}.md").read_text("utf-8") for name in names)
    card = ModelCard.from_template(metadata, template_str=text, **facts)
    write_file(folder / "README.md", str(card))


def without_folders(command: Sequence[str]) -> str:
    """Keep at most the last folder of each absolute path in a command, and no home folder."""
    words = []
    for word in command:
        flag, equals, value = word.rpartition("=")
        path = Path(os.path.expanduser(value))
        if _is_home(path):
            value = "~"
        elif path.is_absolute():
            value = "/".join(path.parts[-2:] if _has_public_folder(path) else path.parts[-1:])
        words.append(flag + equals + value)
    return shlex.join(words)


def corpus_name(file: str) -> str:
    """The name of a corpus: the folder of its file, or the file if the folder is private."""
    path = Path(file).resolve()
    return path.parent.name if _has_public_folder(path) else path.name


def _has_public_folder(path: Path) -> bool:
    """Whether a path's folder may be named: it is neither the root nor a user's home."""
    return path.parent != Path("/") and not _is_home(path.parent)


def _is_home(path: Path) -> bool:
    return path == Path(os.path.expanduser("~")) or path.parent in map(Path, ("/home", "/Users"))


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


def _parameters(trainer: AiaynTrainer, report: Report) -> int:
    """The number of parameters; merging removes those of an adapter."""
    is_merged = report.facts.get("is_merged", False)
    parameters = trainer.model.named_parameters()
    return sum(values.numel() for name, values in parameters if not (is_merged and "lora_" in name))


def _kept_weights(trainer: AiaynTrainer) -> str:
    args, state = trainer.args, trainer.state
    if not args.load_best_model_at_end or state.best_model_checkpoint is None:
        return "the last weights"
    best = f"the checkpoint with the best validation {args.metric_for_best_model}"
    # The best step of the run may not have been saved.
    is_best_step = state.best_model_checkpoint.endswith(f"-{state.best_global_step}")
    return f"{best} ({state.best_metric:.2f})" if is_best_step else f"{best} of those saved"


def _hardware() -> str:
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return f"{torch.get_num_threads()} of {os.cpu_count()} CPU cores"
