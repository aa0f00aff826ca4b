"""Linear layers for decoding, against plain products."""

from concurrent.futures import ThreadPoolExecutor

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
    caches = (fast_linear._packing_works, fast_linear.has_int8_kernel)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


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


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 70])
def test_weights_that_float16_holds_exactly_are_stored_in_it(rows, bias):
    linear = torch.nn.Linear(140, 33, bias=bias)
    assert not fast_linear.is_exact_in_float16(linear.weight)
    with torch.no_grad():
        linear.weight.copy_(linear.weight.half())
    states = torch.randn(rows, 140)
    if not fast_linear.is_exact_in_float16(linear.weight):
        pytest.skip(f"{torch.backends.quantized.engine} has no products of float16 and float32")
    packed = linear_function(linear.weight, linear.bias)
    torch.testing.assert_close(packed(states), linear(states))


@pytest.mark.parametrize("weight", [1e-30, 1e30, float("inf")])
def test_weights_outside_the_range_of_float16_stay_in_float32(weight):
    linear = torch.nn.Linear(4, 3)
    torch.nn.init.constant_(linear.weight, weight)
    states = torch.tensor([[0.5, 0.25, 2.0, 1.0]])
    product = linear_function(linear.weight, None)
    torch.testing.assert_close(product(states), states @ linear.weight.T)


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


@pytest.fixture
def tiles(monkeypatch):
    """Layers as on a processor with AMX: oneDNN multiplies many rows."""
    if not (fast_linear.has_int8_kernel() and torch.backends.mkldnn.is_available()):
        pytest.skip("torch has no products in int8 here, or not by two engines")
    monkeypatch.setattr(fast_linear, "has_int8_tiles", lambda: True)
    # Without VNNI, oneDNN overflows where FBGEMM does not; neither does with states of 7 bits.
    monkeypatch.setattr(fast_linear, "_int8_products_overflow", lambda: True)


@pytest.mark.parametrize("bias", [True, False])
def test_tiles_multiply_many_rows_as_fbgemm_multiplies_few(tiles, monkeypatch, bias):
    packed_for, pack = [], fast_linear._int8_packed
    monkeypatch.setattr(
        fast_linear, "_int8_packed", lambda *given: packed_for.append(given[-1]) or pack(*given)
    )
    engine = torch.backends.quantized.engine
    linear = torch.nn.Linear(300, 33, bias=bias)
    product = int8_linear_function(linear.weight, linear.bias)
    packed_for.clear()
    states = torch.randn(fast_linear.TILE_ROWS, 300)
    states[-1, :2] = torch.tensor([-10.0, 10.0])  # the range decides the scale of all rows
    many, few = product(states), product(states[1:])
    assert packed_for == ["onednn", engine]
    torch.testing.assert_close(many[1:-1], few[:-1])  # the engines may round -10 or 10 otherwise
    assert 0 < (many - linear(states)).norm() < 0.2 * linear(states).norm()
    assert torch.backends.quantized.engine == engine


def test_threads_that_pack_at_once_leave_the_engine_as_it_is(tiles):
    engine = torch.backends.quantized.engine
    linears = [torch.nn.Linear(40, 30 + number) for number in range(40)]
    products = [int8_linear_function(linear.weight, None) for linear in linears]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda product: product(torch.ones(20, 40)), products))
    assert torch.backends.quantized.engine == engine


def test_large_numbers_of_the_same_sign_do_not_overflow():
    """Without VNNI, processors add two products of 8 bits in 16 bits."""
    weight, states = torch.full((5, 64), 0.3), torch.full((3, 64), 2.0)
    found = int8_linear_function(weight, None)(states)
    torch.testing.assert_close(found, states @ weight.T, rtol=0.01, atol=0)


@pytest.mark.usefixtures("forgetting")
@pytest.mark.parametrize("error", [RuntimeError, AttributeError])
def test_rounded_weights_remain_without_kernels_for_int8(monkeypatch, caplog, error):
    monkeypatch.setattr(fast_linear, "_int8_packed", lacking(error))
    linear, states = torch.nn.Linear(11, 5), torch.randn(3, 11)
    numbers, scales = rounded_to_int8(linear.weight)
    expected = torch.nn.functional.linear(states, numbers * scales[:, None], linear.bias)
    product = int8_linear_function(linear.weight, linear.bias)
    torch.testing.assert_close(product(states), expected)
    fast_linear.warn_of_slow_int8()
    assert "no fast products in int8" in caplog.text
