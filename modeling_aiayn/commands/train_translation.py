r"""Train a translation model from scratch, or fine-tune a saved one.

aiayn train-translation multi30k_tiny.yaml --output_dir runs/multi30k \
    --train_file data/train --validation_file data/val --test_file data/test_2016_flickr
aiayn train-translation finetune.yaml --start_from aiayn-en-de --output_dir runs/captions \
    --train_file data/train --validation_file data/val --test_file data/test_2016_flickr

Without files or a dataset name, it trains on the built-in English-German grammar.
"""

from typing import Any

from transformers.integrations import unset_hf_deepspeed_config

from ..data.metrics import SCORES, only_numbers
from ..data.public_paths import corpus_name
from ..saved.languages import (
    SETTINGS,
    LanguageTags,
    languages_of,
    languages_of_rows,
    set_languages,
)
from ..training import AiaynTrainer, AiaynTrainingArguments
from ..training.corpora import Corpus, has_several, read_corpora, tokens_of
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
from ..training.prepared_data import PreparedData, prepare_data_once
from ..training.resume.settings import LOSSES
from ..training.setup import ModelArguments, NewModel
from ..translation import Translator
from ..translation.evaluation import can_translate, evaluate_directions, score_table
from ..translation.options import SearchOptions, search_defaults
from .command_line import parse_arguments
from .training_run import Report, finish_run, start_run, train_and_save


def main() -> None:
    data, model_arguments, fine_tuning, args = parse_arguments(
        __doc__, DataArguments, ModelArguments, FineTuningArguments, AiaynTrainingArguments
    )
    check_evaluation(args)
    check_batches(args, data)
    if data.corpora is None:
        data.source_lang, data.target_lang = data.languages(fine_tuning.start_from, fine_tuning.hub)
    corpora = read_corpora(data)
    tokens = tokens_of(corpora)
    languages = None if has_several(corpora) else corpora[0].languages
    run = start_run(args, data, model_arguments, fine_tuning)
    if run is None:
        return
    start: NewModel | SavedModel = (
        SavedModel(fine_tuning, model_arguments, args, languages, tokens)
        if fine_tuning.start_from
        else NewModel(model_arguments, tokens)
    )
    run.check_model(start.config)
    check_max_length(data, start.config)
    if data.corpora is None and data.both_directions and isinstance(start, SavedModel):
        check_both_directions(*start.tokenizers())
    prepared = prepare_data_once(args, data, start.tokenizers)
    if languages:
        set_languages(prepared.source_tokenizer, *languages)
    trainer = build_trainer(args, start, prepared)
    train_and_save(trainer, run)
    if trainer.is_world_process_zero():
        scores = score_run(trainer, fine_tuning, prepared.splits)
        report = translation_report(trainer, data, corpora, fine_tuning, prepared.splits, scores)
        finish_run(trainer, run, report)


def build_trainer(
    args: AiaynTrainingArguments, start: NewModel | SavedModel, prepared: PreparedData
) -> AiaynTrainer:
    splits = prepared.splits
    check_one_target(args, prepared)
    source, target = prepared.source_tokenizer, prepared.target_tokenizer
    validation = splits["validation"]
    directions = ["-".join(languages) for languages in languages_of_rows(validation)]
    metrics = translation_metrics(target, list(validation["target"]), directions)
    return AiaynTrainer(
        model=start.build(source, target),
        args=args,
        train_dataset=splits["train"],
        eval_dataset=validation,
        processing_class=source,
        target_tokenizer=None if target is source else target,
        compute_metrics=metrics if args.predict_with_generate else None,
        callbacks=[CurvesCallback()],
    )


def check_batches(args: AiaynTrainingArguments, data: DataArguments) -> None:
    """Check that batches are limited by tokens if the data require it."""
    if data.streaming and (args.max_tokens_per_batch is None or args.max_steps <= 0):
        raise ValueError("streaming needs --max_steps and --max_tokens_per_batch.")
    if data.corpora is not None and args.max_tokens_per_batch is None:
        raise ValueError("corpora needs --max_tokens_per_batch.")


