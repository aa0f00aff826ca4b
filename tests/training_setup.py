"""Small training runs, for the tests and for processes that they start."""

import torch
from conftest import small_config

from modeling_aiayn import AiaynForConditionalGeneration
from modeling_aiayn.training import AiaynTrainer, AiaynTrainingArguments
from modeling_aiayn.training.evaluation import translation_metrics


def arguments(folder, **options):
    defaults = {
        "output_dir": str(folder),
        "max_steps": 4,
        "learning_rate": 0.5,
        "warmup_steps": 3,
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        "per_device_eval_batch_size": 16,
    }
    if "max_tokens_per_batch" not in options:
        defaults["per_device_train_batch_size"] = 8
    return AiaynTrainingArguments(**(defaults | options))


def make_trainer(
    folder, encoded, tokenizer, dropout=0.1, held_out=20, sizes=None, kind=None, **options
):
    torch.manual_seed(0)
    config = small_config(vocab_size=len(tokenizer), dropout=dropout, **(sizes or {}))
    validation = encoded.select(range(held_out))
    args = arguments(folder, **options)
    metrics = translation_metrics(tokenizer, list(validation["target"]))
    return (kind or AiaynTrainer)(
        model=AiaynForConditionalGeneration(config),
        args=args,
        train_dataset=encoded,
        eval_dataset=validation,
        processing_class=tokenizer,
        compute_metrics=metrics if args.predict_with_generate else None,
    )


def logged(trainer, key):
    return [entry[key] for entry in trainer.state.log_history if key in entry]
