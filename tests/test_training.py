"""Section 5 on the library's engine: schedule, loss, batches, evaluation, resume, report."""

import copy
import json
import math
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
import torch
import yaml
from accelerate.utils.deepspeed import HfDeepSpeedConfig
from conftest import ROOT, small_config, small_model
from datasets import Dataset, DatasetDict
from safetensors.torch import load_file
from torch.nn.utils.rnn import pad_sequence
from training_setup import arguments, logged, make_trainer
from transformers import (
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)
from transformers.trainer_pt_utils import LabelSmoother

from modeling_aiayn import (
    AiaynForCausalLM,
    AiaynForConditionalGeneration,
    AiaynForSequenceClassification,
)
from modeling_aiayn.classification.training import ClassifierTrainingArguments
from modeling_aiayn.commands.train_translation import translation_report
from modeling_aiayn.commands.training_run import write_report
from modeling_aiayn.data.embedded_corpus import generate_pairs
from modeling_aiayn.training import AiaynTrainer, AiaynTrainingArguments
from modeling_aiayn.training import trainer as trainer_module
from modeling_aiayn.training.batches import LengthGroups
from modeling_aiayn.training.corpora import Corpus
from modeling_aiayn.training.curves import CurvesCallback
from modeling_aiayn.training.data import DataArguments, data_sha256, encode_pairs, load_splits
from modeling_aiayn.training.evaluation import translation_metrics
from modeling_aiayn.training.fine_tuning import FineTuningArguments
from modeling_aiayn.training.loaders import padding_collator
from modeling_aiayn.training.optimization import (
    check_trained_dtype,
    noam_rate,
    warn_of_slow_training,
)
from modeling_aiayn.training.parallel import check_saves_weights
from modeling_aiayn.training.prepared_data import prepare_data
from modeling_aiayn.training.setup import ModelArguments, NewModel
from modeling_aiayn.translation import Translator
from modeling_aiayn.translation.evaluation import evaluate_translation


def test_noam_is_equation_3():
    assert noam_rate(1, 512, 4000) == pytest.approx(512**-0.5 * 4000**-1.5)
    assert noam_rate(4000, 512, 4000) == pytest.approx(512**-0.5 * 4000**-0.5)
    assert noam_rate(16000, 512, 4000) == pytest.approx(noam_rate(4000, 512, 4000) / 2)


def test_the_first_update_has_the_formula_s_first_rate(tmp_path, encoded, tokenizer):
    trainer = make_trainer(tmp_path, encoded, tokenizer)
    trainer.train()
    expected = [0.5 * noam_rate(update, 12, 3) for update in (1, 2, 3, 4)]
    assert logged(trainer, "learning_rate") == pytest.approx(expected)


def test_the_schedule_counts_updates_and_not_batches(tmp_path, encoded, tokenizer):
    trainer = make_trainer(tmp_path, encoded, tokenizer, gradient_accumulation_steps=3)
    trainer.train()
    expected = [0.5 * noam_rate(update, 12, 3) for update in (1, 2, 3, 4)]
    assert logged(trainer, "learning_rate") == pytest.approx(expected)


def test_arguments_of_another_class_are_rejected(tmp_path, tokenizer):
    model = small_model(vocab_size=len(tokenizer))
    with pytest.raises(TypeError, match=r"must be AiaynTrainingArguments.* got Seq2SeqTrainingArg"):
        AiaynTrainer(model, Seq2SeqTrainingArguments(str(tmp_path), use_cpu=True))
    with pytest.raises(TypeError, match="got NoneType"):
        AiaynTrainer(model)
    classifier = small_model(AiaynForSequenceClassification)
    with pytest.raises(ValueError, match=r"has no generate\(\).*ClassifierTrainingArguments"):
        AiaynTrainer(classifier, arguments(tmp_path, predict_with_generate=True))


def test_labels_padded_on_the_left_are_rejected(tmp_path, encoded, tokenizer):
    left = copy.deepcopy(tokenizer)
    left.padding_side = "left"
    with pytest.raises(ValueError, match=r"must be padded on the right.* got 'left'"):
        make_trainer(tmp_path, encoded, left)


@pytest.mark.parametrize(
    ("num_labels", "labels", "is_masked"),
    [
        (3, torch.tensor([2, 0]), True),  # classes
        (1, torch.tensor([4, 2]), False),  # whole numbers of a regression
        (1, torch.tensor([0.5, 2.0]), False),
        (3, torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]]), False),  # several labels of a text
    ],
)
def test_repeated_rows_are_masked_only_where_minus_100_is_ignored(
    tmp_path, monkeypatch, num_labels, labels, is_masked
):
    masked = []

    def mask(labels, accelerator):
        masked.append(labels)
        return labels

    monkeypatch.setattr(trainer_module, "mask_repeats", mask)
    model = small_model(AiaynForSequenceClassification, num_labels=num_labels)
    trainer = AiaynTrainer(model, arguments(tmp_path, predict_with_generate=False))
    trainer.prediction_step(
        model, {"input_ids": torch.tensor([[5, 2], [6, 2]]), "labels": labels}, True
    )
    assert bool(masked) == is_masked


