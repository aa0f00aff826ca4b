"""Train a translation model from scratch.

    python scripts/train_translation.py recipes/multi30k_tiny.yaml --output_dir runs/multi30k \
        --train_file data/train --validation_file data/val --test_file data/test_2016_flickr

Without files or a dataset's name it trains on the embedded corpus.
"""

import sys
from pathlib import Path

from transformers import set_seed

from modeling_aiayn.command_line import parse_arguments, run_script
from modeling_aiayn.training import AiaynTrainer, AiaynTrainingArguments
from modeling_aiayn.training.arguments import DataArguments, ModelArguments
from modeling_aiayn.training.curves import CurvesCallback
from modeling_aiayn.training.evaluation import translation_metrics
from modeling_aiayn.training.prepared_data import prepare_data_once
from modeling_aiayn.training.progress import training_table
from modeling_aiayn.training.report import run_facts, write_report
from modeling_aiayn.training.run import Run
from modeling_aiayn.training.setup import build_config, build_model
from modeling_aiayn.translation import Translator
from modeling_aiayn.translation.evaluation import evaluate_translation, score_table

MODEL_CARD = Path(__file__).parent.parent / "model_card.md"


def main() -> None:
    """Train, keep the last model or the best, score it, and write its card."""
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
        # As saved: of a model in parts no process has the whole.
        translator = Translator.from_pretrained(args.output_dir, device=args.device)
        scores, _ = evaluate_translation(translator, held_out)
        facts = run_facts(trainer, data, splits, sys.argv)
        write_report(args.output_dir, MODEL_CARD, scores, facts)
        run.finish()
        sys.stdout.write(f"{training_table(trainer.state.log_history)}\n\n{score_table(scores)}\n")


if __name__ == "__main__":
    run_script(main)
