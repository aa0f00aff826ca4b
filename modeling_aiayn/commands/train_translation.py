r"""Train a translation model from scratch, or fine-tune a saved one.

aiayn train-translation multi30k_tiny.yaml --output_dir runs/multi30k \
    --train_file data/train --validation_file data/val --test_file data/test_2016_flickr
aiayn train-translation finetune.yaml --start_from aiayn-en-de --output_dir runs/captions \
    --train_file data/train --validation_file data/val --test_file data/test_2016_flickr

Without files or a dataset name, it trains on the built-in English-German grammar. The output
folder holds the model, its card, scores.json and curves.png.
"""

import sys
from typing import Any

from datasets import DatasetDict
from transformers import set_seed

from ..data.metrics import SCORES
from ..saved.languages import set_languages
from ..training import AiaynTrainer, AiaynTrainingArguments
from ..training.curves import CurvesCallback
from ..training.data import DataArguments, check_max_length
from ..training.evaluation import translation_metrics
from ..training.fine_tuning import (
    FineTuningArguments,
    SavedModel,
    check_both_directions,
    complete_adapter,
    replace_adapter,
)
from ..training.parallel import end_zero3
from ..training.prepared_data import PreparedData, prepare_data_once
from ..training.progress import training_table
from ..training.resume.run import Run
from ..training.resume.settings import LOSSES
from ..training.setup import ModelArguments, NewModel
from ..translation import Translator
from ..translation.evaluation import evaluate_translation, score_table
from .command_line import parse_arguments, typed_command
from .translation_report import write_translation_report

# Scores of an evaluation; see `translation_metrics`.
METRICS = (*LOSSES, *SCORES)


def main() -> None:
    """Train, save the last or the best model, score it, and write its card."""
    data, model_arguments, fine_tuning, args = parse_arguments(
        __doc__, DataArguments, ModelArguments, FineTuningArguments, AiaynTrainingArguments
    )
    check_evaluation(args)
    languages = data.languages(fine_tuning.start_from, fine_tuning.hub)
    data.source_lang, data.target_lang = languages
    run = Run(args, data, model_arguments, fine_tuning)
    if run.is_finished:
        sys.stdout.write(f"Already finished: {args.output_dir}\n")
        return
    set_seed(args.seed)
    start: NewModel | SavedModel = (
        SavedModel(fine_tuning, model_arguments, args)
        if fine_tuning.start_from
        else NewModel(model_arguments)
    )
    run.check_model(start.config)
    check_max_length(data, start.config)
    if data.both_directions and isinstance(start, SavedModel):
        check_both_directions(*start.tokenizers())
    prepared = prepare_data_once(args, data, start.tokenizers)
    set_languages(prepared.source_tokenizer, *languages)
    trainer = build_trainer(args, start, prepared)
    trainer.train(run.checkpoint)
    trainer.save_model()
    trainer.save_state()
    if trainer.is_world_process_zero():
        scores = score_run(trainer, fine_tuning, prepared.splits)
        command = typed_command()
        write_translation_report(trainer, data, fine_tuning, prepared.splits, scores, command)
        run.finish()
        sys.stdout.write(f"{training_table(trainer.state.log_history)}\n\n{score_table(scores)}\n")


def build_trainer(
    args: AiaynTrainingArguments, start: NewModel | SavedModel, prepared: PreparedData
) -> AiaynTrainer:
    """Build the model and its trainer."""
    splits = prepared.splits
    source, target = prepared.source_tokenizer, prepared.target_tokenizer
    metrics = translation_metrics(target, list(splits["validation"]["target"]))
    return AiaynTrainer(
        model=start.build(source, target),
        args=args,
        train_dataset=splits["train"],
        eval_dataset=splits["validation"],
        processing_class=source,
        target_tokenizer=None if target is source else target,
        compute_metrics=metrics if args.predict_with_generate else None,
        callbacks=[CurvesCallback()],
    )


def check_evaluation(args: AiaynTrainingArguments) -> None:
    """Check that the evaluations can give the scores that the run needs."""
    metric = (args.metric_for_best_model or "loss").removeprefix("eval_")
    if metric not in METRICS:
        raise ValueError(
            f"metric_for_best_model must be one of {', '.join(METRICS)}, got {metric!r}."
        )
    if metric not in LOSSES and args.prediction_loss_only:
        raise ValueError(
            f"metric_for_best_model={metric} cannot be used with prediction_loss_only. Leave out "
            "one of them."
        )
    if metric not in LOSSES and not args.predict_with_generate:
        raise ValueError(
            f"metric_for_best_model={metric} needs translations. Pass --predict_with_generate "
            "true, or --metric_for_best_model loss."
        )
    if args.predict_with_generate and (args.batch_eval_metrics or not args.eval_do_concat_batches):
        raise ValueError(
            "BLEU is computed over all validation pairs together, so batch_eval_metrics must be "
            "false and eval_do_concat_batches true. Leave them out, or pass "
            "--predict_with_generate false."
        )


def score_run(
    trainer: AiaynTrainer, fine_tuning: FineTuningArguments, splits: DatasetDict
) -> dict[str, Any]:
    """Score the saved model on the test pairs, and under "before" the one that it started from."""
    args, held_out = trainer.args, splits["test" if "test" in splits else "validation"]
    if fine_tuning.lora_rank is not None:
        complete_adapter(args.output_dir, str(fine_tuning.start_from))
    # Reload from disk: with FSDP and ZeRO-3 no process holds the whole model.
    end_zero3()
    options = {"hub": fine_tuning.hub, "device": args.device}
    # An adapter was trained on a base in float32: a merge in half precision would round it.
    dtype = "auto" if fine_tuning.lora_rank is None else "float32"
    translator = Translator.from_pretrained(args.output_dir, dtype=dtype, **options)
    if fine_tuning.merge_lora:
        replace_adapter(translator.model, args.output_dir)
    scores, _ = evaluate_translation(translator, held_out)
    if fine_tuning.start_from is not None:
        translator = Translator.from_pretrained(fine_tuning.start_from, dtype="float32", **options)
        scores["before"], _ = evaluate_translation(translator, held_out)
    return scores
