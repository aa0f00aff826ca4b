"""Section 3.2 against hand-computed values and the definition."""

import math

import pytest
import torch
from conftest import small_model
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from modeling_aiayn import AiaynForCausalLM
from modeling_aiayn.attention import (
    MultiHeadAttention,
    additive_mask,
    eager_attention_forward,
    scaled_dot_product_attention,
)

B, T, S, D, H, K = 2, 5, 7, 12, 3, 4


def heads(length, width=K):
    return torch.randn(B, H, length, width)


def test_equation_1_of_the_seed_s_numbers():
    """Seed 001: integer inputs, scores worked out by hand, softmax over each row."""
    scores = torch.tensor(
        [[4.0, 4, 8, 4], [6, 8, 14, 8], [10, 12, 22, 12], [0, 0, 0, 0]], dtype=torch.float64
    )
    inputs = torch.tensor([[1.0, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1]], dtype=torch.float64)
    query = inputs @ torch.tensor([[2.0, 0], [2, 2], [0, 0]], dtype=torch.float64)
    key = inputs @ torch.tensor([[2.0, 1], [2, 2], [2, 2]], dtype=torch.float64)
    value = inputs @ torch.tensor([[0.0, 2, 1], [0, 1, 1], [1, 1, 0]], dtype=torch.float64)
    torch.testing.assert_close(query @ key.T, scores)
    attended, weights = scaled_dot_product_attention(query, key, value)
    expected = [
        [0.050204, 2.748981, 1.799185],
        [0.013921, 2.940932, 1.954853],
        [0.000848, 2.996403, 1.997251],
        [0.25, 1.75, 1.0],
    ]
    torch.testing.assert_close(
        attended, torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0
    )
    torch.testing.assert_close(weights.sum(-1), torch.ones(4, dtype=torch.float64))


def test_two_keys_can_be_checked_by_hand():
    query = torch.tensor([[1.0]])
    key, value = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [1.0]])
    attended, _ = scaled_dot_product_attention(query, key, value)
    assert attended.item() == pytest.approx(math.e / (1 + math.e))


def test_scores_beyond_the_exponential_s_range_stay_finite():
    """Exponentials of 800 and 799 are infinite in 64 bits; their ratio is e."""
    key = torch.tensor([[800.0], [799.0]], dtype=torch.float64)[None, None]
    query, value = torch.ones(1, 1, 1, 1, dtype=torch.float64), torch.zeros_like(key)
    _, weights = scaled_dot_product_attention(query, key, value)
    expected = math.e / (1 + math.e)
    torch.testing.assert_close(weights.flatten(), torch.tensor([expected, 1 - expected]).double())


def test_scores_are_scaled_by_the_width_of_a_head():
    query, key = heads(T), heads(S)
    _, weights = scaled_dot_product_attention(query, key, heads(S))
    expected = torch.einsum("bhtk,bhsk->bhts", query, key).div(2).softmax(-1)
    torch.testing.assert_close(weights, expected)


def test_values_may_have_another_width_than_keys():
    attended, _ = scaled_dot_product_attention(heads(T), heads(S), heads(S, 9))
    assert attended.shape == (B, H, T, 9)


def test_masked_keys_get_no_weight_and_the_rest_all():
    mask = torch.zeros(B, 1, 1, S)
    mask[0, ..., 3:] = torch.finfo(torch.float32).min
    _, weights = scaled_dot_product_attention(heads(T), heads(S), heads(S), mask)
    assert (weights[0, ..., 3:] == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, H, T))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_of_padding_alone_stays_finite(dtype):
    mask = torch.full((B, 1, T, S), torch.finfo(dtype).min, dtype=dtype)
    query, key, value = (tensor.to(dtype) for tensor in (heads(T), heads(S), heads(S)))
    attended, weights = scaled_dot_product_attention(query, key, value, mask)
    assert attended.isfinite().all()
    assert weights.isfinite().all()


def test_dropout_falls_on_weights_and_keeps_their_mean():
    torch.manual_seed(0)
    query, key = torch.zeros(1, 1, 1000, K), torch.zeros(1, 1, S, K)
    value = torch.ones(1, 1, S, 1)
    attended, weights = scaled_dot_product_attention(query, key, value, dropout=0.5)
    torch.testing.assert_close(weights, torch.full_like(weights, 1 / S))
    assert len(attended.unique()) > 2
    assert attended.mean() == pytest.approx(1.0, abs=0.05)


def test_attention_is_permutation_equivariant():
    attention = MultiHeadAttention(D, H)
    states = torch.randn(B, S, D)
    order = torch.randperm(S)
    plain, _ = attention(states, *attention.project_keys_values(states))
    moved, _ = attention(states[:, order], *attention.project_keys_values(states[:, order]))
    torch.testing.assert_close(moved, plain[:, order])


