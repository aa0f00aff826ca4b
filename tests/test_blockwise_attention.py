"""Attention in blocks against equation 1 and torch's own kernel."""

import copy

import pytest
import torch
from conftest import small_model
from torch.utils.checkpoint import checkpoint
from transformers import AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask

from modeling_aiayn import AiaynForCausalLM
from modeling_aiayn.attention import scaled_dot_product_attention
from modeling_aiayn.attention_kernels import blockwise_attention as module
from modeling_aiayn.attention_kernels import blockwise_operation as operations
from modeling_aiayn.attention_kernels.blockwise_operation import blockwise_attention_forward

B, H, K, W = 2, 3, 5, 4
# Queries and keys: fewer than a block, whole blocks, and a part of a block.
LENGTHS = [(7, 9), (16, 24), (8, 29), (27, 8), (21, 37)]
NAME = "aiayn_blockwise"


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 8)
    monkeypatch.setattr(operations, "FEWEST_SCORES", 0)


class Attention(torch.nn.Module):
    def __init__(self, is_causal=False):
        super().__init__()
        self.is_causal = is_causal


def inputs(queries, keys, dtype=torch.float64):
    shapes = ((queries, K), (keys, K), (keys, W))
    return [torch.randn(B, H, *shape).to(dtype).requires_grad_() for shape in shapes]


