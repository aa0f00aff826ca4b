r"""Train a text classifier: an encoder, pooling and one linear layer.

aiayn train-classifier --train_file data/train.jsonl.gz --output_dir runs/imdb \
    --test_file data/test.jsonl.gz --config_overrides 'encoder_layers: 6'

Then: aiayn classify --model runs/imdb --text "A wonderful film."
"""

from pathlib import Path

from datasets import DatasetDict

from ..classification.labelled_texts import TextDataArguments, encode_texts, load_labelled_splits
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
from ..data.public_paths import corpus_name
from ..training import AiaynTrainer
from ..training.curves import CurvesCallback
from .command_line import parse_arguments
from .training_run import Report, finish_run, start_run, train_and_save


def main() -> None:
    data, model_arguments, args = parse_arguments(
        __doc__, TextDataArguments, ClassifierArguments, ClassifierTrainingArguments
    )
    run = start_run(args, data, model_arguments)
    if run is None:
        return
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
    train_and_save(trainer, run)
    # Several processes may sort texts by length, so take labels from the predictions.
    predicted = trainer.predict(encoded["test" if "test" in encoded else "validation"])
    if trainer.is_world_process_zero():
        names = splits["train"].features["label"].names
        scores = score_classes(predicted.predictions.argmax(-1), predicted.label_ids, names)
        draw_confusion(scores, Path(args.output_dir) / "confusion.png")
        finish_run(trainer, run, classification_report(data, model_arguments, splits, scores))


def classification_report(
    data: TextDataArguments,
    model_arguments: ClassifierArguments,
    splits: DatasetDict,
    scores: ClassificationScores,
) -> Report:
    held_out = splits["test" if "test" in splits else "validation"]
    example = " ".join(held_out["text"][0].split())
    return Report(
        task="text-classification",
        dataset=data.dataset_name or corpus_name(str(data.train_file)),
        dataset_id=data.dataset_name,
        examples=f"{len(splits['train']):,} training texts",
        example=example if len(example) <= 80 else f"{example[:80]}...",
        scores={"accuracy": scores.accuracy, "macro_f1": scores.macro_f1},
        metrics={"accuracy": 100 * scores.accuracy, "f1": 100 * scores.macro_f1},
        scored=f"These scores, in percent, are for {len(held_out):,} held-out texts.",
        table=str(scores),
        start_from=model_arguments.start_from,
    )
