"""The Triton kernels of blockwise attention, on a GPU or run by Triton's interpreter."""

import os
import subprocess
import sys

import pytest
import torch
from conftest import ROOT, small_model
from test_blockwise_attention import NAME, Attention, mask_of, plain

from modeling_aiayn.attention_kernels import blockwise_attention as blocks
from modeling_aiayn.attention_kernels import blockwise_operation as operation

pytest.importorskip("triton", minversion="3.4", reason="triton 3.4 is not installed")
from modeling_aiayn.attention_kernels import triton_attention as kernels

B, H, K, W = 2, 3, 5, 20
LENGTHS = [(7, 9), pytest.param(21, 37, marks=pytest.mark.long)]
SEED = torch.tensor(2**61 + 5)
LARGEST = kernels.LARGEST
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def on_device():
    with torch.device(DEVICE):
        yield


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(kernels, "LARGEST", 16)


@pytest.fixture
def on_cpu(monkeypatch):
    """Let models on the CPU take the kernels, as those on a GPU do."""
    monkeypatch.setattr(operation, "FEWEST_SCORES", 0)
    monkeypatch.setitem(operation.KERNELS, "cpu", (kernels.forward, kernels.backward))


def inputs(queries, keys):
    shapes = ((queries, K), (keys, K), (keys, W))
    # Not contiguous, as the heads of a model.
    return [torch.randn(B, length, H, width).transpose(1, 2) for length, width in shapes]


def close(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kind", ["none", "padding", "random", "heads", "bias"])
@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
def test_outputs_and_gradients_are_those_of_the_blocks_in_torch(queries, keys, kind, is_causal):
    given, mask = inputs(queries, keys), mask_of(kind, queries, keys)
    mask = mask.float() if kind == "bias" else mask
    if mask is not None and is_causal:
        mask[..., 0] = 1  # a query that sees no key has a log-sum of its own in each
    options = (mask, SEED, 0.0, is_causal)
    found, expected = kernels.forward(*given, *options), blocks.blockwise_forward(*given, *options)
    close(found, expected)
    gradient = torch.randn_like(expected[0])
    gradients = kernels.backward(gradient, *given, mask, SEED, *found, 0.0, is_causal)
    # As compilers were told.
    assert [each.stride() for each in gradients] == [each.stride() for each in given]
    rest = (mask, SEED, *expected, 0.0, is_causal)
    close(gradients, blocks.blockwise_backward(gradient, *given, *rest))


def test_rows_without_keys_have_zeros_and_finite_gradients():
    given = inputs(20, 20)
    mask = torch.ones(B, 1, 20, 20, dtype=torch.bool)
    mask[0, :, 3:12] = False
    output, log_sums = kernels.forward(*given, mask, SEED, 0.0, False)
    assert (output[0, :, 3:12] == 0).all() and log_sums.isfinite().all()
    gradients = kernels.backward(
        torch.randn_like(output), *given, mask, SEED, output, log_sums, 0.0, False
    )
    assert all(each.isfinite().all() for each in gradients)


@pytest.mark.long
@pytest.mark.parametrize("is_causal", [False, True])
def test_the_backward_pass_draws_the_same_weights_again(is_causal):
    """Values that are unit vectors show the weights, and so which of them are dropped."""
    query, key, value = inputs(21, 19)
    unit = torch.eye(19).expand(B, H, 19, 19)
    options = (None, SEED, 0.3, is_causal)
    dropped, _ = kernels.forward(query, key, unit, *options)
    whole, _ = kernels.forward(query, key, unit, None, SEED, 0.0, is_causal)
    kept = torch.where(whole > 0, dropped / whole, 0.0)
    close([kept], [(kept > 0) / 0.7])
    given = [each.requires_grad_() for each in (query, key, value)]
    scores = query @ key.transpose(2, 3) / K**0.5
    if is_causal:
        scores = scores.masked_fill(torch.ones(21, 19).triu(1).bool(), -torch.inf)
    expected = (scores.softmax(-1) * kept) @ value
    with torch.no_grad():
        found = kernels.forward(*given, *options)
    close(found[:1], [expected])
    gradient = torch.randn_like(expected)
    with torch.no_grad():
        ours = kernels.backward(gradient, *given, None, SEED, *found, 0.3, is_causal)
    close(ours, torch.autograd.grad(expected, given, gradient))


@pytest.mark.long
def test_dropout_has_its_rate_and_heads_and_sentences_differ():
    query, key = torch.zeros(2, 2, 100, K), torch.zeros(2, 2, 90, K)
    value = torch.eye(90).expand(2, 2, -1, -1)
    found = [kernels.forward(query, key, value, None, SEED + n, 0.25, False)[0] for n in (0, 9)]
    assert float((found[0] == 0).float().mean()) == pytest.approx(0.25, abs=0.01)
    parts = [found[0][n, head] == 0 for n in (0, 1) for head in (0, 1)] + [found[1][0, 0] == 0]
    for index, part in enumerate(parts):
        assert not any(torch.equal(part, other) for other in parts[:index])


@pytest.mark.long
def test_what_dropout_keeps_of_a_row_tells_nothing_about_other_rows():
    """Draws are combined from those of rows and columns: without a hash, all rows would be alike."""
    query, key, value = torch.zeros(1, 1, 200, K), torch.zeros(1, 1, 90, K), torch.eye(90)
    shown, _ = kernels.forward(query, key, value.expand(1, 1, 90, 90), None, SEED, 0.1, False)
    signs = (shown[0, 0] > 0).float() - 0.9
    products = signs @ signs.T / (0.1 * 0.9)
    of_pairs = products[~torch.eye(200, dtype=torch.bool)]
    assert float(of_pairs.square().mean()) / 90 == pytest.approx(1, abs=0.1)
    assert float(of_pairs.mean()) == pytest.approx(0, abs=0.3)


@pytest.mark.long
@pytest.mark.usefixtures("on_cpu")
def test_a_model_has_the_same_outputs_and_gradients(batch, monkeypatch):
    used = []
    launch = kernels._Launch
    monkeypatch.setattr(kernels, "_Launch", lambda *given: (used.append(1), launch(*given))[1])
    model = small_model()
    eager = model(**batch)
    eager.loss.backward()
    gradients = {name: each.grad.clone() for name, each in model.named_parameters()}
    model.zero_grad()
    model.set_attn_implementation(NAME)
    found = model(**batch)
    found.loss.backward()
    assert used
    torch.testing.assert_close(found.logits, eager.logits, atol=1e-5, rtol=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], atol=1e-5, rtol=1e-4)
    # Dropout too takes the kernels.
    used.clear()
    query = torch.randn(1, 1, 8, 4, requires_grad=True)
    found = operation.blockwise_attention_forward(Attention(), *[query] * 3, None, dropout=0.5)
    found[0].sum().backward()
    assert len(used) == 2 and query.grad.isfinite().all()