def test_evaluation_without_translating_has_a_loss(tmp_path, encoded, tokenizer):
    trainer = make_trainer(tmp_path, encoded, tokenizer, predict_with_generate=False)
    trainer.compute_metrics = None
    metrics = trainer.evaluate()
    assert metrics["eval_perplexity"] == pytest.approx(math.exp(metrics["eval_loss"]))


@pytest.mark.parametrize("option", [{"push_to_hub": True}, {"hub_token": "hf_SECRET"}], ids=str)
def test_training_does_not_push(tmp_path, option):
    with pytest.raises(ValueError, match=r"not supported in training.*aiayn push-to-hub"):
        arguments(tmp_path, **option)


def test_defaults_are_section_5(tmp_path):
    args = AiaynTrainingArguments(output_dir=str(tmp_path))
    assert (args.adam_beta1, args.adam_beta2, args.adam_epsilon) == (0.9, 0.98, 1e-9)
    assert (args.label_smoothing_factor, args.warmup_steps, args.max_grad_norm) == (0.1, 4000, 0)
    assert (args.lr_scheduler_type, args.learning_rate, args.weight_decay) == ("noam", 1.0, 0)
    assert isinstance(args, Seq2SeqTrainingArguments)


@pytest.mark.parametrize(
    ("name", "warmup", "rates"),
    [
        ("linear", 0, [0.01, 0.0075, 0.005, 0.0025]),
        ("inverse_sqrt", 2, [0.0, 0.005, 0.01, 0.01 * (2 / 3) ** 0.5]),
        ("constant", 0, [0.01] * 4),
    ],
)
def test_library_schedules_are_there_too(tmp_path, encoded, tokenizer, name, warmup, rates):
    options = {"lr_scheduler_type": name, "learning_rate": 0.01, "warmup_steps": warmup}
    trainer = make_trainer(tmp_path, encoded, tokenizer, **options)
    trainer.train()
    assert logged(trainer, "learning_rate") == pytest.approx(rates)


def test_a_missing_rate_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'linear' needs a learning_rate"):
        AiaynTrainingArguments(output_dir=str(tmp_path), lr_scheduler_type="linear")


def test_an_average_that_keeps_the_initial_weights_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"ema_decay must be below 1, got 1\.0"):
        arguments(tmp_path, ema_decay=1.0)


def test_the_library_s_flag_to_resume_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"resume_from_checkpoint .* Pass resume='runs/x'"):
        arguments(tmp_path, resume_from_checkpoint="runs/x")


def test_objective_does_not_depend_on_accumulation(tmp_path, encoded, tokenizer):
    """The same 8 sentences at once, or 2 by 2."""
    eight = encoded.select(range(8))
    runs = []
    for size, accumulation in ((8, 1), (2, 4)):
        trainer = make_trainer(
            tmp_path,
            eight,
            tokenizer,
            dropout=0.0,
            held_out=8,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=accumulation,
            label_smoothing_factor=0.1,
            max_grad_norm=1.0,
            optim="sgd",
        )
        trainer.train()
        runs.append(trainer)
    for key, tolerance in (("loss", 1e-5), ("grad_norm", 1e-4)):
        assert logged(runs[0], key) == pytest.approx(logged(runs[1], key), rel=tolerance)
    for first, second in zip(*(run.model.parameters() for run in runs), strict=True):
        torch.testing.assert_close(first, second, atol=1e-6, rtol=1e-4)


def test_a_classifier_s_smoothed_loss_does_not_depend_on_accumulation(tmp_path, tokenizer):
    texts = [{"input_ids": list(range(4, 8 + n)), "labels": n % 3} for n in range(8)]
    norms = []
    for size, accumulation in ((8, 1), (2, 4)):
        trainer = AiaynTrainer(
            model=small_model(AiaynForSequenceClassification, num_labels=3, dropout=0.0),
            args=ClassifierTrainingArguments(
                output_dir=str(tmp_path),
                per_device_train_batch_size=size,
                gradient_accumulation_steps=accumulation,
                label_smoothing_factor=0.2,
                max_steps=2,
                logging_steps=1,
                eval_strategy="no",
                save_strategy="no",
                load_best_model_at_end=False,
                use_cpu=True,
                disable_tqdm=True,
            ),
            train_dataset=texts,
            processing_class=tokenizer,
        )
        trainer.train()
        norms.append(logged(trainer, "grad_norm"))
    assert len(norms[0]) == 2
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_training_smooths_labels_and_evaluation_does_not(tmp_path, encoded, tokenizer):
    trainer = make_trainer(tmp_path, encoded, tokenizer, dropout=0.0, label_smoothing_factor=0.4)
    batch = trainer.data_collator(
        [{key: encoded[i][key] for key in ("input_ids", "labels")} for i in range(3)]
    )
    losses = {}
    for smoothing in (0.0, 0.4):
        losses[smoothing] = trainer.model(**batch, label_smoothing_factor=smoothing).loss.item()
    assert losses[0.0] != pytest.approx(losses[0.4], rel=1e-3)
    trainer.model.train()
    assert trainer.compute_loss(trainer.model, batch).item() == pytest.approx(losses[0.4])
    trainer.model.eval()
    assert trainer.compute_loss(trainer.model, batch).item() == pytest.approx(losses[0.0])


