r"""Train a language model of characters or bytes: a decoder alone.

aiayn train-language-model tiny_shakespeare.yaml \
    --train_file data/tinyshakespeare.txt.gz --output_dir runs/shakespeare

Training reads random windows of one text. The output folder holds the best model, scores.json and
curves.png. Use the model with `aiayn complete`.
"""

import json
import sys
from pathlib import Path

from transformers import default_data_collator, set_seed

from ..language_model.texts import LanguageDataArguments, load_text
from ..language_model.training import (
    LanguageModelArguments,
    LanguageModelTrainingArguments,
    build_language_model,
    score_text,
    text_score_table,
)
from ..language_model.windows import covering_windows, random_windows
from ..training import AiaynTrainer
from ..training.curves import CurvesCallback
from ..training.progress import training_table
from ..training.run import Run
from ..whole_files import write_file
from .command_line import parse_arguments


def main() -> None:
    """Train, save the best model, score it on adjacent and on sliding windows."""
    data, model_arguments, args = parse_arguments(
        __doc__, LanguageDataArguments, LanguageModelArguments, LanguageModelTrainingArguments
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
    table = training_table(trainer.state.log_history)
    scores = {}
    for name in list(parts)[1:]:
        for step, how in ((data.context, "windows side by side"), (size // 2, "sliding window")):
            scores[f"{name}, {how}"] = score_text(trainer, parts[name], size, max(1, step))
    if trainer.is_world_process_zero():
        summary = {
            name: {"nats": score.nats, "bits_per_byte": score.bits_per_byte}
            for name, score in scores.items()
        }
        path = Path(args.output_dir) / "scores.json"
        write_file(path, json.dumps(summary, indent=2) + "\n")
        run.finish()
        sys.stdout.write(f"{table}\n\n{text_score_table(scores, data.unit)}\n")
        sys.stdout.write(f"{model.num_parameters():,} parameters\n")