@pytest.mark.parametrize(
    ("element_size", "width", "kilobytes", "expected"),
    [
        *((2, 64, 227, (64, 3)), (2, 128, 227, (64, 2)), (4, 256, 227, (32, 2))),  # H100
        *((2, 64, 99, (64, 3)), (4, 128, 99, (16, 2)), (4, 256, 99, (0, 2))),  # RTX 3090
        (2, 64, 64, (32, 3)),  # T4
    ],
)
def test_blocks_fit_into_shared_memory(monkeypatch, element_size, width, kilobytes, expected):
    monkeypatch.setattr(kernels, "LARGEST", LARGEST)
    found = kernels.block_size_and_stages(element_size, width, 1024 * kilobytes)
    assert found == expected


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_what_no_block_fits_is_computed_in_torch(monkeypatch, dtype):
    if dtype == torch.float32:
        monkeypatch.setattr(kernels, "_shared_memory", lambda device: 7 * 16 * 32 * 4 - 1)
        monkeypatch.setattr(kernels, "_attend", None)
    given = [each.to(dtype) for each in inputs(9, 9)]
    output, log_sums = kernels.forward(*given, None, SEED, 0.0, False)
    torch.testing.assert_close(output, plain(*given, None).transpose(1, 2))
    gradient = torch.randn_like(output)
    found = kernels.backward(gradient, *given, None, SEED, output, log_sums, 0.0, False)
    assert {each.dtype for each in found} == {dtype}