@pytest.mark.parametrize(("head_dim", "width"), [(None, 4), (D, D), (5, 5)])
def test_heads_equal_a_loop_over_heads(head_dim, width):
    """Narrow by default, wide with head_dim = d_model, or any width."""
    attention = MultiHeadAttention(D, H, head_dim, bias=True)
    states, source = torch.randn(B, T, D), torch.randn(B, S, D)
    output, _ = attention(states, *attention.project_keys_values(source))
    expected = attention.out_proj.bias.expand(B, T, D).clone()
    for head in range(H):
        rows = slice(head * width, (head + 1) * width)
        query, key, value = (
            tensor @ projection.weight[rows].T + projection.bias[rows]
            for tensor, projection in (
                (states, attention.q_proj),
                (source, attention.k_proj),
                (source, attention.v_proj),
            )
        )
        attended, _ = scaled_dot_product_attention(query, key, value)
        expected += attended @ attention.out_proj.weight[:, rows].T
    torch.testing.assert_close(output, expected)


@pytest.mark.parametrize(
    ("head_dim", "parameters"),
    [(None, 4 * 512 * 512 + 512), (512, 3 * 512 * 8 * 512 + 8 * 512 * 512 + 512)],
)
def test_parameter_counts_of_the_seed(head_dim, parameters):
    """Seed 000 counts 1,049,088 for narrow and 8,389,120 for wide heads, output bias included."""
    attention = MultiHeadAttention(512, 8, head_dim)
    count = sum(parameter.numel() for parameter in attention.parameters())
    assert count + 512 == parameters


@pytest.mark.parametrize("name", ["q_proj", "k_proj", "v_proj", "out_proj"])
def test_each_projection_matters_and_learns(name):
    attention = MultiHeadAttention(D, H)
    states = torch.randn(B, T, D)

    def run():
        return attention(states, *attention.project_keys_values(states))[0]

    before = run()
    before.square().sum().backward()
    projection = getattr(attention, name)
    assert projection.weight.grad.abs().min() > 0
    with torch.no_grad():
        projection.weight[1, 2] += 1
    assert not torch.allclose(run(), before)