def mask_of(kind, queries, keys):
    """None, or a mask that lets every query attend to a key; the first blocks may be hidden."""
    if kind == "none":
        return None
    real = torch.ones(B, 1, 1, keys, dtype=torch.bool)
    real[0, ..., keys - keys // 3 :] = False
    real[1, ..., : keys // 2] = False
    if kind == "padding":
        return real
    random = torch.rand(B, H if kind == "heads" else 1, queries, keys) < 0.6
    random[..., -1] = True
    return torch.randn(random.shape).double() if kind == "bias" else random


def plain(query, key, value, mask):
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.where(mask, 0.0, -1e30).to(query.dtype)
    return scaled_dot_product_attention(query, key, value, mask)[0].transpose(1, 2)


def assert_same_gradients(found, expected, given, **tolerances):
    gradient = torch.randn_like(found)
    ours, theirs = (torch.autograd.grad(output, given, gradient) for output in (found, expected))
    torch.testing.assert_close(ours, theirs, **tolerances)


@pytest.mark.parametrize("kind", ["none", "padding", "random", "heads", "bias"])
@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
def test_outputs_and_gradients_are_those_of_equation_1(queries, keys, kind):
    given, mask = inputs(queries, keys), mask_of(kind, queries, keys)
    found, weights = blockwise_attention_forward(Attention(), *given, mask)
    expected = plain(*given, mask)
    assert weights is None
    torch.testing.assert_close(found, expected)
    assert_same_gradients(found, expected, given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("length", [7, 16, 29])
def test_causal_attention_is_that_of_torch(length, dtype):
    given = inputs(length, length, dtype)
    found, _ = blockwise_attention_forward(Attention(is_causal=True), *given, None)
    expected = torch.nn.functional.scaled_dot_product_attention(*given, is_causal=True)
    expected = expected.transpose(1, 2)
    assert found.dtype == dtype
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
    assert_same_gradients(found, expected, given, atol=2 * tolerance, rtol=2 * tolerance)


def test_blocks_that_no_query_attends_to_are_not_computed(monkeypatch):
    computed = []
    scores = module._Blocks.scores

    def counted(self, rows, columns):
        computed.append((rows.start // 8, columns.start // 8))
        return scores(self, rows, columns)

    monkeypatch.setattr(module._Blocks, "scores", counted)
    given = [each[:1] for each in inputs(24, 24)]
    blockwise_attention_forward(Attention(is_causal=True), *given, None)
    assert computed == [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]
    computed.clear()
    mask = torch.zeros(1, 1, 24, 24, dtype=torch.bool)
    mask[..., :8, :8] = mask[..., 8:, 16:] = True
    blockwise_attention_forward(Attention(), *given, mask)
    assert computed == [(0, 0), (1, 2), (2, 2)]


def test_one_query_after_a_cache_attends_to_all_keys():
    given = inputs(1, 20)
    found, _ = blockwise_attention_forward(Attention(is_causal=True), *given, None)
    torch.testing.assert_close(found, plain(*given, None))


@pytest.mark.parametrize("fewest", [0, 10**6], ids=["blocks", "plain"])
def test_large_scores_and_rows_without_keys_stay_finite(monkeypatch, fewest):
    monkeypatch.setattr(operations, "FEWEST_SCORES", fewest)
    query, key, value = inputs(20, 20, torch.float32)
    mask = torch.ones(B, 1, 20, 20, dtype=torch.bool)
    mask[0, :, 3:12] = False
    given = (query * 1e3, key * 1e3, value)
    found, _ = blockwise_attention_forward(Attention(), *given, mask)
    gradients = torch.autograd.grad(found.sum(), (query, key, value))
    assert all(each.isfinite().all() for each in (found, *gradients))
    if not fewest:
        assert (found[0, 3:12] == 0).all()
    torch.testing.assert_close(found[1], plain(*given, None)[1])


@pytest.mark.parametrize("operation", [operations.blockwise_attention, operations._Attention.apply])
@pytest.mark.parametrize("kind", ["none", "causal", "padding", "heads", "bias"])
def test_gradients_are_those_of_finite_differences_with_dropout(kind, operation):
    """The backward pass must draw the same weights again."""
    seed, is_causal = torch.tensor(7), kind == "causal"
    mask = mask_of("none" if is_causal else kind, 9, 9)
    mask = mask if mask is None else mask[:1, :2]

    def attend(query, key, value):
        return operation(query, key, value, mask, seed, 0.3, is_causal)[0]

    given = [each[:1, :2].detach().requires_grad_() for each in inputs(9, 9)]
    assert torch.autograd.gradcheck(attend, given)


def test_keys_and_values_are_repeated_as_in_equation_1():
    """As of one source that several targets attend to."""
    query, key, value = inputs(11, 13)
    few = [query, key[:1, :1].detach().requires_grad_(), value[:1, :1].detach().requires_grad_()]
    found, _ = blockwise_attention_forward(Attention(), *few, None)
    expected = plain(*few, None)
    torch.testing.assert_close(found, expected)
    assert_same_gradients(found, expected, few)


@pytest.mark.parametrize("length", [7, 300])
def test_models_of_the_library_have_scales_of_their_own(length):
    """Granite's and T5's; 300 tokens take the blocks."""
    query, key, value = inputs(length, length)
    found, _ = blockwise_attention_forward(Attention(), query, key, value, None, scaling=1 / 64)
    expected, _ = sdpa_attention_forward(Attention(), query, key, value, None, scaling=1 / 64)
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found, plain(query, key, value, None))


def test_features_of_library_models_are_rejected():
    query, key, value = inputs(11, 13)
    for queries, options in ((torch.cat([query, query], dim=1), {}), (query, {"softcap": 50.0})):
        with pytest.raises(ValueError, match="no groups of queries and no softcap"):
            blockwise_attention_forward(Attention(), queries, key, value, None, **options)


def test_queries_that_see_the_same_keys_share_a_row_of_the_mask():
    """With the shape of sdpa's mask, which models concatenate with others."""
    make = AttentionMaskInterface()[NAME]
    padding = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    sizes = {"batch_size": 2, "q_length": 3, "kv_length": 4, "attention_mask": padding}
    for function, rows in ((bidirectional_mask_function, 0), (causal_mask_function, 4)):
        options = {"mask_function": function, "allow_is_causal_skip": False}
        found, expected = (make_mask(**sizes, **options) for make_mask in (make, sdpa_mask))
        assert torch.equal(found, expected) and found.shape == (2, 1, 3, 4)
        assert found.stride(2) == rows
    options = {"mask_function": bidirectional_mask_function, "allow_is_bidirectional_skip": True}
    assert make(**sizes | {"attention_mask": None}, **options) is None


def test_dropout_falls_on_weights_and_keeps_their_mean():
    query, key = torch.zeros(2, 2, 400, K), torch.zeros(2, 2, 90, K)
    value = torch.eye(90).expand(2, 2, -1, -1)
    torch.manual_seed(0)
    weights, _ = blockwise_attention_forward(Attention(), query, key, value, None, dropout=0.25)
    weights = weights * 90  # [B, T, H, S]
    levels = weights.unique()
    torch.testing.assert_close(levels, torch.tensor([0.0, 4 / 3]), atol=1e-4, rtol=0)
    assert (weights == 0).float().mean() == pytest.approx(0.25, abs=0.01)
    # Blocks, heads and sentences are drawn independently.
    parts = [weights[0, :8, 0, :8], weights[0, 8:16, 0, :8], weights[0, :8, 0, 8:16]]
    parts += [weights[0, :8, 1, :8], weights[1, :8, 0, :8]]
    for index, part in enumerate(parts):
        assert not any(torch.equal(part, other) for other in parts[:index])
    again, _ = blockwise_attention_forward(Attention(), query, key, value, None, dropout=0.25)
    assert not torch.equal(again * 90, weights)


@pytest.mark.parametrize("is_causal", [False, True])
def test_short_inputs_take_the_plain_form(monkeypatch, is_causal):
    monkeypatch.setattr(operations, "FEWEST_SCORES", 21 * 21 + 1)
    monkeypatch.setattr(operations, "_Attention", None)
    given = inputs(21, 21)
    found, _ = blockwise_attention_forward(Attention(is_causal), *given, None)
    later = torch.ones(21, 21).triu(1).bool()
    torch.testing.assert_close(found, plain(*given, ~later if is_causal else None))
    mask = mask_of("heads", 21, 21)
    found, _ = blockwise_attention_forward(Attention(is_causal), *given, mask)
    torch.testing.assert_close(found, plain(*given, mask))


@pytest.mark.parametrize("overrides", [{}, {"head_dim": 5}, {"attention_bias": True}])
@pytest.mark.parametrize(
    ("implementation", "fewest"),
    [("sdpa", 0), (NAME, 0), (NAME, 10**6)],
    ids=["sdpa", "blocks", "plain"],
)
def test_a_model_has_the_same_outputs_and_gradients(
    batch, monkeypatch, overrides, implementation, fewest
):
    """With padding on both sides, and a causal decoder; the same tokens too."""
    monkeypatch.setattr(operations, "FEWEST_SCORES", fewest)
    model = small_model(**overrides)
    options = {"num_beams": 3, "max_new_tokens": 12, "do_sample": False}
    tokens = model.generate(batch["input_ids"], **options)
    eager = model(**batch)
    eager.loss.backward()
    gradients = {name: each.grad.clone() for name, each in model.named_parameters()}
    model.zero_grad()
    model.set_attn_implementation(implementation)
    found = model(**batch)
    found.loss.backward()
    torch.testing.assert_close(found.logits, eager.logits, atol=1e-5, rtol=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], atol=1e-5, rtol=1e-4)
    assert torch.equal(model.generate(batch["input_ids"], **options), tokens)


def test_checkpointing_draws_the_same_weights_again():
    given = inputs(21, 21)

    def attend(*tensors):
        return blockwise_attention_forward(Attention(), *tensors, None, dropout=0.4)[0].square()

    found = []
    for run in (attend, lambda *tensors: checkpoint(attend, *tensors, use_reentrant=False)):
        torch.manual_seed(3)
        found.append(torch.autograd.grad(run(*given).sum(), given))
    torch.testing.assert_close(*found)


@pytest.mark.long
@pytest.mark.filterwarnings("default")
def test_a_training_step_compiles_whole(batch):
    model = small_model(attn_implementation=NAME)
    expected = copy.deepcopy(model)
    loss = expected(**batch).loss
    loss.backward()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    found = compiled(**batch).loss
    found.backward()
    torch.testing.assert_close(found, loss)
    for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.filterwarnings("default")
def test_an_exported_program_takes_texts_of_any_length():
    class Encode(torch.nn.Module):
        def forward(self, query, key, value):
            return blockwise_attention_forward(Attention(), query, key, value, None)[0]

    length = torch.export.Dim("length", min=2, max=4096)
    given = [each.detach() for each in inputs(9, 9)]
    program = torch.export.export(Encode(), tuple(given), dynamic_shapes=[{2: length}] * 3)
    other = [each.detach() for each in inputs(30, 30)]
    torch.testing.assert_close(program.module()(*other), plain(*other, None))


@pytest.mark.filterwarnings("default")
def test_a_model_with_padding_is_exported(batch):
    model = small_model(attn_implementation=NAME).eval()
    ids = batch["input_ids"]
    given = {"input_ids": ids, "attention_mask": (ids != model.config.pad_token_id).long()}
    given |= {"decoder_input_ids": batch["labels"].clamp(min=1), "use_cache": False}
    assert not given["attention_mask"].all()
    program = torch.export.export(model, (), given, strict=False)
    torch.testing.assert_close(program.module()(**given).logits, model(**given).logits)


@pytest.mark.long
def test_memory_does_not_grow_with_the_square_of_the_length(monkeypatch):
    """No tensor has more numbers than the inputs, or a block of scores."""
    largest = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            result = function(*arguments, **(options or {}))
            found = result if isinstance(result, tuple) else (result,)
            tensors = [each for each in found if isinstance(each, torch.Tensor)]
            largest.extend(each.untyped_storage().size() // each.itemsize for each in tensors)
            return result

    given = inputs(160, 160)
    with Watch():
        blockwise_attention_forward(Attention(), *given, None)[0].sum().backward()
    assert max(largest) <= B * H * 160 * K
    largest.clear()
    model = small_model(attn_implementation=NAME, max_position_embeddings=160, activation_dropout=0)
    ids = torch.randint(5, 20, (2, 160))
    ids[1, 100:] = model.config.pad_token_id
    with Watch():
        model(input_ids=ids, labels=ids[:, :3]).loss.backward()
    sizes = (model.config.d_model, model.config.encoder_ffn_dim, model.config.vocab_size)
    assert max(largest) <= 2 * 160 * max(sizes)


@pytest.mark.parametrize("length", [16, 300])
def test_a_learned_bias_gets_its_gradient(length):
    gradients = []
    for implementation in ("eager", "aiayn_blockwise"):
        model = small_model(AiaynForCausalLM, attn_implementation=implementation)
        ids = torch.arange(length)[None] % 20 + 5
        bias = torch.zeros(1, 1, length, length)
        bias = bias.masked_fill(torch.ones(length, length).triu(1).bool(), -1e9).requires_grad_()
        model(ids, attention_mask=bias, use_cache=False).logits.square().sum().backward()
        gradients.append(bias.grad)
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-4, rtol=1e-4)
