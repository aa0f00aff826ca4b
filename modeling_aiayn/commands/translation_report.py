"""Write the model card and the scores of a finished translation run."""

import json
from collections.abc import Sequence
from typing import Any

from datasets import DatasetDict

from ..training import AiaynTrainer
from ..training.data import DataArguments
from ..training.fine_tuning import FineTuningArguments
from ..translation.evaluation import score_table
from ..translation.options import SearchOptions, search_defaults
from .public_paths import corpus_name
from .training_report import base_facts, run_facts, write_report


def write_translation_report(
    trainer: AiaynTrainer,
    data: DataArguments,
    fine_tuning: FineTuningArguments,
    splits: DatasetDict,
    scores: dict[str, Any],
    command: Sequence[str],
) -> None:
    """Write the scores of `score_run` and the card; command is the one that started the run."""
    dataset = data.dataset_name or "the built-in English-German grammar"
    if data.train_file is not None:
        dataset = " and ".join(corpus_name(file) for file in data.train_file)
    facts = run_facts(trainer, dataset, f"{len(splits['train']):,} training pairs", command)
    facts |= base_facts(fine_tuning.start_from, fine_tuning.hub)
    held_out = splits["test" if "test" in splits else "validation"]
    search = SearchOptions(**search_defaults(trainer.model.generation_config))
    source_lang, target_lang = data.languages()
    facts |= {
        "language": [source_lang, target_lang],
        "source_lang": source_lang,
        "target_lang": target_lang,
        "parameters": f"{_parameters(trainer.model, fine_tuning.merge_lora):,}",
        "example": json.dumps(held_out["source"][0], ensure_ascii=False),
        "has_target_tokenizer": trainer.target_tokenizer is not None,
        "dataset_id": data.dataset_name,
        "hub": fine_tuning.hub,
        "is_adapter": fine_tuning.lora_rank is not None and not fine_tuning.merge_lora,
        "scored": _how_scored(len(held_out), search),
        "table": score_table(scores),
    }
    metrics = {name: value for name, value in scores.items() if isinstance(value, float)}
    write_report(trainer.args.output_dir, "translation", scores, metrics, facts)


def _parameters(model: Any, is_merged: bool) -> int:
    """The number of parameters; merging removes those of an adapter."""
    if is_merged:
        model = model.get_base_model()
    names = dict(model.named_parameters())
    return sum(each.numel() for name, each in names.items() if not is_merged or "lora_" not in name)


def _how_scored(pairs: int, search: SearchOptions) -> str:
    return (
        f"These scores are for {pairs:,} held-out pairs, decoded with {search.num_beams} beams and "
        f"length penalty {search.length_penalty}\n({search.length_normalization}). The sacreBLEU "
        "signature is beside each score. Perplexity is per target token, without label\nsmoothing."
    )