def check_one_target(args: AiaynTrainingArguments, prepared: PreparedData) -> None:
    """Check that generate() can begin all translations with the same language tag."""
    tags = LanguageTags.needed_by(prepared.source_tokenizer)
    is_multilingual = SETTINGS[1] in prepared.splits["validation"].column_names
    if args.predict_with_generate and is_multilingual and tags and not tags.is_of_target:
        raise ValueError(
            "With this model, predict_with_generate cannot be used for several directions: an "
            "evaluation would begin all translations with the tag of one language. Pass "
            "--predict_with_generate false."
        )


def dataset_names(corpus: Corpus) -> list[str]:
    data = corpus.data
    files = map(corpus_name, data.train_file or data.validation_file or data.test_file or ())
    return [*files] or [data.dataset_name or "the built-in English-German grammar"]


def check_evaluation(args: AiaynTrainingArguments) -> None:
    """Check that evaluations compute the metric that selects the best model."""
    metric, names = (args.metric_for_best_model or "loss").removeprefix("eval_"), (*LOSSES, *SCORES)
    if metric not in names:
        choices = ", ".join(names)
        raise ValueError(f"metric_for_best_model must be one of {choices}, got {metric!r}.")
    if metric in SCORES and (args.prediction_loss_only or not args.predict_with_generate):
        flags = "--predict_with_generate true and no prediction_loss_only"
        raise ValueError(f"metric_for_best_model={metric} needs translations. Pass {flags}.")


def score_run(
    trainer: AiaynTrainer, fine_tuning: FineTuningArguments, splits: dict[str, Any]
) -> dict[str, Any]:
    """Score the saved model on the test pairs; "before" has the scores of the starting model."""
    args, held_out = trainer.args, splits["test" if "test" in splits else "validation"]
    if fine_tuning.lora_rank is not None:
        complete_adapter(args.output_dir, str(fine_tuning.start_from))
    # Reload from disk: with FSDP and ZeRO-3, no process holds the whole model. While ZeRO-3 is
    # enabled, transformers divides each loaded model.
    unset_hf_deepspeed_config()
    options = {"hub": fine_tuning.hub, "device": args.device}
    # An adapter was trained on a base model in float32: merging in half precision would round it.
    dtype = "auto" if fine_tuning.lora_rank is None else "float32"
    translator = Translator.from_pretrained(args.output_dir, dtype=dtype, **options)
    if fine_tuning.merge_lora:
        replace_adapter(translator.model, args.output_dir)
    scores = evaluate_directions(translator, held_out)
    if fine_tuning.start_from is not None:
        saved = languages_of(translator.source_tokenizer)
        translator = Translator.from_pretrained(fine_tuning.start_from, dtype="float32", **options)
        if translator.needs_languages:
            translator.set_languages(*saved)
        if can_translate(translator, held_out):
            scores["before"] = evaluate_directions(translator, held_out)
    return scores


def translation_report(
    trainer: AiaynTrainer,
    data: DataArguments,
    corpora: list[Corpus],
    fine_tuning: FineTuningArguments,
    splits: dict[str, Any],
    scores: dict[str, Any],
) -> Report:
    held_out = splits["test" if "test" in splits else "validation"]
    tags, example = LanguageTags.needed_by(trainer.processing_class), held_out["source"][0]
    if tags and tags.is_typed:  # users of transformers type the tag
        example = f"<2{held_out[SETTINGS[1]][0]}> {example}"
    search = SearchOptions(**search_defaults(trainer.model.generation_config))
    return Report(
        task="translation",
        dataset=" and ".join(dict.fromkeys(name for one in corpora for name in dataset_names(one))),
        dataset_id=data.dataset_name,
        examples="a stream of training pairs"
        if data.streaming
        else f"{len(splits['train']):,} training pairs",
        example=example,
        scores=scores,
        metrics=only_numbers(scores),
        scored=f"These scores are for {len(held_out):,} held-out pairs, decoded with "
        f"{search.num_beams} beams and length penalty {search.length_penalty}\n"
        f"({search.length_normalization}). The sacreBLEU signature is beside each score. "
        "Perplexity is per target token, without label\nsmoothing.",
        table=score_table(scores),
        start_from=fine_tuning.start_from,
        hub=fine_tuning.hub,
        facts={
            "language": [*dict.fromkeys(code for one in corpora for code in one.languages)],
            "has_directions": has_several(corpora),
            "has_target_tokenizer": trainer.target_tokenizer is not None,
            "is_adapter": fine_tuning.lora_rank is not None and not fine_tuning.merge_lora,
            "is_merged": fine_tuning.merge_lora,
        },
    )
