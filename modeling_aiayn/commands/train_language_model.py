r"""Train a language model of characters or bytes: a decoder alone.

aiayn train-language-model tiny_shakespeare.yaml \
    --train_file data/tinyshakespeare.txt.gz --output_dir runs/shakespeare

Training reads random windows of one text. The output folder holds the best model, its card,
scores.json and curves.png. Use the model with `aiayn complete`.
"""

import json
import sys

from transformers import default_data_collator, set_seed

from ..language_model.texts import EncodedText, LanguageDataArguments, load_text
from ..language_model.training import (
    LanguageModelTrainingArguments,
    TextScore,
    build_language_model,
    score_text,
    text_score_table,
)
from ..language_model.windows import covering_windows, random_windows
from ..training import AiaynTrainer
from ..training.curves import CurvesCallback
from ..training.progress import training_table
from ..training.resume.run import Run
from ..training.setup import PresetArguments
from .command_line import parse_arguments, typed_command
from .public_paths import corpus_name
from .training_report import base_facts, run_facts, write_report


def main() -> None:
    """Train, save the best model, score it on adjacent and on sliding windows."""
    data, model_arguments, args = parse_arguments(
        __doc__, LanguageDataArguments, PresetArguments, LanguageModelTrainingArguments
    )
    run = Run(args, data, model_arguments)
    if run.is_finished:
        sys.stdout.write(f"Already finished: {args.output_dir}\n")
        return
    set_seed(args.seed)
    parts, tokenizer = load_text(data)
    model = build_language_model(model_arguments, tokenizer, data.context)
    size = data.context + 1
    trainer = AiaynTrainer(
        model=model,
        args=args,
        data_collator=default_data_collator,
        train_dataset=random_windows(parts["train"].ids, size, args.windows, args.seed),
        eval_dataset=covering_windows(parts["validation"].ids, size, data.context),
        processing_class=tokenizer,
        callbacks=[CurvesCallback()],
    )
    trainer.train(run.checkpoint)
    trainer.save_model()
    trainer.save_state()
    table = training_table(trainer.state.log_history)
    scores = {}
    for name in list(parts)[1:]:
        for step, how in ((data.context, "windows side by side"), (size // 2, "sliding window")):
            scores[f"{name}, {how}"] = score_text(trainer, parts[name], size, max(1, step))
    if trainer.is_world_process_zero():
        write_language_model_report(trainer, data, parts, scores)
        run.finish()
        sys.stdout.write(f"{table}\n\n{text_score_table(scores, data.unit)}\n")
        sys.stdout.write(f"{model.num_parameters():,} parameters\n")


def write_language_model_report(
    trainer: AiaynTrainer,
    data: LanguageDataArguments,
    parts: dict[str, EncodedText],
    scores: dict[str, TextScore],
) -> None:
    """Write the scores, and the card, whose metadata name the last score."""
    args, tokens = trainer.args, len(parts["train"].ids)
    # Half of a window, so that the model has the other half for its continuation.
    beginning = parts["validation"].ids[: min(20, (data.context + 1) // 2)]
    example = trainer.processing_class.decode(beginning, clean_up_tokenization_spaces=False)
    facts = run_facts(
        trainer, corpus_name(data.train_file), f"{tokens:,} {data.unit}s", typed_command()
    )
    facts |= base_facts(None) | {
        "epochs": args.windows * data.context / tokens,
        "unit": data.unit,
        "example": json.dumps(example, ensure_ascii=False),
        "scored": "The end of the text was held out.",
        "table": text_score_table(scores, data.unit),
    }
    summary = {
        name: {"nats": score.nats, "bits_per_byte": score.bits_per_byte}
        for name, score in scores.items()
    }
    metrics = {"bits_per_byte": list(scores.values())[-1].bits_per_byte}
    write_report(args.output_dir, "text-generation", summary, metrics, facts)
