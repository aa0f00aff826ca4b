r"""Train a text classifier: an encoder, pooling and one linear layer.

aiayn train-classifier --train_file data/train.jsonl.gz --output_dir runs/imdb \
    --test_file data/test.jsonl.gz --config_overrides 'encoder_layers: 6'

The output folder holds the best model, its card, scores.json, curves.png and confusion.png. Use
the model with `aiayn classify`.
"""

import json
import sys
from pathlib import Path

from datasets import DatasetDict
from transformers import set_seed

from ..classification.labelled_texts import (
    TextDataArguments,
    encode_texts,
    load_labelled_splits,
)
from ..classification.scores import (
    ClassificationScores,
    classification_metrics,
    draw_confusion,
    score_classes,
)
from ..classification.training import (
    ClassifierArguments,
    ClassifierTrainingArguments,
    build_classifier,
)
from ..training import AiaynTrainer
from ..training.curves import CurvesCallback
from ..training.resume.run import Run
from .command_line import parse_arguments, typed_command
from .public_paths import corpus_name
from .training_report import base_facts, run_facts, write_report

# Most characters of the text in a card's example.
EXAMPLE_LENGTH = 80


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
    trainer.save_state()
    # Several processes may sort texts by length: labels come with the predictions.
    predicted = trainer.predict(encoded["test" if "test" in encoded else "validation"])
    if trainer.is_world_process_zero():
        names = splits["train"].features["label"].names
        scores = score_classes(predicted.predictions.argmax(-1), predicted.label_ids, names)
        write_classification_report(trainer, data, model_arguments, splits, scores)
        draw_confusion(scores, Path(args.output_dir) / "confusion.png")
        run.finish()
        sys.stdout.write(f"{scores}\n{model.num_parameters():,} parameters\n")


def write_classification_report(
    trainer: AiaynTrainer,
    data: TextDataArguments,
    model_arguments: ClassifierArguments,
    splits: DatasetDict,
    scores: ClassificationScores,
) -> None:
    """Write the scores of the held-out texts, and the card."""
    held_out = splits["test" if "test" in splits else "validation"]
    example = " ".join(held_out["text"][0].split())
    example = example if len(example) <= EXAMPLE_LENGTH else f"{example[:EXAMPLE_LENGTH]}..."
    dataset = data.dataset_name or corpus_name(str(data.train_file))
    examples = f"{len(splits['train']):,} training texts"
    facts = run_facts(trainer, dataset, examples, typed_command())
    facts |= base_facts(model_arguments.start_from)
    facts |= {
        "dataset_id": data.dataset_name,
        "example": json.dumps(example, ensure_ascii=False),
        "scored": f"These scores, in percent, are for {len(held_out):,} held-out texts.",
        "table": scores,
    }
    write_report(
        trainer.args.output_dir,
        "text-classification",
        {"accuracy": scores.accuracy, "macro_f1": scores.macro_f1},
        {"accuracy": 100 * scores.accuracy, "f1": 100 * scores.macro_f1},
        facts,
    )
