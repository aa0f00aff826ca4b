r"""Train a text classifier: an encoder, pooling and one linear layer.

aiayn train-classifier --train_file data/train.jsonl.gz --output_dir runs/imdb \
    --test_file data/test.jsonl.gz --config_overrides 'encoder_layers: 6'

The output folder holds the best model, scores.json, curves.png and confusion.png. Use the model
with `aiayn classify`.
"""

import json
import sys
from pathlib import Path

from transformers import set_seed

from ..classification.confusion import draw_confusion
from ..classification.labelled_texts import (
    TextDataArguments,
    encode_texts,
    load_labelled_splits,
)
from ..classification.scores import classification_metrics, score_classes
from ..classification.training import (
    ClassifierArguments,
    ClassifierTrainingArguments,
    build_classifier,
)
from ..training import AiaynTrainer
from ..training.curves import CurvesCallback
from ..training.run import Run
from ..whole_files import write_file
from .command_line import parse_arguments


def main() -> None:
    """Train, save the best model, score it."""
    data, model_arguments, args = parse_arguments(
        __doc__, TextDataArguments, ClassifierArguments, ClassifierTrainingArguments
    )
    run = Run(args, data, model_arguments)
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
    predicted = trainer.predict(encoded["test" if "test" in encoded else "validation"])
    if trainer.is_world_process_zero():
        names = splits["train"].features["label"].names
        scores = score_classes(predicted.predictions.argmax(-1), predicted.label_ids, names)
        folder = Path(args.output_dir)
        summary = {"accuracy": scores.accuracy, "macro_f1": scores.macro_f1}
        write_file(folder / "scores.json", json.dumps(summary, indent=2) + "\n")
        draw_confusion(scores, folder / "confusion.png")
        run.finish()
        sys.stdout.write(f"{scores}\n{model.num_parameters():,} parameters\n")
