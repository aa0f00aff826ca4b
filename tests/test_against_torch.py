"""The whole stack against torch's own: nn.MultiheadAttention and nn.Transformer's layers."""

import pytest
import torch
from torch import nn

from modeling_aiayn.attention import MultiHeadAttention
from modeling_aiayn.layers import DecoderLayer, EncoderLayer, LayerSizes

B, T, S, D, H, F = 2, 5, 7, 12, 3, 13
SIZES = LayerSizes(D, H, F, dropout=0.0, attention_bias=True, layer_norm_eps=1e-5)


def additive(hidden):
    """A mask in our form: the dtype's minimum where a key is hidden."""
    return torch.zeros(hidden.shape).masked_fill(hidden, torch.finfo(torch.float32).min)


def hidden_keys():
    """The last two keys of the second row are padding."""
    hidden = torch.zeros(B, S, dtype=torch.bool)
    hidden[1, -2:] = True
    return hidden


def copy_attention(ours, theirs):
    with torch.no_grad():
        for index, name in enumerate(("q_proj", "k_proj", "v_proj")):
            rows = slice(index * D, (index + 1) * D)
            getattr(ours, name).weight.copy_(theirs.in_proj_weight[rows])
            getattr(ours, name).bias.copy_(theirs.in_proj_bias[rows])
    ours.out_proj.load_state_dict(theirs.out_proj.state_dict())


def randomise(module):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.5)


@pytest.fixture
def inputs():
    torch.manual_seed(0)
    return torch.randn(B, T, D, requires_grad=True), torch.randn(B, S, D, requires_grad=True)


def gradients(output, *tensors):
    """Gradients of a loss in which every output has its own weight."""
    weights = torch.linspace(-1, 1, output.numel()).view(output.shape)
    return torch.autograd.grad((output * weights).sum(), tensors)


def test_multi_head_attention_agrees_in_outputs_weights_and_gradients(inputs):
    states, source = inputs
    theirs = nn.MultiheadAttention(D, H, batch_first=True)
    randomise(theirs)
    ours = MultiHeadAttention(D, H, bias=True)
    copy_attention(ours, theirs)
    hidden = hidden_keys()
    expected, expected_weights = theirs(
        states, source, source, key_padding_mask=hidden, average_attn_weights=False
    )
    output, weights = ours(
        states, *ours.project_keys_values(source), additive(hidden)[:, None, None]
    )
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(weights, expected_weights, atol=1e-6, rtol=1e-5)
    projections = (ours.q_proj, ours.k_proj, ours.v_proj)
    ours_gradients = gradients(output, states, source, *(p.weight for p in projections))
    their_gradients = gradients(expected, states, source, theirs.in_proj_weight)
    for mine, other in zip(ours_gradients[:2], their_gradients[:2], strict=True):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        torch.cat(ours_gradients[2:]), their_gradients[2], atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layer_agrees(inputs, norm_first):
    _, source = inputs
    theirs = nn.TransformerEncoderLayer(
        D, H, F, dropout=0.0, batch_first=True, norm_first=norm_first
    )
    randomise(theirs)
    ours = EncoderLayer(LayerSizes(**(vars(SIZES) | {"norm_first": norm_first})))
    copy_attention(ours.self_attn, theirs.self_attn)
    ours.self_attn_layer_norm.load_state_dict(theirs.norm1.state_dict())
    ours.final_layer_norm.load_state_dict(theirs.norm2.state_dict())
    ours.fc1.load_state_dict(theirs.linear1.state_dict())
    ours.fc2.load_state_dict(theirs.linear2.state_dict())
    hidden = hidden_keys()
    expected = theirs(source, src_key_padding_mask=hidden)
    output = ours(source, additive(hidden)[:, None, None])
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
    mine, other = gradients(output, source), gradients(expected, source)
    torch.testing.assert_close(mine, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("norm_first", [False, True])
def test_decoder_layer_agrees(inputs, norm_first):
    states, source = inputs
    theirs = nn.TransformerDecoderLayer(
        D, H, F, dropout=0.0, batch_first=True, norm_first=norm_first
    )
    randomise(theirs)
    ours = DecoderLayer(LayerSizes(**(vars(SIZES) | {"norm_first": norm_first})), layer_idx=0)
    copy_attention(ours.self_attn, theirs.self_attn)
    copy_attention(ours.encoder_attn, theirs.multihead_attn)
    ours.self_attn_layer_norm.load_state_dict(theirs.norm1.state_dict())
    ours.encoder_attn_layer_norm.load_state_dict(theirs.norm2.state_dict())
    ours.final_layer_norm.load_state_dict(theirs.norm3.state_dict())
    ours.fc1.load_state_dict(theirs.linear1.state_dict())
    ours.fc2.load_state_dict(theirs.linear2.state_dict())
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    hidden = hidden_keys()
    expected = theirs(states, source, tgt_mask=future, memory_key_padding_mask=hidden)
    output = ours(states, source, additive(future)[None, None], additive(hidden)[:, None, None])
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
    mine, other = gradients(output, states, source), gradients(expected, states, source)
    torch.testing.assert_close(mine, other, atol=1e-4, rtol=1e-4)
