"""Benchmarks start, and name their options."""

import pytest
from conftest import ROOT


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("benchmarks/benchmark_*.py")), ids=lambda p: p.stem
)
def test_each_benchmark_has_a_help_page(run, path):
    code, out, err = run(f"../benchmarks/{path.name}", "--help")
    assert code == 0, err
    assert out.startswith(f"usage: {path.name}") and "--help" in out
