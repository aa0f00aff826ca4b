r"""Train a translation model from scratch.

aiayn train-translation multi30k_tiny.yaml --output_dir runs/multi30k \
    --train_file data/train --validation_file data/val --test_file data/test_2016_flickr

Without files or a dataset name, it trains on the embedded corpus. The output folder holds the
model, its card, scores.json and curves.png.
"""

import sys

from transformers import set_seed

from ..training import AiaynTrainer, AiaynTrainingArguments
from ..training.curves import CurvesCallback
from ..training.data import DataArguments
from ..training.evaluation import translation_metrics
from ..training.prepared_data import prepare_data_once
from ..training.progress import training_table
from ..training.run import Run
from ..training.setup import ModelArguments, build_config, build_model
from ..translation import Translator
from ..translation.evaluation import evaluate_translation, score_table
from .command_line import parse_arguments, typed_command
from .training_report import run_facts, write_report


def main() -> None:
    """Train, save the last or the best model, score it, and write its card."""
    data, model_arguments, args = parse_arguments(
        __doc__, DataArguments, ModelArguments, AiaynTrainingArguments
    )
    run = Run(args)
    if run.is_finished:
        sys.stdout.write(f"Already finished: {args.output_dir}\n")
        return
    run.check_model(build_config(model_arguments))
    set_seed(args.seed)
    prepared = prepare_data_once(args, data, model_arguments)
    splits = prepared.splits
    source, target = prepared.source_tokenizer, prepared.target_tokenizer
    model = build_model(model_arguments, source, target)
    metrics = translation_metrics(target, list(splits["validation"]["target"]))
    trainer = AiaynTrainer(
        model=model,
        args=args,
        train_dataset=splits["train"],
        eval_dataset=splits["validation"],
        processing_class=source,
        target_tokenizer=None if target is source else target,
        compute_metrics=metrics if args.predict_with_generate else None,
        callbacks=[CurvesCallback()],
    )
    trainer.train(run.checkpoint)
    trainer.save_model()
    if trainer.is_world_process_zero():
        held_out = splits["test" if "test" in splits else "validation"]
        # Reload from disk: with FSDP no process holds the whole model.
        translator = Translator.from_pretrained(args.output_dir, device=args.device)
        scores, _ = evaluate_translation(translator, held_out)
        facts = run_facts(trainer, data, splits, typed_command())
        write_report(args.output_dir, scores, facts)
        run.finish()
        sys.stdout.write(f"{training_table(trainer.state.log_history)}\n\n{score_table(scores)}\n")
