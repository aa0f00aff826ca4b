r"""Train a language model of characters or bytes: a decoder alone.

aiayn train-language-model tiny_shakespeare.yaml \
    --train_file data/tinyshakespeare.txt.gz --output_dir runs/shakespeare

Then: aiayn complete --model runs/shakespeare --text "ROMEO:"
"""

from transformers import default_data_collator

from ..data.public_paths import corpus_name
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
from ..training.setup import PresetArguments
from .command_line import parse_arguments
from .training_run import Report, finish_run, start_run, train_and_save


def main() -> None:
    data, model_arguments, args = parse_arguments(
        __doc__, LanguageDataArguments, PresetArguments, LanguageModelTrainingArguments
    )
    run = start_run(args, data, model_arguments)
    if run is None:
        return
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
    train_and_save(trainer, run)
    scores = {}
    for name in list(parts)[1:]:
        for step, how in ((data.context, "windows side by side"), (size // 2, "sliding window")):
            scores[f"{name}, {how}"] = score_text(trainer, parts[name], size, max(1, step))
    if trainer.is_world_process_zero():
        finish_run(trainer, run, language_model_report(trainer, data, parts, scores))


def language_model_report(
    trainer: AiaynTrainer,
    data: LanguageDataArguments,
    parts: dict[str, EncodedText],
    scores: dict[str, TextScore],
) -> Report:
    """Report the scores; the card's metadata contain only the last score."""
    tokens = len(parts["train"].ids)
    # At most half of a window, to leave the other half for the continuation.
    beginning = parts["validation"].ids[: min(20, (data.context + 1) // 2)]
    return Report(
        task="text-generation",
        dataset=corpus_name(data.train_file),
        examples=f"{tokens:,} {data.unit}s",
        example=trainer.processing_class.decode(beginning, clean_up_tokenization_spaces=False),
        scores={
            name: {"nats": score.nats, "bits_per_byte": score.bits_per_byte}
            for name, score in scores.items()
        },
        metrics={"bits_per_byte": list(scores.values())[-1].bits_per_byte},
        scored="The end of the text was held out.",
        table=text_score_table(scores, data.unit),
        facts={"epochs": trainer.args.windows * data.context / tokens, "unit": data.unit},
    )
