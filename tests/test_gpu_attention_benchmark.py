"""The benchmark of attention on a GPU; how fast anything is, no test asserts."""

import benchmark_gpu_attention as benchmark
import pytest
import torch
from benchmark_gpu_attention import Case, implementations

B, H, T, K = 3, 2, 7, 5


@pytest.mark.parametrize("mask", ["none", "causal", "padding"])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_all_implementations_compute_the_same(monkeypatch, mask):
    monkeypatch.setattr("modeling_aiayn.attention_kernels.blockwise_operation.FEWEST_SCORES", 0)
    monkeypatch.setattr(benchmark, "_flex_attention", lambda: benchmark.flex_attention)
    states = [torch.randn(B, T, H, K).transpose(1, 2) for _ in "qkv"]
    case = Case(tuple(states), torch.tensor([7, 3, 5]), mask, 0.0)
    found = {name: attend(case) for name, attend in implementations(case).items()}
    assert found.keys() == benchmark.IMPLEMENTATIONS.keys() - (
        {"flash"} if mask == "padding" else set()
    )
    blocks = found.pop("blocks").transpose(1, 2)
    for each in (*found.values(), blocks):
        torch.testing.assert_close(each, found["eager"])


def test_flex_attention_has_no_dropout():
    case = Case((), torch.tensor([7]), "none", 0.1)
    assert implementations(case).keys() == {"eager", "sdpa", "flash", "blocks"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_is_an_error(run):
    code, out, err = run("../benchmarks/benchmark_gpu_attention.py")
    assert (code, out) == (1, "")
    assert err == (
        "error: This benchmark needs a GPU that torch can use, and triton 3.4 or newer.\n"
    )
