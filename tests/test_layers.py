"""Sections 3.1, 3.3 and 3.5 against their formulas."""

import math

import pytest
import torch
from torch.nn import functional
from transformers import DynamicCache, EncoderDecoderCache

from modeling_aiayn.layers import (
    AddNorm,
    DecoderLayer,
    EncoderLayer,
    LayerSizes,
    LearnedPositions,
    SinusoidalPositions,
    feed_forward,
    sinusoidal_positions,
)

B, T, S, D = 2, 5, 7, 12


def sizes(**overrides):
    return LayerSizes(**({"d_model": D, "num_heads": 3, "ffn_dim": 13, "dropout": 0.0} | overrides))


def test_sinusoids_are_the_formula_interleaved():
    encodings = sinusoidal_positions(torch.arange(50), D)
    for position in (0, 1, 7, 49):
        for i in range(D // 2):
            angle = position / 10000 ** (2 * i / D)
            assert encodings[position, 2 * i] == pytest.approx(math.sin(angle), abs=1e-6)
            assert encodings[position, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-6)


def test_sinusoids_hold_their_precision_far_out():
    position = 123_456
    encoding = sinusoidal_positions(torch.tensor([position]), D)[0]
    angles = [position / 10000 ** (2 * i / D) for i in range(D // 2)]
    expected = [wave(angle) for angle in angles for wave in (math.sin, math.cos)]
    torch.testing.assert_close(encoding, torch.tensor(expected), atol=1e-6, rtol=0)


def test_wavelengths_go_from_2_pi_to_10000_times_that():
    slowest = 10000 ** ((D - 2) / D)
    encodings = sinusoidal_positions(torch.tensor([0.0, 2 * math.pi, 2 * math.pi * slowest]), D)
    torch.testing.assert_close(encodings[1, :2], encodings[0, :2], atol=1e-6, rtol=0)
    torch.testing.assert_close(encodings[2, -2:], encodings[0, -2:], atol=1e-6, rtol=0)


def test_a_shift_is_a_rotation_of_each_pair():
    """Section 3.5: PE(p + k) is a linear function of PE(p)."""
    shift = 9
    rotation = torch.zeros(D, D)
    for i in range(D // 2):
        angle = shift / 10000 ** (2 * i / D)
        cosine, sine = math.cos(angle), math.sin(angle)
        rotation[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = torch.tensor(
            [[cosine, sine], [-sine, cosine]]
        )
    positions = torch.arange(30)
    torch.testing.assert_close(
        sinusoidal_positions(positions + shift, D),
        sinusoidal_positions(positions, D) @ rotation.T,
        atol=1e-5,
        rtol=0,
    )


def test_base_and_offset_move_the_sinusoids():
    encodings = SinusoidalPositions(D, base=77.0, offset=2)(torch.tensor([[0, 3]]))
    expected = [[math.sin(p / 77 ** (2 / D)) for p in (2, 5)]]
    torch.testing.assert_close(encodings[..., 2], torch.tensor(expected))


def test_odd_width_is_refused():
    with pytest.raises(ValueError, match=r"d_model must be even.*d_model=13"):
        sinusoidal_positions(torch.arange(3), 13)


def test_learned_positions_are_rows_of_a_table():
    positions = LearnedPositions(11, D, offset=2)
    assert positions.weight.shape == (13, D)
    torch.testing.assert_close(positions(torch.tensor([[4]]))[0, 0], positions.weight[6])


def test_feed_forward_is_equation_2():
    fc1, fc2 = torch.nn.Linear(D, 13), torch.nn.Linear(13, D)
    states = torch.randn(B, T, D)
    hidden = (states @ fc1.weight.T + fc1.bias).clamp(min=0)
    torch.testing.assert_close(feed_forward(states, fc1, fc2), hidden @ fc2.weight.T + fc2.bias)


@pytest.mark.parametrize("norm_first", [False, True])
def test_add_norm_is_section_3_1(norm_first):
    norm = AddNorm(D, eps=1e-3, dropout=0.0, norm_first=norm_first)
    with torch.no_grad():
        norm.weight.normal_(), norm.bias.normal_()
    states = torch.randn(B, T, D)

    def normalise(x):
        deviation = x - x.mean(-1, keepdim=True)
        variance = deviation.square().mean(-1, keepdim=True)
        return deviation / (variance + 1e-3).sqrt() * norm.weight + norm.bias

    output = norm.after(states, 2 * norm.before(states))
    expected = states + 2 * normalise(states) if norm_first else normalise(3 * states)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)


def test_dropout_falls_on_the_sub_layer_and_not_on_the_residual():
    norm = AddNorm(D, eps=1e-6, dropout=0.999999, norm_first=True)
    states = torch.randn(B, T, D)
    torch.testing.assert_close(norm.after(states, torch.ones(B, T, D)), states)
    norm.eval()
    torch.testing.assert_close(norm.after(states, torch.ones(B, T, D)), states + 1)


@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layer_is_figure_1_left(norm_first):
    layer = EncoderLayer(sizes(norm_first=norm_first)).eval()
    states = torch.randn(B, S, D)

    def attend(x):
        return layer.self_attn(x, *layer.self_attn.project_keys_values(x))[0]

    def feed(x):
        return layer.fc2(functional.relu(layer.fc1(x)))

    norm_1, norm_2 = layer.self_attn_layer_norm, layer.final_layer_norm
    if norm_first:
        middle = states + attend(norm_1(states))
        expected = middle + feed(norm_2(middle))
    else:
        middle = norm_1(states + attend(states))
        expected = norm_2(middle + feed(middle))
    torch.testing.assert_close(layer(states), expected)


def test_decoder_layer_looks_at_the_source_with_its_own_queries():
    layer = DecoderLayer(sizes(), layer_idx=0).eval()
    states, source = torch.randn(B, T, D), torch.randn(B, S, D)
    middle = layer.self_attn(states, *layer.self_attn.project_keys_values(states))[0]
    middle = layer.self_attn_layer_norm(states + middle)
    attended = layer.encoder_attn(middle, *layer.encoder_attn.project_keys_values(source))[0]
    middle = layer.encoder_attn_layer_norm(middle + attended)
    expected = layer.final_layer_norm(middle + layer.fc2(functional.relu(layer.fc1(middle))))
    torch.testing.assert_close(layer(states, source), expected)


def test_source_is_projected_once_and_target_at_each_step():
    layer = DecoderLayer(sizes(), layer_idx=0).eval()
    source, cache = torch.randn(B, S, D), EncoderDecoderCache(DynamicCache(), DynamicCache())
    layer(torch.randn(B, 1, D), source, cache=cache)
    first = cache.cross_attention_cache.layers[0].keys
    layer(torch.randn(B, 1, D), torch.full_like(source, torch.nan), cache=cache)
    assert cache.cross_attention_cache.layers[0].keys is first
    assert cache.self_attention_cache.get_seq_length() == 2


@pytest.mark.parametrize("rate", ["dropout", "attention_dropout", "activation_dropout"])
def test_each_dropout_acts_only_in_training(rate):
    layer = EncoderLayer(sizes(**{rate: 0.5}))
    states = torch.randn(B, S, D)
    assert not torch.allclose(layer(states), layer(states))
    layer.eval()
    torch.testing.assert_close(layer(states), layer(states))
