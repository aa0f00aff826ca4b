"""The benchmark of attention measures what it says; how fast anything is, it does not assert."""

import benchmark_attention
import pytest
import torch
from benchmark_attention import IMPLEMENTATIONS, random_inputs


@pytest.mark.parametrize("is_causal", [False, True])
def test_all_implementations_compute_the_same(monkeypatch, is_causal):
    monkeypatch.setattr("modeling_aiayn.attention_kernels.blockwise_operation.FEWEST_SCORES", 0)
    inputs = random_inputs(2, 3, 11, 5)
    found = {name: attend(inputs, 0.0, is_causal) for name, attend in IMPLEMENTATIONS.items()}
    torch.testing.assert_close(found["sdpa"], found["eager"])
    torch.testing.assert_close(found["blocks"].transpose(1, 2), found["eager"])


@pytest.mark.long
def test_the_script_prints_times_and_memory(run, monkeypatch):
    monkeypatch.setattr(benchmark_attention, "peak_memory", lambda name, sizes: 12.3)
    flags = ("--lengths", 32, 48, "--tokens", 96, "--rounds", 1, "--memory_length", 64)
    code, out, err = run("../benchmarks/benchmark_attention.py", *flags)
    assert code == 0, err
    rows = [line.split() for line in out.splitlines() if "ms" in line]
    assert [row[0] for row in rows] == ["32"] * 4 + ["48"] * 4
    assert all(float(ratio.removesuffix("x")) > 0 for row in rows for ratio in row[-2:])
    assert [line.split()[0] for line in out.splitlines()[-3:]] == list(IMPLEMENTATIONS)
    assert benchmark_attention._peak_memory("blocks", (2, 64, 5)) >= 0
