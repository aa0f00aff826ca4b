"""Dropout on a CPU, whose masks are ours, against what dropout is."""

import pytest
import torch

from modeling_aiayn.dropout import drop


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rate", [0.1, 0.3, 0.9])
def test_a_share_is_dropped_and_the_mean_stays(rate, dtype):
    torch.manual_seed(5)
    states = torch.ones(301, 7, 331, dtype=dtype, requires_grad=True)
    kept = drop(states, rate)
    count = states.numel()
    deviation = (rate * (1 - rate) / count) ** 0.5
    assert (kept == 0).double().mean().item() == pytest.approx(rate, abs=5 * deviation)
    precision = torch.finfo(dtype).eps
    assert kept.max().item() == pytest.approx(1 / (1 - rate), rel=precision + 2**-17 / (1 - rate))
    assert set(kept.unique().tolist()) == {0.0, kept.max().item()}
    kept.backward(torch.full_like(kept, 3))
    torch.testing.assert_close(states.grad, 3 * kept.detach())


def test_dropped_states_are_independent_of_their_neighbours():
    """Four states share a random number, so each pair of places in it is looked at."""
    torch.manual_seed(6)
    dropped = drop(torch.ones(40_000, 4), 0.5) == 0
    shares = (dropped[:, :, None] & dropped[:, None, :]).double().mean(0)
    expected = torch.full((4, 4), 0.25, dtype=torch.float64).fill_diagonal_(0.5)
    torch.testing.assert_close(shares, expected, atol=0.0125, rtol=0)


def test_each_call_and_each_seed_drops_other_states():
    states = torch.ones(5, 77)
    torch.manual_seed(7)
    first, second = drop(states, 0.5), drop(states, 0.5)
    torch.manual_seed(7)
    again = drop(states, 0.5)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_nothing_or_all_is_dropped_at_the_ends():
    states = torch.randn(3, 5)
    assert drop(states, 0.0) is states
    assert drop(states, 0.7, training=False) is states
    assert torch.equal(drop(states, 1.0), torch.zeros(3, 5))
    assert drop(torch.ones(0, 5), 0.5).shape == (0, 5)


def test_rates_that_round_to_the_ends_are_torch_s():
    states = torch.ones(501, 33)
    torch.manual_seed(8)
    ours = drop(states, 0.999999)
    torch.manual_seed(8)
    assert torch.equal(ours, torch.nn.functional.dropout(states, 0.999999))