def test_float32_is_multiplied_as_torch_does():
    assert kernels._precision(torch.float32) == "tf32x3"
    torch.set_float32_matmul_precision("high")
    try:
        assert kernels._precision(torch.float32) == "tf32"
        assert kernels._precision(torch.bfloat16) == "ieee"
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.long
@pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"),
    reason="this version of torch has one switch for TF32",
)
def test_tf32_that_transformers_switched_on_is_seen():
    """Reading allow_tf32 is an error then."""
    program = (
        "import torch; torch.backends.fp32_precision = 'tf32'\n"
        "from modeling_aiayn.attention_kernels.triton_attention import _precision\n"
        "assert _precision(torch.float32) == 'tf32'"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_matrices_may_lie_in_memory_in_any_order():
    """More heads than tokens, columns side by side in place of rows, and an expanded gradient."""
    given = [torch.randn(2, 4, width, 3).transpose(2, 3) for width in (K, K, W)]
    gradient = torch.randn(1, 1, 1, 1).expand(2, 4, 3, W)
    options = (None, SEED, 0.3, True)
    output, log_sums = kernels.forward(*given, *options)
    found = kernels.backward(gradient, *given, None, SEED, output, log_sums, 0.3, True)
    assert [each.stride() for each in found] == [each.stride() for each in given]
    near = [each.contiguous() for each in given]
    expected = kernels.forward(*near, *options)
    close([output, log_sums], expected)
    rest = (None, SEED, *expected, 0.3, True)
    close(found, kernels.backward(gradient.contiguous(), *near, *rest))


# The norm of an error, as a part of the result's norm.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def equation_1(query, key, value, mask, is_causal, kept):
    """The output in double precision, with what dropout keeps given."""
    scores = query @ key.transpose(2, 3) / query.size(-1) ** 0.5
    if mask is not None and mask.dtype != torch.bool:
        scores = scores + mask.double()
    elif mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    if is_causal:
        later = torch.ones(scores.shape[2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return (scores.softmax(-1) * kept) @ value


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize(
    ("kind", "is_causal", "dropout"),
    [
        *(("none", False, 0.0), ("none", True, 0.25), ("padding", False, 0.25)),
        *(("padding", False, 0.0), ("random", True, 0.0), ("bias", False, 0.25)),
        ("heads", True, 0.25),
    ],
)
@pytest.mark.parametrize(
    ("queries", "keys", "width"), [(257, 70, 40), (300, 300, 128), (1030, 1030, 64)]
)
@pytest.mark.parametrize("dtype", list(TOLERANCES))
def test_on_a_gpu_blocks_of_the_real_sizes_give_equation_1(
    monkeypatch, dtype, queries, keys, width, kind, is_causal, dropout
):
    monkeypatch.setattr(kernels, "LARGEST", LARGEST)
    shapes = ((queries, width), (keys, width), (keys, width))
    query, key, value = (torch.randn(B, n, H, w, dtype=dtype).transpose(1, 2) for n, w in shapes)
    mask = mask_of(kind, queries, keys)
    if kind == "bias":
        mask = mask.to(dtype)
    elif mask is not None and is_causal:
        mask[..., 0] = True
    options = (mask, SEED, dropout, is_causal)
    output, log_sums = kernels.forward(query, key, value, *options)
    kept = torch.ones(B, H, queries, keys, dtype=torch.float64)
    if dropout:
        parts = []
        for start in range(0, keys, width):
            unit = torch.zeros(B, H, keys, width, dtype=dtype)
            size = min(width, keys - start)
            unit[:, :, start : start + size, :size] = torch.eye(size, dtype=dtype)
            zeros = torch.zeros_like(query)
            shown, _ = kernels.forward(zeros, key, unit, None, SEED, dropout, False)
            parts.append(shown[..., :size] > 0)
        kept = torch.cat(parts, -1).double() / (1 - dropout)
        assert float((kept == 0).double().mean()) == pytest.approx(dropout, abs=0.01)
    exact = [each.double().requires_grad_() for each in (query, key, value)]
    expected = equation_1(*exact, mask, is_causal, kept)
    gradient = torch.randn(B, queries, H, width, dtype=dtype).transpose(1, 2)
    found = kernels.backward(
        gradient, query, key, value, mask, SEED, output, log_sums, dropout, is_causal
    )
    wanted = torch.autograd.grad(expected, exact, gradient.double())
    for ours, theirs in zip((output, *found), (expected, *wanted), strict=True):
        error = (ours.double() - theirs).norm() / theirs.norm()
        assert error < TOLERANCES[dtype]


@pytest.mark.long
def test_the_kernels_compile_for_gpus_and_fit_into_their_shared_memory(tmp_path):
    program = ROOT / "tests" / "compile_kernels.py"
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" fits\n") == 21