def test_attention_dropout_is_off_in_evaluation():
    attention = MultiHeadAttention(D, H, dropout=0.9)
    states = torch.randn(B, T, D)
    key, value = attention.project_keys_values(states)
    training, _ = attention(states, key, value)
    attention.eval()
    evaluation, _ = attention(states, key, value)
    again, _ = attention(states, key, value)
    assert not torch.allclose(training, evaluation)
    torch.testing.assert_close(evaluation, again)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_flex_attention_gives_the_same_outputs(batch):
    """Slow because it is compiled; on CPUs it has no gradient, and wants heads of 16 at least."""
    model = small_model(head_dim=16)
    # With a static cache its mask is an object of its own, no tensor.
    options = {"max_new_tokens": 3, "cache_implementation": "static", "disable_compile": True}
    expected = model(**batch).logits
    ids = model.generate(batch["input_ids"], **options)
    model.set_attn_implementation("flex_attention")
    with torch.no_grad():
        torch.testing.assert_close(model(**batch).logits, expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(model.generate(batch["input_ids"], **options), ids)


def test_a_row_of_padding_with_low_scores_stays_finite_in_float16():
    """The dtype's minimum and such a score together are minus infinity."""
    query = torch.full((1, 1, 2, 4), 30.0, dtype=torch.float16)
    value = torch.randn(1, 1, 3, 4).half()
    lowest = torch.finfo(torch.float16).min
    mask = torch.tensor([[[[lowest] * 3, [0.0, 0.0, lowest]]]], dtype=torch.float16)
    key = torch.full((1, 1, 3, 4), -1.0, dtype=torch.float16)
    attended, weights = eager_attention_forward(torch.nn.Module(), query, key, value, mask)
    assert attended.isfinite().all()
    torch.testing.assert_close(weights[0, 0, 1], torch.tensor([0.5, 0.5, 0.0]).half())


@pytest.mark.parametrize("implementation", ["eager", "sdpa", "aiayn_blockwise"])
def test_a_boolean_4d_mask_hides_keys(implementation):
    """Library models run with sdpa, where such a mask is usual."""
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    model = small_model(AiaynForCausalLM).eval()
    model.set_attn_implementation(implementation)
    causal = torch.ones(1, 1, 5, 5, dtype=torch.bool).tril()
    expected = model(ids).logits
    torch.testing.assert_close(model(ids, attention_mask=causal).logits, expected)
    with pytest.raises(
        ValueError, match=r"must be boolean.*got torch\.int64\. Pass mask\.bool\(\)"
    ):
        model(ids, attention_mask=causal.long())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("implementation", ["eager", "aiayn_blockwise"])
def test_a_float32_4d_mask_fits_every_dtype(implementation, dtype):
    """Its minimum would be minus infinity in float16, and a row of those gives NaN."""
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    model = small_model(AiaynForCausalLM).to(dtype)
    model.set_attn_implementation(implementation)
    hidden = ~torch.ones(1, 1, 5, 5, dtype=torch.bool).tril()
    causal = torch.zeros(1, 1, 5, 5).masked_fill(hidden, torch.finfo(torch.float32).min)
    logits = model(ids, attention_mask=causal).logits
    torch.testing.assert_close(logits, model(ids).logits)
    for lowest in (torch.finfo(torch.float32).min, -torch.inf):
        causal[:, :, 0] = lowest
        for mask in (causal, causal.to(dtype)):
            assert model(ids, attention_mask=mask).logits.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("mask_dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_mask_of_any_dtype_is_added_to_scores_of_any_dtype(dtype, mask_dtype):
    found = additive_mask(torch.tensor([0.5, -2.0, -torch.inf], dtype=mask_dtype), dtype)
    lowest = torch.finfo(dtype).min / (2 if dtype == torch.float16 else 1)
    assert found.dtype == dtype
    assert found.tolist() == [0.5, -2.0, lowest]


def varlen_attention(query, key, value, attention_mask, query_length, is_causal, **_):
    """Attend as the kernels of flash attention do, [B, T, H, K]; the mask is [B, S]."""
    query, key, value = (states.transpose(1, 2) for states in (query, key, value))
    allowed = torch.ones(query_length, key.size(2), dtype=torch.bool)
    if is_causal:
        allowed = allowed.tril(key.size(2) - query_length)
    allowed = allowed.expand(query.size(0), 1, -1, -1)
    if attention_mask is not None:
        allowed = allowed & attention_mask[:, None, None, -key.size(2) :].bool()
    scores = query @ key.transpose(-2, -1) / query.size(-1) ** 0.5
    weights = scores.masked_fill(~allowed, -1e9).softmax(-1)
    return (weights @ value).transpose(1, 2)


@pytest.mark.parametrize("padding_side", ["left", "right"])
def test_flash_attention_gets_the_right_masks(monkeypatch, padding_side):
    """The kernels need a GPU, so a function that takes the same masks replaces them."""
    monkeypatch.setattr(
        "transformers.integrations.flash_attention._flash_attention_forward", varlen_attention
    )
    model = small_model()
    row = torch.tensor([[4, 5, 6, 7, 2], [8, 9, 2, 1, 1]])
    if padding_side == "left":
        row = torch.stack([row[0], row[1].roll(2)])
    inputs = {"input_ids": row, "labels": torch.tensor([[10, 11, 2], [12, 2, -100]])}
    options = {"num_beams": 3, "max_new_tokens": 6, "do_sample": False}
    expected = model(**inputs).logits
    tokens = model.generate(row, **options)
    assert model._supports_flash_attn
    for module in model.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = "flash_attention_2"
    torch.testing.assert_close(model(**inputs).logits, expected)
    assert torch.equal(model.generate(row, **options), tokens)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="flash attention needs a GPU")
def test_flash_attention_gives_the_logits_of_eager_attention():
    pytest.importorskip("flash_attn")
    model = small_model(d_model=48).cuda().to(torch.bfloat16)
    ids = torch.tensor([[4, 5, 6, 7, 2], [8, 9, 2, 1, 1]]).cuda()
    expected = model(ids, labels=ids).logits
    model.set_attn_implementation("flash_attention_2")
    torch.testing.assert_close(model(ids, labels=ids).logits, expected, rtol=0.05, atol=0.05)


def test_an_implementation_of_ones_own_gets_the_scale_and_may_return_weights():
    def doubled(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
        scores = query @ key.transpose(2, 3) * scaling
        weights = (scores if attention_mask is None else scores + attention_mask).softmax(-1)
        return (2 * weights @ value).transpose(1, 2), weights

    AttentionInterface.register("doubled", doubled)
    AttentionMaskInterface.register("doubled", eager_mask)
    ids = {"input_ids": torch.tensor([[5, 6, 7, 2]]), "decoder_input_ids": torch.tensor([[0, 8]])}
    model = small_model(encoder_layers=1, decoder_layers=1)
    eager = model(**ids, output_attentions=True)
    model.set_attn_implementation("doubled")
    outputs = model(**ids, output_attentions=True)
    torch.testing.assert_close(outputs.encoder_attentions[0], eager.encoder_attentions[0])
    assert outputs.cross_attentions[0].shape == (1, 2, 2, 4)
    assert not torch.allclose(outputs.logits, eager.logits)


def test_d_model_must_be_a_multiple_of_num_heads():
    with pytest.raises(ValueError, match="d_model=25 and num_heads=8"):
        MultiHeadAttention(25, 8)
