"""R-Drop: the divergence of two passes, and training with it."""

import math

import pytest
import torch
from conftest import small_model
from datasets import Dataset
from torch.nn import functional
from training_setup import arguments, logged, make_trainer

from modeling_aiayn import AiaynForCausalLM, AiaynForSequenceClassification
from modeling_aiayn.classification.training import ClassifierTrainingArguments
from modeling_aiayn.losses import label_smoothed_cross_entropy
from modeling_aiayn.training import AiaynTrainer, r_drop
from modeling_aiayn.training.r_drop import r_drop_loss, repeated

B, T, V = 3, 5, 7
WEIGHTS = {"weight": 2.0, "label_smoothing_factor": 0.1}


def papers_loss(logits, labels, count, weight, label_smoothing_factor):
    """The loss of two passes, [2B, T, V], by torch's own functions."""
    first, second = logits.chunk(2)
    is_real = labels != -100
    loss = sum(
        label_smoothed_cross_entropy(half, labels, count, label_smoothing_factor) / 2
        for half in (first, second)
    )
    first, second = (half[is_real].log_softmax(-1) for half in (first, second))
    for ours, theirs in ((first, second), (second, first)):
        divergence = functional.kl_div(ours, theirs, reduction="sum", log_target=True)
        loss += weight * divergence / 4 / count
    return loss