@pytest.mark.parametrize("has_kernel", [False, True])
def test_slow_products_in_bfloat16_give_a_warning(tmp_path, monkeypatch, caplog, has_kernel):
    kernel = "modeling_aiayn.training.optimization.has_bfloat16_instructions"
    monkeypatch.setattr(kernel, lambda device: has_kernel)
    warn_of_slow_training(arguments(tmp_path, bf16=True))
    assert ("This CPU has no fast products in bfloat16" in caplog.text) == (not has_kernel)


def test_parameters_in_float16_are_not_trained(tmp_path, encoded, tokenizer):
    """Frozen ones may stay in it, as beside an adapter."""
    trainer = make_trainer(tmp_path, encoded, tokenizer, max_steps=1)
    trainer.model.half()
    with pytest.raises(
        ValueError, match=r"embed_tokens\.weight is in float16. Load the model .*float32"
    ):
        trainer.train()
    for name, parameter in trainer.model.named_parameters():
        parameter.requires_grad = name.endswith("norm.weight")
    for module in trainer.model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.float()
    check_trained_dtype(trainer.model)


def test_a_hyperparameter_search_builds_each_trial_s_model(tmp_path, encoded, tokenizer):
    """After each trial, transformers frees the model and sets it to None."""
    trainer = AiaynTrainer(
        model_init=lambda: small_model(vocab_size=len(tokenizer)),
        args=arguments(tmp_path, max_steps=2, predict_with_generate=False),
        train_dataset=encoded,
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.model = trainer.model_wrapped = None
    assert trainer.train().global_step == 2


def test_sources_without_labels_are_translated(tmp_path, encoded, tokenizer):
    trainer = make_trainer(tmp_path, encoded, tokenizer, generation_max_length=8)
    trainer.compute_metrics = None
    sources = encoded.select(range(3)).select_columns(["input_ids"])
    output = trainer.predict(sources)
    assert len(output.predictions) == 3 and output.label_ids is None


def test_the_rate_leaves_out_callbacks_of_an_evaluation(tmp_path, encoded, tokenizer, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    class Slow(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            clock[0] += 1

        def on_evaluate(self, args, state, control, **kwargs):
            clock[0] += 50

    options = {"eval_strategy": "steps", "eval_steps": 2, "predict_with_generate": False}
    trainer = make_trainer(tmp_path, encoded, tokenizer, **options)
    trainer.add_callback(Slow())
    counted = []
    trainer.meter.rates = lambda _: counted.append(trainer.meter.state_dict()["seconds"]) or {}
    trainer.train()
    assert counted == [1, 2, 3, 4]


def test_training_does_not_change_the_model_s_configuration(tmp_path, encoded, tokenizer):
    trainer = make_trainer(tmp_path, encoded, tokenizer)
    before = trainer.model.config.to_dict()
    trainer.train()
    assert trainer.model.config.to_dict() == before
    assert before["use_cache"] is True


def test_the_library_s_own_smoother_agrees(encoded, tokenizer):
    """A plain Seq2SeqTrainer with label_smoothing_factor computes the same loss."""
    model = AiaynForConditionalGeneration(small_config(vocab_size=len(tokenizer))).eval()
    rows = [{key: encoded[i][key] for key in ("input_ids", "labels")} for i in range(5)]
    batch = DataCollatorForSeq2Seq(tokenizer, model=model)(rows)
    labels = batch.pop("labels")
    expected = LabelSmoother(epsilon=0.1)(model(**batch), labels)
    loss = model(**batch, labels=labels, label_smoothing_factor=0.1).loss
    torch.testing.assert_close(loss, expected)


def test_the_evaluation_loss_is_per_token_for_any_batches(tmp_path, encoded, tokenizer):
    metrics = []
    for size in (1, 3, 8):
        options = {"per_device_eval_batch_size": size, "generation_max_length": 8, "held_out": 8}
        metrics.append(make_trainer(tmp_path, encoded, tokenizer, **options).evaluate())
    model, total, tokens = make_trainer(tmp_path, encoded, tokenizer).model.eval(), 0.0, 0
    for row in encoded.select(range(8)):
        labels = torch.tensor([row["labels"]])
        logits = model(torch.tensor([row["input_ids"]]), labels=labels).logits
        total += torch.nn.functional.cross_entropy(logits[0], labels[0], reduction="sum").item()
        tokens += labels.numel()
    for metric in metrics:
        assert metric["eval_loss"] == pytest.approx(total / tokens, rel=1e-5)
        assert metric["eval_perplexity"] == pytest.approx(math.exp(total / tokens), rel=1e-5)
        assert metric["eval_bleu"] == pytest.approx(metrics[0]["eval_bleu"])


def test_the_evaluation_loss_of_a_language_model_is_per_predicted_token(tmp_path):
    rows = [{"input_ids": list(range(4, 4 + n)), "labels": list(range(4, 4 + n))} for n in (3, 20)]
    model = small_model(AiaynForCausalLM)
    losses = [model(**{k: torch.tensor([v]) for k, v in row.items()}).loss.item() for row in rows]
    for size in (1, 2):
        trainer = AiaynTrainer(
            model=model,
            args=arguments(tmp_path, per_device_eval_batch_size=size, predict_with_generate=False),
            data_collator=lambda batch: {
                name: pad_sequence([torch.tensor(row[name]) for row in batch], True, value)
                for name, value in (("input_ids", 1), ("labels", -100))
            },
            eval_dataset=rows,
        )
        expected = (2 * losses[0] + 19 * losses[1]) / 21
        assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.skipif(
    not hasattr(AiaynTrainingArguments, "dataloader_multiprocessing_context"),
    reason="this release of transformers lacks dataloader_multiprocessing_context",
)
@pytest.mark.parametrize("more", [{}, {"max_tokens_per_batch": 99}])
def test_workers_start_as_the_flag_says(tmp_path, encoded, tokenizer, more):
    options = {"dataloader_num_workers": 1, "dataloader_multiprocessing_context": "forkserver"}
    loader = make_trainer(tmp_path, encoded, tokenizer, **options, **more).get_train_dataloader()
    assert loader.multiprocessing_context.get_start_method() == "forkserver"


def test_evaluation_does_not_change_the_generation_config(tmp_path, encoded, tokenizer):
    trainer = make_trainer(tmp_path, encoded, tokenizer, held_out=2)
    before = trainer.model.generation_config.to_dict()
    trainer.evaluate()
    assert trainer.model.generation_config.to_dict() == before
    assert before["max_length"] is None


def test_batches_have_like_lengths_in_random_order():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, 60, (1003, 1), generator=generator).numpy()
    sampler = LengthGroups(lengths, batch_size=10, seed=5)
    indices = list(sampler)
    assert sorted(indices) == list(range(1003)) and len(sampler) == 1003
    batches = [[lengths[i, 0] for i in indices[s : s + 10]] for s in range(0, 1003, 10)]
    spans = [max(batch) - min(batch) for batch in batches[:-1]]
    assert np.mean(spans) < 5
    means = [np.mean(batch) for batch in batches]
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.4
    assert indices == list(LengthGroups(lengths, batch_size=10, seed=5))
    sampler.set_epoch(1)
    assert indices != list(sampler)


def test_each_epoch_has_another_order(tmp_path, encoded, tokenizer):
    some = encoded.select(range(40))
    trainer = make_trainer(tmp_path, some, tokenizer, max_steps=-1, num_train_epochs=2)
    seen = []
    collate = trainer.data_collator
    trainer.data_collator = lambda rows: (
        seen.append([tuple(r["labels"]) for r in rows]) or collate(rows)
    )
    trainer.train()
    half = len(seen) // 2
    first, second = (sorted(chain.from_iterable(epoch)) for epoch in (seen[:half], seen[half:]))
    assert first == second
    assert seen[:half] != seen[half:]


@pytest.mark.long
def test_the_copy_task_is_learnt(tmp_path, tokenizer):
    """The model learns to repeat sequences that it has never seen."""
    generator = torch.Generator().manual_seed(0)
    rows = [[*torch.randint(4, 14, (5,), generator=generator).tolist(), 2] for _ in range(2000)]
    data = Dataset.from_dict({"input_ids": rows, "labels": rows})
    torch.manual_seed(1)
    model = AiaynForConditionalGeneration(
        small_config(
            vocab_size=14,
            d_model=32,
            encoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            encoder_layers=1,
            decoder_layers=1,
            dropout=0.0,
        )
    )
    trainer = AiaynTrainer(
        model=model,
        args=arguments(
            tmp_path,
            max_steps=400,
            per_device_train_batch_size=64,
            learning_rate=0.7,
            warmup_steps=100,
            logging_steps=100,
            predict_with_generate=False,
        ),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        train_dataset=data,
    )
    trainer.train()
    new = torch.randint(4, 14, (50, 5), generator=generator)
    source = torch.cat([new, torch.full((50, 1), 2)], dim=1)
    output = model.eval().generate(source, num_beams=1)
    assert (output[:, 1:7] == source).all(dim=1).float().mean() > 0.95


def test_the_best_model_comes_back_and_nothing_is_missing(tmp_path, encoded, tokenizer, caplog):
    trainer = make_trainer(
        tmp_path,
        encoded,
        tokenizer,
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model="loss",
        learning_rate=9.0,
        predict_with_generate=False,
    )
    with caplog.at_level("WARNING"):
        trainer.train()
    losses = logged(trainer, "eval_loss")
    assert losses.index(min(losses)) != len(losses) - 1
    assert trainer.evaluate()["eval_loss"] == pytest.approx(min(losses))
    assert "missing keys" not in caplog.text


def test_bf16_trains_on_this_processor(tmp_path, encoded, tokenizer):
    trainer = make_trainer(tmp_path, encoded, tokenizer, bf16=True)
    trainer.train()
    assert all(math.isfinite(loss) for loss in logged(trainer, "loss"))
    assert next(trainer.model.parameters()).dtype == torch.float32


def test_long_pairs_are_left_out_and_counted(dataset, tokenizer, caplog):
    kept = encode_pairs(dataset, tokenizer, tokenizer, 20, "pairs")
    assert 0 < len(kept) < len(dataset)
    assert all(len(row["input_ids"]) <= 20 and len(row["labels"]) <= 20 for row in kept)
    assert f"skipped {len(dataset) - len(kept)} of 200 pairs" in caplog.text
    assert kept[0]["labels"][-1] == tokenizer.eos_token_id


def test_splits_come_from_the_grammar_files_or_the_hub(tmp_path, monkeypatch):
    monkeypatch.setattr("modeling_aiayn.training.data.EMBEDDED_HELD_OUT_SIZE", 20)
    embedded = load_splits(DataArguments(embedded_train_size=30))
    assert {name: len(split) for name, split in embedded.items()} == {
        "train": 30,
        "validation": 20,
        "test": 20,
    }
    for name in ("train", "validation", "test"):
        (tmp_path / f"{name}.tsv").write_text(f"a {name}\tein {name}\n")
        (tmp_path / f"{name}.jsonl").write_text(
            json.dumps({"en": f"a {name}", "de": f"ein {name}"})
        )
    files = {
        f"{name}_file": [str(tmp_path / f"{name}.tsv")] * 2 for name in ("train", "validation")
    }
    splits = load_splits(
        DataArguments(**files, source_lang="de", target_lang="en", columns="en,de")
    )
    assert splits.keys() == {"train", "validation"}
    assert splits["train"][0] == {"source": "ein train", "target": "a train"}
    for name in ("train", "validation", "test"):
        (tmp_path / f"{name}.tsv").unlink()
    hub = load_splits(DataArguments(dataset_name=str(tmp_path)))
    assert hub["test"][0] == {"source": "a test", "target": "ein test"}


def test_splits_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="either dataset_name or train_file"):
        load_splits(DataArguments(dataset_name="x", train_file=["y"]))
    with pytest.raises(ValueError, match="train_file needs validation_file"):
        load_splits(DataArguments(train_file=["y"]))
    for name, needs in (("validation_file", "train_file"), ("test_file", "train_file")):
        with pytest.raises(ValueError, match=f"{name} needs {needs}"):
            load_splits(DataArguments(**{name: "x"}))


def test_a_dataset_may_lack_a_test(tmp_path):
    pair = json.dumps({"en": "a", "de": "ein"})
    (tmp_path / "train.jsonl").write_text(pair)
    (tmp_path / "validation.jsonl").write_text(pair)
    assert load_splits(DataArguments(dataset_name=str(tmp_path))).keys() == {"train", "validation"}


def test_the_order_has_a_seed_of_its_own(tmp_path, encoded, tokenizer):
    options = {"max_tokens_per_batch": 200}
    orders = [
        list(
            make_trainer(tmp_path, encoded, tokenizer, **options, **seeds)
            .get_train_dataloader()
            .batch_sampler
        )
        for seeds in ({"seed": 1, "data_seed": 7}, {"seed": 2, "data_seed": 7}, {"seed": 1})
    ]
    assert orders[0] == orders[1] != orders[2]


def test_a_run_without_a_whole_batch_is_refused(tmp_path, encoded, tokenizer):
    options = {"per_device_train_batch_size": 10_000, "dataloader_drop_last": True}
    trainer = make_trainer(tmp_path, encoded, tokenizer, max_tokens_per_batch=None, **options)
    with pytest.raises(ValueError, match=r"There is no batch in the \d+ training examples"):
        trainer.train()


def test_vocabularies_and_model_fit_each_other(dataset):
    shared = NewModel(ModelArguments(vocab_size=600)).tokenizers(dataset)
    assert shared[0] is shared[1]
    assert "A" in shared[0].get_vocab()
    lower = NewModel(ModelArguments(vocab_size=600, lowercase=True)).tokenizers(dataset)
    assert "A" not in lower[0].get_vocab()
    overrides = "{encoder_layers: 1, decoder_layers: 2}"
    model = NewModel(ModelArguments(preset="tiny", config_overrides=overrides)).build(*shared)
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (len(shared[0]), None)
    assert (model.config.encoder_layers, model.config.decoder_layers) == (1, 2)
    assert model.generation_config.num_beams == 4
    own = NewModel(ModelArguments(vocabulary="word")).tokenizers(dataset)
    model = NewModel(ModelArguments(preset="tiny")).build(*own)
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (len(own[0]), len(own[1]))
    assert "dog" in own[0].get_vocab() and "hund" in own[1].get_vocab()
    assert "hund" not in own[0].get_vocab() and "zebra" not in own[0].get_vocab()


@pytest.fixture
def pair_files(tmp_path, monkeypatch):
    """Flags of files with 60 training pairs, one of them empty, and a cache of their own."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    names = {"train_file": 60, "validation_file": 7}
    for name, size in names.items():
        rows = [f"{pair.source}\t{pair.target}\n" for pair in generate_pairs("train", size, 0)]
        (tmp_path / f"{name}.tsv").write_text("".join([*rows[:5], "a\t\n", *rows[6:]]), "utf-8")
    return {name: [str(tmp_path / f"{name}.tsv")] for name in names}


def cached_files():
    """The files in the cache, each with the time of its last change."""
    folder = datasets.config.HF_DATASETS_CACHE
    files = (path for path in folder.rglob("*") if path.suffix in (".arrow", ".json"))
    return {(path, path.stat().st_mtime_ns) for path in files}


def prepared_content(prepared):
    tokenizers = (prepared.source_tokenizer, prepared.target_tokenizer)
    return (
        {name: split[:] for name, split in prepared.splits.items()},
        [tokenizer.backend_tokenizer.to_str() for tokenizer in tokenizers],
        tokenizers[0] is tokenizers[1],
    )


@pytest.mark.parametrize("vocabulary", ["bpe", "word"])
@pytest.mark.parametrize("num_proc", [None, 2])
def test_prepared_data_is_read_from_the_cache(pair_files, monkeypatch, vocabulary, num_proc):
    """Of another start, and of the other processes of this machine."""
    data = DataArguments(**pair_files, preprocessing_num_workers=num_proc)
    start = NewModel(ModelArguments(vocabulary=vocabulary, vocab_size=600))
    prepared = prepare_data(data, start.tokenizers)
    train = prepared.splits["train"]
    assert train.column_names == ["input_ids", "labels"] and len(train) == 59
    texts = prepared.splits["validation"]["target"]
    ids = prepared.target_tokenizer(list(texts)).input_ids
    assert list(prepared.splits["validation"]["labels"]) == ids

    expected, files = prepared_content(prepared), cached_files()
    assert prepared_content(prepare_data(data, start.tokenizers)) == expected
    assert cached_files() == files
    again = prepare_data(replace(data, overwrite_cache=True), start.tokenizers)
    assert prepared_content(again) == expected
    assert {path for path, *_ in cached_files() - files} == {
        path for path, *_ in files if "cache-" in path.name or "vocabulary-" in path.name
    }
    with open(pair_files["train_file"][0], "a", encoding="utf-8") as file:
        file.write("one more\tnoch eins\n")
    assert len(prepare_data(data, start.tokenizers).splits["train"]) == 60


def test_a_run_leaves_a_folder_that_translates_and_says_what_it_is(tmp_path, dataset):
    """The whole way, with a vocabulary for each language."""
    source, target = NewModel(ModelArguments(vocabulary="word")).tokenizers(dataset)
    overrides = "{encoder_layers: 1, decoder_layers: 1}"
    model = NewModel(ModelArguments(preset="tiny", config_overrides=overrides)).build(
        source, target
    )
    encoded = encode_pairs(dataset, source, target, 256, "pairs")
    trainer = AiaynTrainer(
        model=model,
        args=arguments(
            tmp_path,
            eval_strategy="steps",
            save_strategy="steps",
            eval_steps=2,
            save_steps=2,
            load_best_model_at_end=True,
            metric_for_best_model="bleu",
        ),
        data_collator=DataCollatorForSeq2Seq(source, model=model),
        train_dataset=encoded,
        eval_dataset=encoded.select(range(9)),
        processing_class=source,
        target_tokenizer=target,
        compute_metrics=translation_metrics(target, dataset["target"][:9]),
        callbacks=[CurvesCallback()],
    )
    trainer.train()
    trainer.save_model()
    splits = DatasetDict(train=dataset, test=dataset.select(range(9)))
    scores, translations = evaluate_translation(
        Translator.from_pretrained(tmp_path),
        splits["test"],
        max_length_factor=0.0,
        max_length_offset=5,
    )
    assert len(translations) == 9
    command = ["python", "train.py", "--train_file=/home/someone/data/train", "--seed=3"]
    command += ["--test_file", "/home/someone/data/test", "--validation_file", "~/val"]
    data = DataArguments(train_file=["data/corpus/train", "more/train.tsv"])
    report = translation_report(
        trainer, data, [Corpus(data)], FineTuningArguments(), splits, scores
    )
    write_report(trainer, report, command)
    card = (tmp_path / "README.md").read_text()
    metadata = yaml.safe_load(card.split("---")[1])
    assert metadata["language"] == ["en", "de"]
    metrics = metadata["model-index"][0]["results"][0]["metrics"]
    assert {"type": "bleu", "value": round(scores["bleu"], 2)} in metrics
    assert scores["chrf_signature"] in card
    assert "corpus and more, 200 training pairs" in card
    assert "target_tokenizer" in card
    assert "/home" not in card and "{{" not in card and "hf_SECRET" not in card
    assert (
        "python train.py --train_file=data/train --seed=3 --test_file data/test --validation_file val"
        in card
    )
    for block in re.findall(r"```python\n(.*?)```", card, flags=re.S):
        compile(block, "card", "exec")
    assert json.loads((tmp_path / "scores.json").read_text()) == scores
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    for folder in (tmp_path, tmp_path / "checkpoint-4"):
        reloaded = AutoTokenizer.from_pretrained(folder / "target_tokenizer")
        assert reloaded.get_vocab() == target.get_vocab()
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")


def test_evaluation_of_the_loss_alone_builds_no_logits(tmp_path, encoded, tokenizer, monkeypatch):
    asked = []
    forward = AiaynForConditionalGeneration.forward

    def record(self, *args, **kwargs):
        asked.append(kwargs.get("skip_logits"))
        return forward(self, *args, **kwargs)

    trainer = make_trainer(tmp_path, encoded, tokenizer, predict_with_generate=False)
    expected = trainer.evaluate()["eval_loss"]
    monkeypatch.setattr(AiaynForConditionalGeneration, "forward", record)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-6)
    assert asked and all(asked)


def test_a_run_without_evaluations_has_curves_too(tmp_path, encoded, tokenizer):
    trainer = make_trainer(tmp_path, encoded, tokenizer)
    trainer.add_callback(CurvesCallback())
    trainer.train()
    assert (tmp_path / "curves.png").stat().st_size > 1000


IMPORT_WITHOUT_UNIX = """
import os, sys
import modeling_aiayn.data.metrics, accelerate, datasets, filelock, torch, transformers
for name in ("fcntl", "modeling_aiayn.translation"):
    sys.modules[name] = None
del os.setpgrp
import modeling_aiayn.training, modeling_aiayn.training.averaging, modeling_aiayn.training.resume.run
print([name for name in sys.modules if name.startswith("modeling_aiayn.translation.")])
"""


@pytest.mark.long
def test_training_imports_neither_translation_nor_what_only_unix_has():
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_WITHOUT_UNIX],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


class GeneratedPairs(torch.utils.data.Dataset):
    """Pairs that are made on demand, for any index."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        ids = [5 + index % 7] * (1 + index % 3)
        return {"input_ids": [*ids, 2], "labels": [*ids, 2]}


@pytest.mark.parametrize("options", [{}, {"max_tokens_per_batch": 40}], ids=str)
def test_datasets_without_an_end_of_their_own_have_the_length_they_say(
    tmp_path, encoded, tokenizer, options
):
    trainer = make_trainer(
        tmp_path, encoded, tokenizer, predict_with_generate=False, max_steps=2, **options
    )
    trainer.train_dataset = GeneratedPairs()
    trainer.train()
    assert trainer.state.global_step == 2


def test_predictions_of_a_classifier_are_in_the_order_of_the_data(tmp_path, tokenizer):
    rows = [[5 + index] * (1 + index * 5 % 7) + [2] for index in range(12)]
    model = small_model(AiaynForSequenceClassification, num_labels=3)
    trainer = AiaynTrainer(
        model,
        ClassifierTrainingArguments(
            str(tmp_path),
            **{"use_cpu": True, "disable_tqdm": True, "per_device_eval_batch_size": 5},
            **{"eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False},
        ),
        padding_collator(tokenizer, model, None),
    )
    predicted = trainer.predict(Dataset.from_dict({"input_ids": rows})).predictions
    with torch.no_grad():
        expected = [model(torch.tensor([row])).logits[0] for row in rows]
    torch.testing.assert_close(torch.from_numpy(predicted), torch.stack(expected))


def test_a_loss_function_of_ones_own_may_have_any_scale(tmp_path, encoded, tokenizer):
    trainer = make_trainer(tmp_path, encoded, tokenizer, predict_with_generate=False, max_steps=2)
    trainer.compute_loss_func = lambda outputs, labels, num_items_in_batch: (
        1000 + outputs.logits.square().mean()
    )
    trainer.train()
    assert min(logged(trainer, "loss")) > 1000
    trainer.compute_loss_func = lambda outputs, labels, num_items_in_batch: (
        outputs.logits.sum() * torch.nan
    )
    with pytest.raises(ValueError, match="Training diverged at update 1: loss nan"):
        trainer.train()


@pytest.mark.parametrize("schedule", ["reduce_lr_on_plateau", "greedy"])
def test_a_schedule_that_follows_a_score_knows_which_score_is_better(tmp_path, schedule):
    options = {"lr_scheduler_type": schedule, "eval_strategy": "steps", "eval_steps": 2}
    for metric, mode in (("loss", "min"), ("perplexity", "min"), ("bleu", "max")):
        found = arguments(tmp_path, metric_for_best_model=metric, **options)
        assert found.lr_scheduler_kwargs == {"mode": mode}
    given = arguments(tmp_path, lr_scheduler_kwargs={"mode": "max", "patience": 3}, **options)
    assert given.lr_scheduler_kwargs == {"mode": "max", "patience": 3}
    assert arguments(tmp_path).lr_scheduler_kwargs in (None, {})


@pytest.mark.parametrize("is_divided", [False, True])
def test_a_process_with_several_gpus_trains_on_one(tmp_path, caplog, is_divided):
    args, model = arguments(tmp_path), small_model()
    args._n_gpu = 3
    if is_divided:
        model.hf_device_map = {"model.encoder": 0, "model.decoder": 1}
    trainer = AiaynTrainer(model=model, args=args)
    assert (args.n_gpu, trainer._train_batch_size) == (1, 8)
    message = "trains on one of 3 GPUs. To use all, start it with torchrun --nproc_per_node 3."
    assert (message in caplog.text) is not is_divided


@pytest.mark.parametrize("saved", [None, False, True])
def test_a_run_with_zero_3_saves_its_model(saved):
    """Without DeepSpeed, whose configuration accelerate reads."""
    gather = {} if saved is None else {"stage3_gather_16bit_weights_on_model_save": saved}
    for stage in (2, 3):
        config = HfDeepSpeedConfig({"zero_optimization": {"stage": stage, **gather}})
        plugin = SimpleNamespace(hf_ds_config=config)
        accelerator = SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=plugin))
        if stage == 2 or saved:
            check_saves_weights(accelerator)
        else:
            with pytest.raises(ValueError, match=r"ZeRO-3 needs .*on_model_save.*: true"):
                check_saves_weights(accelerator)


