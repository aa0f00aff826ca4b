"""R-Drop: the divergence of two passes, and training with it."""

import pytest
import torch
from conftest import small_model
from datasets import Dataset
from torch.nn import functional
from training_setup import arguments, logged, make_trainer

from modeling_aiayn import AiaynForSequenceClassification
from modeling_aiayn.classification.training import ClassifierTrainingArguments
from modeling_aiayn.losses import label_smoothed_cross_entropy
from modeling_aiayn.training import AiaynTrainer
from modeling_aiayn.training.r_drop import r_drop_loss, repeated

B, T, V = 3, 5, 7


@pytest.mark.parametrize("items", [None, 23])
def test_the_loss_is_that_of_the_paper(items):
    logits = torch.randn(2 * B, T, V, dtype=torch.float64)
    labels = torch.randint(V, (B, T))
    labels[1, 3:] = labels[2, 0] = -100
    count = items or int((labels != -100).sum())
    found = r_drop_loss(
        {"logits": logits}, labels.repeat(2, 1), items, weight=3.0, label_smoothing_factor=0.2
    )
    expected = 0.0
    for half in (logits[:B], logits[B:]):
        expected += label_smoothed_cross_entropy(half, labels, count, 0.2) / 2
    first, second = (half[labels != -100].log_softmax(-1) for half in (logits[:B], logits[B:]))
    for ours, theirs in ((first, second), (second, first)):
        divergence = functional.kl_div(ours, theirs, reduction="sum", log_target=True)
        expected += 3.0 * divergence / 4 / count
    torch.testing.assert_close(found, expected.to(found.dtype), atol=1e-6, rtol=1e-6)


def test_a_classifiers_loss_is_that_of_texts_of_one_token():
    logits, labels = torch.randn(2 * B, V), torch.tensor([2, -100, 6])
    weights = {"weight": 2.0, "label_smoothing_factor": 0.1}
    found = r_drop_loss({"logits": logits}, labels.repeat(2), **weights)
    expected = r_drop_loss({"logits": logits[:, None]}, labels.repeat(2)[:, None], **weights)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("logits", "labels"),
    [
        pytest.param(torch.zeros(4, 1), torch.zeros(4), id="regression"),
        pytest.param(torch.zeros(4, 1), torch.zeros(4, dtype=torch.long), id="one score"),
        pytest.param(torch.zeros(4, 3), torch.zeros(4, 3), id="several labels"),
    ],
)
def test_numbers_as_labels_are_rejected(logits, labels):
    with pytest.raises(ValueError, match="r_drop needs tokens or one class for each text"):
        r_drop_loss({"logits": logits}, labels, weight=1.0, label_smoothing_factor=0.0)


def test_a_batch_is_repeated_as_a_whole():
    ids = torch.arange(6).view(2, 3)
    found = repeated({"input_ids": ids, "use_cache": False})
    assert torch.equal(found["input_ids"], torch.cat([ids, ids])) and found["use_cache"] is False


def test_without_dropout_training_is_the_same(tmp_path, encoded, tokenizer):
    options = {"max_tokens_per_batch": 400, "predict_with_generate": False, "max_steps": 3}
    found = []
    for weight in (0.0, 5.0):
        folder = tmp_path / str(weight)
        trainer = make_trainer(folder, encoded, tokenizer, dropout=0.0, r_drop=weight, **options)
        trainer.train()
        found.append(trainer)
    assert logged(found[1], "loss") == pytest.approx(logged(found[0], "loss"), rel=1e-5)
    for ours, theirs in zip(*(each.model.parameters() for each in found), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_with_dropout_the_divergence_is_added_and_not_in_evaluation(tmp_path, encoded, tokenizer):
    losses, evaluated = [], []
    for weight in (1e-9, 50.0):
        trainer = make_trainer(
            tmp_path / str(weight), encoded, tokenizer, dropout=0.4, r_drop=weight, max_steps=1,
            predict_with_generate=False, learning_rate=1e-9,
        )  # fmt: skip
        trainer.train()
        losses += logged(trainer, "loss")
        evaluated.append(trainer.evaluate()["eval_loss"])
    assert losses[1] > losses[0] + 1
    assert evaluated[0] == pytest.approx(evaluated[1], abs=1e-4)
    assert trainer.compute_loss_func is None


def test_accumulated_batches_have_the_loss_of_one(tmp_path, encoded, tokenizer):
    weights = []
    for steps, size in ((1, 8), (4, 2)):
        trainer = make_trainer(
            tmp_path / str(steps), encoded, tokenizer, dropout=0.0, r_drop=2.0, max_steps=1,
            per_device_train_batch_size=size, gradient_accumulation_steps=steps,
            predict_with_generate=False,
        )  # fmt: skip
        trainer.train()
        weights.append([each.detach().clone() for each in trainer.model.parameters()])
    for ours, theirs in zip(*weights, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_impossible_values_are_rejected(tmp_path, encoded, tokenizer):
    with pytest.raises(ValueError, match="r_drop must be at least 0, got -1"):
        arguments(tmp_path, r_drop=-1.0)
    trainer = make_trainer(tmp_path, encoded, tokenizer, r_drop=1.0, predict_with_generate=False)
    trainer.compute_loss_func = lambda outputs, labels, num_items_in_batch: outputs.logits.sum()
    with pytest.raises(ValueError, match="r_drop cannot be used with a compute_loss_func"):
        trainer.train()


@pytest.mark.parametrize("label_smoothing_factor", [0.0, 0.2])
def test_a_classifier_trains_with_it(tmp_path, tokenizer, label_smoothing_factor):
    texts = [f"the dog sees {'the cat ' * (n % 5)}" for n in range(16)]
    rows = {"input_ids": tokenizer(texts).input_ids, "labels": [n % 3 for n in range(16)]}
    losses = {}
    for dropout in (0.0, 0.4):
        for weight in (0.0, 9.0):
            torch.manual_seed(1)
            model = small_model(
                AiaynForSequenceClassification,
                vocab_size=len(tokenizer),
                num_labels=3,
                dropout=dropout,
                classifier_dropout=dropout,
            )
            args = ClassifierTrainingArguments(
                str(tmp_path / f"{dropout} {weight}"),
                r_drop=weight,
                label_smoothing_factor=label_smoothing_factor,
                per_device_train_batch_size=4,
                gradient_accumulation_steps=2,
                max_steps=2,
                logging_steps=1,
                **{"use_cpu": True, "disable_tqdm": True, "eval_strategy": "no"},
                **{"save_strategy": "no", "load_best_model_at_end": False},
            )
            trainer = AiaynTrainer(
                model=model,
                args=args,
                train_dataset=Dataset.from_dict(rows),
                processing_class=tokenizer,
            )
            trainer.train()
            losses[dropout, weight] = logged(trainer, "loss")
    assert losses[0.0, 9.0] == pytest.approx(losses[0.0, 0.0], rel=1e-4)
    assert sum(losses[0.4, 9.0]) > sum(losses[0.4, 0.0]) + 0.05