@pytest.mark.parametrize("items", [None, 23])
@pytest.mark.parametrize("in_chunk", [1, 3 * V, 1000])
def test_loss_and_gradient_are_those_of_the_paper(items, in_chunk, monkeypatch):
    monkeypatch.setattr(r_drop, "LOGITS_IN_CHUNK", in_chunk)
    logits = torch.randn(2 * B, T, V, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(V, (B, T))
    labels[1, 3:] = labels[2, 0] = -100
    count = items or int((labels != -100).sum())
    expected = papers_loss(logits, labels, count, 3.0, 0.2)
    (wanted,) = torch.autograd.grad(5 * expected, logits)
    found = r_drop_loss(
        {"logits": logits}, labels.repeat(2, 1), items, weight=3.0, label_smoothing_factor=0.2
    )
    torch.testing.assert_close(found, expected.to(found.dtype), atol=1e-6, rtol=1e-6)
    (gradient,) = torch.autograd.grad(5 * found, logits)
    # The smoothed loss beside it is computed in float32.
    torch.testing.assert_close(gradient, wanted, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_gradient_has_the_dtype_of_the_logits(dtype):
    logits = (4 * torch.randn(2 * B, T, V)).to(dtype).requires_grad_()
    labels = torch.randint(V, (B, T))
    wide = logits.detach().float().requires_grad_()
    options = {"weight": 5.0, "label_smoothing_factor": 0.1}
    for each in (logits, wide):
        loss = r_drop_loss({"logits": each}, labels.repeat(2, 1), **options)
        assert loss.dtype == torch.float32
        loss.backward()
    torch.testing.assert_close(logits.grad.float(), wide.grad, atol=1e-5, rtol=2e-2)


def test_small_gradients_survive_a_scaled_loss_in_float16():
    logits = torch.zeros(2, 1, 50, dtype=torch.float16)
    logits[..., 0] = 19  # the others' probabilities are 6e-9, below the least number of float16
    logits.requires_grad_()
    options = {"weight": 1.0, "label_smoothing_factor": 0.0}
    (2.0**15 * r_drop_loss({"logits": logits}, torch.zeros(2, 1).long(), **options)).backward()
    expected = torch.full((2, 1, 49), 2.0**14 * math.exp(-19))
    torch.testing.assert_close(logits.grad[..., 1:].float(), expected, rtol=1e-2, atol=0)


def test_a_classifiers_loss_is_that_of_texts_of_one_token():
    logits, labels = torch.randn(2 * B, V), torch.tensor([2, -100, 6])
    found = r_drop_loss({"logits": logits}, labels.repeat(2), **WEIGHTS)
    expected = r_drop_loss({"logits": logits[:, None]}, labels.repeat(2)[:, None], **WEIGHTS)
    torch.testing.assert_close(found, expected)


def test_numbers_as_labels_are_rejected():
    for scores, labels in ((1, torch.zeros(4).long()), (3, torch.zeros(4, 3))):
        with pytest.raises(ValueError, match="r_drop needs tokens or one class for each text"):
            r_drop_loss({"logits": torch.zeros(4, scores)}, labels, **WEIGHTS)


def test_a_batch_is_repeated_as_a_whole():
    ids = torch.arange(6).view(2, 3)
    found = repeated({"input_ids": ids, "use_cache": False})
    assert torch.equal(found["input_ids"], torch.cat([ids, ids])) and found["use_cache"] is False


def test_without_dropout_training_is_the_same(tmp_path, encoded, tokenizer):
    options = {"max_tokens_per_batch": 400, "predict_with_generate": False, "max_steps": 3}
    options["optim"] = "sgd"  # Adam magnifies the rounding of gradients near 0
    found = []
    for weight in (0.0, 5.0):
        folder = tmp_path / str(weight)
        trainer = make_trainer(folder, encoded, tokenizer, dropout=0.0, r_drop=weight, **options)
        trainer.train()
        found.append(trainer)
    assert logged(found[1], "loss") == pytest.approx(logged(found[0], "loss"), rel=1e-5)
    for ours, theirs in zip(*(each.model.parameters() for each in found), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("label_smoothing_factor", [0.0, 0.2])
def test_a_language_model_predicts_the_next_token(tmp_path, label_smoothing_factor):
    """Without dropout the loss is the model's own, whose labels are shifted."""
    ids = torch.randint(4, 31, (3, 9))
    batch = {"input_ids": ids, "labels": ids.masked_fill(ids == 7, -100)}
    losses = []
    for weight in (0.0, 5.0):
        args = arguments(tmp_path, r_drop=weight, label_smoothing_factor=label_smoothing_factor)
        torch.manual_seed(0)
        model = small_model(AiaynForCausalLM, dropout=0.0).train()
        trainer = AiaynTrainer(model=model, args=args)
        losses.append(trainer.compute_loss(model, dict(batch)).item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


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
            # Adam's first step has the same size for all gradients, even for gradients near 0.
            optim="sgd", lr_scheduler_type="constant", learning_rate=0.5,
        )  # fmt: skip
        trainer.train()
        weights.append([each.detach().clone() for each in trainer.model.parameters()])
    for ours, theirs in zip(*weights, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_a_loss_function_of_the_user_is_rejected(tmp_path, encoded, tokenizer):
    trainer = make_trainer(tmp_path, encoded, tokenizer, r_drop=1.0, predict_with_generate=False)
    with pytest.raises(ValueError, match="r_drop cannot be used with a compute_loss_func"):
        AiaynTrainer(trainer.model, trainer.args, compute_loss_func=lambda *_: torch.zeros(()))


def test_a_classifier_trains_with_it(tmp_path, tokenizer):
    texts = [f"the dog sees {'the cat ' * (n % 5)}" for n in range(16)]
    rows = {"input_ids": tokenizer(texts).input_ids, "labels": [n % 3 for n in range(16)]}
    losses = {}
    for dropout in (0.0, 0.4):
        for weight in (0.0, 9.0):
            torch.manual_seed(1)
            model = small_model(
                AiaynForSequenceClassification, vocab_size=len(tokenizer), num_labels=3,
                dropout=dropout, classifier_dropout=dropout,
            )  # fmt: skip
            args = ClassifierTrainingArguments(
                str(tmp_path / f"{dropout} {weight}"), r_drop=weight, label_smoothing_factor=0.2,
                per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=2,
                logging_steps=1, use_cpu=True, disable_tqdm=True, eval_strategy="no",
                save_strategy="no", load_best_model_at_end=False,
            )  # fmt: skip
            data = Dataset.from_dict(rows)
            trainer = AiaynTrainer(model, args, train_dataset=data, processing_class=tokenizer)
            trainer.train()
            losses[dropout, weight] = logged(trainer, "loss")
    assert losses[0.0, 9.0] == pytest.approx(losses[0.0, 0.0], rel=1e-4)
    assert sum(losses[0.4, 9.0]) > sum(losses[0.4, 0.0]) + 0.05
