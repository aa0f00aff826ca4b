"""Muon: which parameters it updates, its steps, and runs with it."""

import pytest
import torch
from conftest import small_model
from torch import nn
from training_setup import logged, make_trainer
from transformers import BertConfig, BertForSequenceClassification

from modeling_aiayn import AiaynForSequenceClassification
from modeling_aiayn.training import optimization
from modeling_aiayn.training.optimization import (
    MuonAndAdam,
    layer_matrices,
    orthogonalized,
)

# With the constant schedule, each update has the whole rate.
CONSTANT = {"lr_scheduler_type": "constant", "learning_rate": 0.01, "warmup_steps": 0}
OPTIONS = CONSTANT | {"optim": "muon", "predict_with_generate": False}


def names_of(model, parameters):
    known = {parameter: name for name, parameter in model.named_parameters()}
    return {known[each] for each in parameters}


@pytest.fixture
def trainer_with(tmp_path, encoded, tokenizer):
    """Makes a trainer with Muon."""
    return lambda **more: make_trainer(tmp_path, encoded, tokenizer, **(OPTIONS | more))


def test_the_matrices_are_those_of_the_layers():
    model = small_model()
    names = names_of(model, layer_matrices(model))
    linear = {f"{name}.weight" for name, part in model.named_modules() if type(part) is nn.Linear}
    assert names == linear - {"lm_head.weight"}
    # Each encoder layer has 4 and 2, each decoder layer 8 and 2 (figure 1).
    config = model.config
    assert len(names) == 6 * config.encoder_layers + 10 * config.decoder_layers


def test_heads_and_frozen_weights_are_left_out():
    model = small_model(AiaynForSequenceClassification, num_labels=3)
    model.model.encoder.layers[0].requires_grad_(False)
    names = names_of(model, layer_matrices(model))
    assert names and not any(".layers.0." in name or "classifier" in name for name in names)


def test_the_matrices_of_another_model_of_the_library_are_found():
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12, "vocab_size": 20}
    model = BertForSequenceClassification(BertConfig(num_hidden_layers=3, **sizes))
    names = names_of(model, layer_matrices(model))
    assert len(names) == 3 * 6
    assert all(name.startswith("bert.encoder.layer.") for name in names)


def test_the_first_update_is_orthogonal_and_adam_updates_the_rest(trainer_with):
    trainer = trainer_with(max_steps=1)
    model = trainer.model
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    trainer.train()
    matrices = names_of(model, layer_matrices(model))
    for name, parameter in model.named_parameters():
        change = parameter.detach() - before[name]
        if name in matrices:
            # The size of Adam's steps: an RMS of 0.2 times the rate (Liu et al. 2025, eq. 4).
            scale = 0.01 * 0.2 * max(change.shape) ** 0.5
            singular = torch.linalg.svdvals(change)[:-1] / scale
            # Five iterations bring them near 1, not to it (Jordan et al. 2024). Keys' matrices
            # have gradients that are nearly singular.
            assert singular.max() < 1.3, name
            assert singular.median() > 0.6, name
        else:
            changed = change[parameter.grad != 0] if parameter.grad is not None else change
            # Adam's first step has the size of the rate.
            assert changed.abs().max() == pytest.approx(0.01, rel=1e-3), name


@pytest.mark.parametrize("shape", [(3, 5, 8), (2, 8, 5), (1, 6, 6)])
def test_orthogonalized_matrices_keep_their_singular_vectors(shape):
    generator = torch.Generator().manual_seed(0)
    matrices = torch.randn(shape, generator=generator)
    found = orthogonalized(matrices, torch.float32)
    left, singular, right = torch.linalg.svd(matrices, full_matrices=False)
    # In the basis of the singular vectors, the new matrix is diagonal.
    diagonal = left.mT @ found @ right.mT
    values = singular / singular.square().sum(-1, keepdim=True).sqrt()
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    torch.testing.assert_close(diagonal, torch.diag_embed(values), atol=1e-5, rtol=0)
    # Each matrix is scaled by its own norm, and one of zeros stays zero.
    scaled = torch.cat((matrices * 1000, torch.zeros_like(matrices)))
    zeros = torch.zeros_like(found)
    again = orthogonalized(scaled, torch.float32)
    torch.testing.assert_close(again, torch.cat((found, zeros)), atol=1e-5, rtol=0)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon since 2.9")
def test_the_updates_are_those_of_torch(monkeypatch):
    monkeypatch.setattr(optimization, "has_bfloat16_instructions", lambda device: True)
    rates = {"lr": 0.1, "weight_decay": 0.3}
    matrices = [torch.randn(shape) for shape in ((8, 5), (5, 8), (8, 5), (6, 6))]
    ours, theirs = ([nn.Parameter(each.clone()) for each in matrices] for _ in range(2))
    unused = nn.Parameter(torch.ones(4, 4))
    adam = torch.optim.AdamW([nn.Parameter(torch.ones(3))], **rates)
    optimizer = MuonAndAdam([*ours, unused], adam, **rates)
    expected = torch.optim.Muon(theirs, **rates, adjust_lr_fn="match_rms_adamw")
    for _ in range(4):
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = torch.randn_like(mine)
            other.grad = mine.grad.clone()
        optimizer.step()
        expected.step()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=0.01, rtol=0)
        state, theirs_state = optimizer.state[mine], expected.state[other]
        torch.testing.assert_close(state["momentum_buffer"], theirs_state["momentum_buffer"])
    assert torch.equal(unused, torch.ones(4, 4))


def test_weight_decay_is_for_matrices_and_embeddings(trainer_with):
    trainer = trainer_with(weight_decay=0.3)
    decays = {
        name: group["weight_decay"]
        for group in trainer.create_optimizer().param_groups
        for name in names_of(trainer.model, group["params"])
    }
    assert decays.keys() == dict(trainer.model.named_parameters()).keys()
    for name, decay in decays.items():
        assert decay == (0.3 if trainer.model.get_parameter(name).dim() == 2 else 0), name


def test_adam_has_its_arguments(trainer_with):
    trainer = trainer_with(adam_beta1=0.7, adam_beta2=0.8, adam_epsilon=1e-5)
    optimizer = trainer.create_optimizer()
    assert [group.get("betas") for group in optimizer.param_groups] == [None, *2 * [(0.7, 0.8)]]
    assert [group["lr"] for group in optimizer.param_groups] == 3 * [0.01]
    assert optimizer.param_groups[1]["eps"] == 1e-5


def test_the_schedule_moves_all_rates(trainer_with):
    trainer = trainer_with(lr_scheduler_type="linear", max_steps=4)
    trainer.train()
    assert logged(trainer, "learning_rate") == pytest.approx([0.01, 0.0075, 0.005, 0.0025])
    assert [group["lr"] for group in trainer.optimizer.param_groups] == 3 * [0]


def test_schedules_that_read_the_peak_find_it(trainer_with):
    trainer = trainer_with(lr_scheduler_type="polynomial", max_steps=3)
    trainer.train()
    rates = logged(trainer, "learning_rate")
    assert rates[0] == pytest.approx(0.01) and rates == sorted(rates, reverse=True)


def test_the_closure_of_a_step_is_called_once_with_gradients(trainer_with):
    trainer = trainer_with()
    optimizer, weight = trainer.create_optimizer(), layer_matrices(trainer.model)[0]
    before = weight.detach().clone()

    def closure():
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == pytest.approx(before.square().sum().item())
    assert not torch.equal(weight, before)
