"""A saved model with fewer or more layers: which layers are kept, and what the model computes."""

import pytest
import torch
from conftest import small_model
from torch import nn

from modeling_aiayn.training.depth import kept_layers, with_depth

ALL_OPTIONS = {
    "encoder_layers": 3,
    "decoder_layers": 4,
    "norm_first": True,
    "attention_bias": True,
    "lm_head_bias": True,
    "position_type": "learned",
    "tie_word_embeddings": False,
    "decoder_vocab_size": 37,
    "head_dim": 6,
}


def logits_of(model):
    source = torch.tensor([[5, 9, 4, 7, 2], [8, 6, 2, 1, 1]])
    target = torch.tensor([[0, 3, 5], [0, 4, 2]])
    with torch.no_grad():
        return model(source, attention_mask=source.ne(1), decoder_input_ids=target).logits


@pytest.mark.parametrize(
    ("saved", "wanted", "kept"),
    [
        (3, 3, [0, 1, 2]),
        (3, 2, [0, 2]),
        (6, 1, [0]),
        (12, 4, [0, 4, 7, 11]),
        (1, 3, [0, 0, 0]),
        (3, 6, [0, 0, 1, 1, 2, 2]),
        (3, 5, [0, 0, 1, 1, 2]),
    ],
)
def test_kept_layers_are_spread_over_the_stack(saved, wanted, kept):
    assert kept_layers(saved, wanted) == kept


@pytest.mark.parametrize("options", [{"norm_first": True}, ALL_OPTIONS])
def test_a_taller_model_computes_what_it_computed_before(options):
    model = small_model(**options)
    model.generation_config.num_beams = 3
    depths = {"encoder_layers": 7, "decoder_layers": 6}
    taller = with_depth(model, depths).eval()
    assert {name: getattr(taller.config, name) for name in depths} == depths
    torch.testing.assert_close(logits_of(taller), logits_of(model))
    assert taller.generation_config.num_beams == 3
    source = torch.tensor([[5, 9, 4, 7, 2]])
    assert torch.equal(taller.generate(source), model.generate(source))
    taller.train()(source, labels=torch.tensor([[3, 4, 2]])).loss.backward()
    added = taller.model.encoder.layers[1]
    assert added.fc2.weight.grad.abs().sum() > 0 and added.self_attn.out_proj.weight.grad.any()
    assert torch.equal(added.fc1.weight, model.model.encoder.layers[0].fc1.weight)


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_shorter_model_is_the_model_without_some_layers(norm_first):
    model = small_model(**(ALL_OPTIONS | {"norm_first": norm_first}))
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    shorter = with_depth(model, {"decoder_layers": 2, "encoder_layers": 2}).eval()
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    for stack in (model.model.encoder, model.model.decoder):
        stack.layers = nn.ModuleList([stack.layers[0], stack.layers[-1]])
    torch.testing.assert_close(logits_of(shorter), logits_of(model))
    source = torch.tensor([[5, 9, 4, 7, 2]])
    assert shorter.generate(source, max_new_tokens=9, min_new_tokens=9).shape == (1, 10)


def test_a_tied_matrix_stays_tied():
    shorter = with_depth(small_model(decoder_layers=3), {"decoder_layers": 1})
    assert shorter.lm_head.weight is shorter.model.encoder.embed_tokens.weight
    assert shorter.lm_head.weight is shorter.model.decoder.embed_tokens.weight


def test_a_post_norm_model_cannot_grow():
    model = small_model(encoder_layers=2, norm_first=False)
    message = (
        "encoder_layers can only grow with norm_first: true.* Got 3 for a post-norm model of 2"
    )
    with pytest.raises(ValueError, match=message):
        with_depth(model, {"encoder_layers": 3})