def test_a_smaller_perplexity_is_better(tmp_path):
    for metric in ("perplexity", "eval_perplexity", "loss"):
        assert arguments(tmp_path, metric_for_best_model=metric).greater_is_better is False
    assert arguments(tmp_path, metric_for_best_model="bleu").greater_is_better


def test_labels_of_every_kind_have_a_hash():
    def sha256(labels):
        return data_sha256(Dataset.from_dict({"input_ids": [[5, 2], [6, 2]], "labels": labels}))

    kinds = ([0.2, 0.7], [0.2, 0.6], [1, 0], [[1.0, 0.0], [0.0, 1.0]], [[1, 0], [0, 1]])
    hashes = [sha256(labels) for labels in kinds]
    assert None not in hashes and len({*hashes[:4]}) == 4
    assert hashes[4] != hashes[2]


def test_a_learned_table_s_length_is_saved_with_the_tokenizers(tokenizer):
    sizes = "{encoder_layers: 1, decoder_layers: 1, d_model: 12, encoder_attention_heads: 2, "
    sizes += "decoder_attention_heads: 2, max_position_embeddings: 9, position_type: %s}"
    for position_type, length in (("sinusoidal", tokenizer.model_max_length), ("learned", 9)):
        its_tokenizer = copy.deepcopy(tokenizer)
        model = ModelArguments(config_overrides=sizes % position_type)
        NewModel(model).build(its_tokenizer, its_tokenizer)
        assert its_tokenizer.model_max_length == length
