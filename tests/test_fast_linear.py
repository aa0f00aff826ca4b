"""Linear layers for decoding, against plain products."""

import pytest
import torch
from conftest import small_model

from modeling_aiayn.saved.int8 import rounded_to_int8
from modeling_aiayn.translation import fast_linear
from modeling_aiayn.translation.fast_linear import int8_linear_function, linear_function
from modeling_aiayn.translation.fast_model import FastModel


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("rows", [1, 3, 6])
def test_packed_layers_equal_linear_layers(rows, dtype, bias):
    """Also for dtypes without a packed kernel, and for few rows."""
    linear = torch.nn.Linear(11, 5, bias=bias).to(dtype)
    states = torch.randn(rows, 11, dtype=dtype)
    packed = linear_function(linear.weight, linear.bias)
    torch.testing.assert_close(packed(states), linear(states))


def lacking(error):
    def pack(*arguments):
        raise error("bf16 path needs the cpu support avx_ne_convert or avx512bw")

    return pack


@pytest.fixture
def forgetting():
    """What the processor has is found anew, in the test and after it."""
    fast_linear._packing_works.cache_clear()
    yield
    fast_linear._packing_works.cache_clear()


@pytest.mark.usefixtures("forgetting")
@pytest.mark.parametrize("error", [RuntimeError, AttributeError])
def test_plain_products_replace_kernels_that_the_processor_lacks(monkeypatch, caplog, error):
    """As on CPUs without bf16 instructions, and releases of torch without these functions."""
    monkeypatch.setattr(fast_linear, "_packed_linear", lacking(error))
    assert not fast_linear.has_packed_kernel(torch.bfloat16)
    FastModel(small_model().to(torch.bfloat16))
    assert "has no fast products in bfloat16" in caplog.text
    assert "dtype='float32'" in caplog.text
    linear = torch.nn.Linear(11, 5).to(torch.bfloat16)
    states = torch.randn(3, 11, dtype=torch.bfloat16)
    product = linear_function(linear.weight, linear.bias)
    assert torch.equal(product(states), linear(states))


def test_rounded_weights_are_near_and_stay_the_same():
    weight = torch.randn(7, 50)
    weight[2] = 0
    weight[3] *= 1e-30
    numbers, scales = rounded_to_int8(weight)
    assert numbers.dtype == torch.int8
    assert numbers.abs().amax(1).tolist() == [127] * 2 + [0] + [127] * 4
    rounded = numbers * scales[:, None]
    assert ((rounded - weight).abs() <= scales[:, None] * 0.5001).all()
    again, same_scales = rounded_to_int8(rounded)
    assert torch.equal(again, numbers)
    torch.testing.assert_close(same_scales, scales)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 70])
def test_products_in_int8_are_near_those_of_floats(rows, bias):
    linear = torch.nn.Linear(300, 33, bias=bias)
    states = torch.randn(rows, 300)
    expected = linear(states)
    found = int8_linear_function(linear.weight, linear.bias)(states)
    assert 0 < (found - expected).norm() < 0.03 * expected.norm()
