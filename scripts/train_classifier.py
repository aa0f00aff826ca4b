"""Train a classifier of texts: the encoder, its states pooled, and one layer.

    python scripts/train_classifier.py --train_file data/train.jsonl.gz --output_dir runs/imdb \
        --test_file data/test.jsonl.gz --config_overrides 'encoder_layers: 6'

It leaves the best model, scores.json, curves.png and confusion.png in its folder; classify.py uses
the model.
"""

import json
import sys
from pathlib import Path

from transformers import set_seed

from modeling_aiayn.classification.arguments import (
    ClassifierArguments,
    ClassifierTrainingArguments,
    TextDataArguments,
)
from modeling_aiayn.classification.confusion import draw_confusion
from modeling_aiayn.classification.labelled_texts import encode_texts, load_labelled_splits
from modeling_aiayn.classification.scores import classification_metrics, score_classes
from modeling_aiayn.classification.training import build_classifier
from modeling_aiayn.command_line import parse_arguments, run_script
from modeling_aiayn.training import AiaynTrainer
from modeling_aiayn.training.curves import CurvesCallback
from modeling_aiayn.training.run import Run


def main() -> None:
    """Train, keep the best model, score it."""
    data, model_arguments, args = parse_arguments(
        __doc__, TextDataArguments, ClassifierArguments, ClassifierTrainingArguments
    )
    run = Run(args)
    if run.is_finished:
        sys.stdout.write(f"Already finished: {args.output_dir}\n")
        return
    set_seed(args.seed)
    splits = load_labelled_splits(data, args.seed)
    model, tokenizer = build_classifier(model_arguments, splits["train"], data.max_length)
    encoded = {
        name: encode_texts(split, tokenizer, data.max_length, name)
        for name, split in splits.items()
    }
    trainer = AiaynTrainer(
        model=model,
        args=args,
        train_dataset=encoded["train"],
        eval_dataset=encoded["validation"],
        processing_class=tokenizer,
        compute_metrics=classification_metrics,
        callbacks=[CurvesCallback()],
    )
    trainer.train(run.checkpoint)
    trainer.save_model()
    # The trainer sorts texts by length: labels come with the predictions.
    found = trainer.predict(encoded["test" if "test" in encoded else "validation"])
    if trainer.is_world_process_zero():
        names = splits["train"].features["label"].names
        scores = score_classes(found.predictions.argmax(-1), found.label_ids, names)
        folder = Path(args.output_dir)
        summary = {"accuracy": scores.accuracy, "macro_f1": scores.macro_f1}
        (folder / "scores.json").write_text(json.dumps(summary, indent=2) + "\n", "utf-8")
        draw_confusion(scores, folder / "confusion.png")
        run.finish()
        sys.stdout.write(f"{scores}\n{model.num_parameters():,} parameters\n")


if __name__ == "__main__":
    run_script(main)
