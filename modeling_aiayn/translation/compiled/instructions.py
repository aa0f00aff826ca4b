"""Processor instructions that Python code in Numba cannot use, written as LLVM code.

Each `intrinsic` has the same function in plain Python beside it, which defines the result and runs
if NUMBA_DISABLE_JIT is set. Arrays are flat; at is the index where a row begins.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

GROUP = 4  # 8-bit numbers that are multiplied and added at once
VECTORS = 2  # vectors of outputs in a tile
LEVELS = 127  # inputs have 7 bits: on AVX2, a sum of two products with 8 bits does not overflow
SMALLEST = 1e-30  # rows with a smaller span are rounded to 0


class InstructionSet(NamedTuple):
    """The instructions for products of 8-bit numbers, and sizes that fit their registers."""

    name: str
    lanes: int  # 32-bit numbers in a vector
    rows: int  # of a tile

    @property
    def block(self) -> int:
        """Outputs of a tile."""
        return VECTORS * self.lanes


def best_instruction_set() -> InstructionSet:
    """Return the best instruction set of the processor that Numba compiles for."""
    if config.CPU_FEATURES is None:
        features = {name for name, has in get_host_cpu_features().items() if has}
    else:
        features = {name[1:] for name in config.CPU_FEATURES.split(",") if name[:1] == "+"}
    if {"avx512vnni", "avx512vl"} <= features:
        return InstructionSet("avx512vnni", 16, 8)
    if {"avxvnni", "avx2"} <= features:
        return InstructionSet("avxvnni", 8, 4)
    if "avx2" in features:
        return InstructionSet("avx2", 8, 4)
    return InstructionSet("plain", 4, 4)


INSTRUCTIONS = best_instruction_set()
LANES, BLOCK, ROWS = INSTRUCTIONS.lanes, INSTRUCTIONS.block, INSTRUCTIONS.rows

BYTE, SHORT, INT, FLOAT, SIZE = (
    ir.IntType(8),
    ir.IntType(16),
    ir.IntType(32),
    ir.FloatType(),
    ir.IntType(64),
)


VECTOR = ir.VectorType(FLOAT, LANES)
NOTHING = ir.Constant(VECTOR, None)
KEYS = 4  # keys that are scored at once


def _call(builder: Any, name: str, result: ir.Type, *arguments: Any) -> Any:
    function_type = ir.FunctionType(result, [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(builder.module, function_type, name)
    return builder.call(function, arguments)


def _unpacked(context: Any, builder: Any, signature: Any, values: Any) -> list[Any]:
    """Return pointers to arrays, and integers in 64 bits."""
    return [
        context.make_array(kind)(context, builder, value).data
        if isinstance(kind, types.Array)
        else context.cast(builder, value, kind, types.int64)
        for kind, value in zip(signature.args, values, strict=True)
    ]


def _load(builder: Any, data: Any, at: Any, count: int, kind: ir.Type) -> Any:
    """Load `count` numbers, from index `at`, of an array that begins at data."""
    pointer = builder.bitcast(builder.gep(data, [at]), ir.VectorType(kind, count).as_pointer())
    return builder.load(pointer, align=1)


def _store(builder: Any, vector: Any, data: Any, at: Any) -> None:
    pointer = builder.bitcast(builder.gep(data, [at]), vector.type.as_pointer())
    builder.store(vector, pointer, align=1)


def _multiply_add(builder: Any, x: Any, y: Any, z: Any) -> Any:
    return _call(builder, f"llvm.fma.v{LANES}f32", VECTOR, x, y, z)


def _larger(builder: Any, x: Any, y: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", x, y), x, y)


def _smaller(builder: Any, x: Any, y: Any) -> Any:
    return builder.select(builder.fcmp_ordered("<", x, y), x, y)


def _rounded(builder: Any, x: Any) -> Any:
    """Round to the nearest integer: x + 1.5 * 2^23 has no bits for a fraction."""
    magic = 1.5 * 2**23
    magic = x.type([magic] * LANES) if x.type == VECTOR else x.type(magic)
    return builder.fsub(builder.fadd(x, magic), magic)


def _exp(builder: Any, x: Any) -> Any:
    """Compute e^x in each lane, with x limited to [-87, 88] (Cephes library, expf)."""

    def constant(number: float) -> ir.Constant:
        return ir.Constant(VECTOR, [float(np.float32(number))] * LANES)

    x = _larger(builder, x, constant(-87))
    x = _smaller(builder, x, constant(88))
    power = _rounded(builder, builder.fmul(x, constant(math.log2(math.e))))
    x = _multiply_add(builder, power, constant(-0.693359375), x)
    x = _multiply_add(builder, power, constant(2.12194440e-4), x)
    total = constant(1.9875691500e-4)
    for factor in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5, 1, 1):
        total = _multiply_add(builder, total, x, constant(factor))
    words = ir.VectorType(INT, LANES)
    exponent = builder.add(builder.fptosi(power, words), ir.Constant(words, [127] * LANES))
    exponent = builder.shl(exponent, ir.Constant(words, [23] * LANES))
    return builder.fmul(total, builder.bitcast(exponent, VECTOR))


def _reduced(builder: Any, lanes: Any, function: Callable[..., Any]) -> Any:
    """Combine the lanes of a vector with a function of two lanes."""
    count = LANES
    while count > 1:
        count //= 2
        kind = ir.VectorType(INT, count)
        low, high = (
            builder.shuffle_vector(lanes, lanes, ir.Constant(kind, [*range(n, n + count)]))
            for n in (0, count)
        )
        lanes = function(builder, low, high)
    return builder.extract_element(lanes, INT(0))


@contextmanager
def _vectors(builder: Any, count: Any) -> Iterator[Any]:
    """Loop over vectors of LANES; yield the index where each begins."""
    with cgutils.for_range_slice(builder, SIZE(0), count, SIZE(LANES), SIZE) as (index, _):
        yield index


def _broadcast(builder: Any, number: Any, count: int = LANES) -> Any:
    vector = ir.VectorType(number.type, count)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), number, INT(0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(INT, count), [0] * count))


def _add_products(builder: Any, total: Any, codes: Any, weights: Any) -> Any:
    """Add 8-bit products of codes and weights to total; each lane gets the sum of four."""
    size, sums = INSTRUCTIONS.lanes, total.type
    bits = {8: 256, 16: 512}.get(size)
    if "vnni" in INSTRUCTIONS.name:
        words = builder.bitcast(weights, sums)
        return _call(builder, f"llvm.x86.avx512.vpdpbusd.{bits}", sums, total, codes, words)
    codes = builder.bitcast(codes, weights.type)
    if INSTRUCTIONS.name == "avx2":
        shorts = ir.VectorType(SHORT, 2 * size)
        pairs = _call(builder, "llvm.x86.avx2.pmadd.ub.sw", shorts, codes, weights)
        ones = ir.Constant(shorts, [1] * 2 * size)
        return builder.add(total, _call(builder, "llvm.x86.avx2.pmadd.wd", sums, pairs, ones))
    wide = ir.VectorType(INT, GROUP * size)
    products = builder.mul(builder.zext(codes, wide), builder.sext(weights, wide))
    for first in range(GROUP):
        lanes = ir.Constant(ir.VectorType(INT, size), [first + GROUP * n for n in range(size)])
        total = builder.add(total, builder.shuffle_vector(products, products, lanes))
    return total


@intrinsic
def _tile(typingctx, rows, depth, inputs, inputs_at, stride, scales, zeros, first, weights,
          weights_at, columns, columns_at, width, out, out_at, out_stride):  # fmt: skip
    arguments = (rows, depth, inputs, inputs_at, stride, scales, zeros, first, weights,
                 weights_at, columns, columns_at, width, out, out_at, out_stride)  # fmt: skip
    is_int8 = weights.dtype == types.int8

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        values = _unpacked(context, builder, signature, values)
        count = values[0]
        end = builder.append_basic_block("end")
        switch = builder.switch(count, end)
        number = ROWS
        while number:
            block = builder.append_basic_block(f"rows{number}")
            switch.add_case(SIZE(number), block)
            builder.position_at_end(block)
            _write_tile(builder, number, is_int8, *values[1:])
            builder.branch(end)
            number //= 2
        builder.position_at_end(end)
        # Inlining would compile a copy in each caller.
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(*arguments), codegen


def _write_tile(
    builder: Any,
    rows: int,
    is_int8: bool,
    depth: Any,
    inputs: Any,
    inputs_at: Any,
    stride: Any,
    scales: Any,
    zeros: Any,
    first: Any,
    weights: Any,
    weights_at: Any,
    columns: Any,
    columns_at: Any,
    width: Any,
    out: Any,
    out_at: Any,
    out_stride: Any,
) -> None:
    kind = INT if is_int8 else FLOAT
    group = GROUP if is_int8 else 1
    vector = ir.VectorType(kind, LANES)
    # With few rows, an output has several partial sums: otherwise each addition waits for the
    # previous one. Floats have one sum, so that a row's result does not depend on other rows.
    parts = max(1, 4 // rows) if is_int8 else 1
    nothing = ir.Constant(vector, None)
    sums = [
        [[cgutils.alloca_once_value(builder, nothing) for _ in range(VECTORS)] for _ in range(rows)]
        for _ in range(parts)
    ]
    starts = [builder.add(inputs_at, builder.mul(stride, SIZE(row))) for row in range(rows)]

    def add(index: Any, part: int) -> None:
        at = builder.add(weights_at, builder.mul(index, SIZE(BLOCK * group)))
        blocks = [
            _load(builder, weights, builder.add(at, SIZE(n * LANES * group)), LANES * group,
                  BYTE if is_int8 else FLOAT)
            for n in range(VECTORS)
        ]  # fmt: skip
        for row in range(rows):
            place = builder.add(starts[row], builder.mul(index, SIZE(group)))
            pointer = builder.bitcast(builder.gep(inputs, [place]), kind.as_pointer())
            number = _broadcast(builder, builder.load(pointer, align=1))
            for n, block in enumerate(blocks):
                total = builder.load(sums[part][row][n])
                if is_int8:
                    total = _add_products(builder, total, number, block)
                else:
                    total = _multiply_add(builder, number, block, total)
                builder.store(total, sums[part][row][n])

    whole = builder.sdiv(depth, SIZE(parts))
    with cgutils.for_range(builder, whole, intp=SIZE) as loop:
        for part in range(parts):
            add(builder.add(builder.mul(loop.index, SIZE(parts)), SIZE(part)), part)
    if parts > 1:
        start = builder.mul(whole, SIZE(parts))
        with cgutils.for_range(builder, builder.sub(depth, start), intp=SIZE) as loop:
            add(builder.add(start, loop.index), 0)
    for n in range(VECTORS):
        at = builder.add(columns_at, SIZE(n * LANES))
        scale, total_weight, bias = (
            _load(builder, columns, builder.add(at, builder.mul(width, SIZE(i))), LANES, FLOAT)
            for i in range(3)
        )
        for row in range(rows):
            result = builder.load(sums[0][row][n])
            for part in range(1, parts):
                other = builder.load(sums[part][row][n])
                result = builder.add(result, other) if is_int8 else builder.fadd(result, other)
            if is_int8:
                place = builder.add(first, SIZE(row))
                zero = _broadcast(builder, builder.load(builder.gep(zeros, [place])))
                offset = builder.mul(zero, builder.fptosi(total_weight, vector))
                result = builder.sitofp(builder.sub(result, offset), VECTOR)
                row_scale = _broadcast(builder, builder.load(builder.gep(scales, [place])))
                result = builder.fmul(result, builder.fmul(row_scale, scale))
            result = builder.fadd(result, bias)
            place = builder.add(builder.mul(out_stride, SIZE(row)), SIZE(n * LANES))
            _store(builder, result, out, builder.add(out_at, place))


def tile(rows, depth, inputs, inputs_at, stride, scales, zeros, first, weights, weights_at,
         columns, columns_at, width, out, out_at, out_stride):  # fmt: skip
    """Write a block of outputs for a few rows.

    A row has depth groups of inputs: four codes or one float each. weights has the matching groups
    of all outputs of the block. columns has a scale, a sum of weights and a bias of each output,
    width apart. Row r's inputs are (code - zeros[first + r]) * scales[first + r].
    """
    is_int8 = weights.dtype == np.int8
    group = GROUP if is_int8 else 1
    block = weights[weights_at : weights_at + depth * group * BLOCK].reshape(depth, BLOCK, group)
    scale, total_weight, bias = (
        columns[columns_at + i * width : columns_at + i * width + BLOCK] for i in range(3)
    )
    for row in range(rows):
        at = inputs_at + row * stride
        numbers = inputs[at : at + depth * group].reshape(depth, 1, group)
        if is_int8:
            total = (block.astype(np.int32) * numbers).sum((0, 2), dtype=np.int32)
            total -= zeros[first + row] * total_weight.astype(np.int32)
            result = total.astype(np.float32) * (scales[first + row] * scale)
        else:
            result = (block * numbers).sum((0, 2), dtype=np.float32)
        at = out_at + row * out_stride
        out[at : at + BLOCK] = result + bias


@intrinsic
def _score(typingctx, query, at, size, memory, base, places, first, count, scale, scores):
    arguments = (query, at, size, memory, base, places, first, count, scale, scores)

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        scale = values[8]
        query, at, size, memory, base, places, first, count, _, scores = _unpacked(
            context, builder, signature, values
        )

        def score(start: Any, keys: int) -> None:
            """Score several keys at once: for one key, each addition would wait for the last."""
            numbers = [builder.add(start, SIZE(n)) for n in range(keys)]
            at_keys = [
                builder.add(base, builder.load(builder.gep(places, [builder.add(first, number)])))
                for number in numbers
            ]
            sums = [cgutils.alloca_once_value(builder, NOTHING) for _ in range(keys)]
            for total in sums:
                builder.store(NOTHING, total)
            with _vectors(builder, size) as index:
                x = _load(builder, query, builder.add(at, index), LANES, FLOAT)
                for at_key, total in zip(at_keys, sums, strict=True):
                    y = _load(builder, memory, builder.add(at_key, index), LANES, FLOAT)
                    builder.store(_multiply_add(builder, x, y, builder.load(total)), total)
            for number, total in zip(numbers, sums, strict=True):
                result = _reduced(builder, builder.load(total), ir.IRBuilder.fadd)
                builder.store(builder.fmul(result, scale), builder.gep(scores, [number]))

        whole = builder.sub(count, builder.srem(count, SIZE(KEYS)))
        with cgutils.for_range_slice(builder, SIZE(0), whole, SIZE(KEYS), SIZE) as (number, _):
            score(number, KEYS)
        with cgutils.for_range_slice(builder, whole, count, SIZE(1), SIZE) as (number, _):
            score(number, 1)
        return context.get_dummy_value()

    return types.void(*arguments), codegen


def score(query, at, size, memory, base, places, first, count, scale, scores):
    """Write the scores of the keys at `places` in memory, for a query of whole LANES."""
    for number in range(count):
        key = base + places[first + number]
        scores[number] = query[at : at + size] @ memory[key : key + size] * scale


@intrinsic
def _mix(typingctx, shares, memory, base, places, first, count, out, out_at):
    arguments = (shares, memory, base, places, first, count, out, out_at)

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        shares, memory, base, places, first, count, out, out_at = _unpacked(
            context, builder, signature, values
        )
        total = cgutils.alloca_once_value(builder, NOTHING)
        with cgutils.for_range(builder, count, intp=SIZE) as loop:
            place = builder.load(builder.gep(places, [builder.add(first, loop.index)]))
            x = _load(builder, memory, builder.add(base, place), LANES, FLOAT)
            y = _broadcast(builder, builder.load(builder.gep(shares, [loop.index])))
            builder.store(_multiply_add(builder, x, y, builder.load(total)), total)
        _store(builder, builder.load(total), out, out_at)
        return context.get_dummy_value()

    return types.void(*arguments), codegen


def mix(shares, memory, base, places, first, count, out, out_at):
    """Sum the vectors of LANES at `places` in memory, weighted by their shares."""
    rows = [memory[base + place :][:LANES] for place in places[first : first + count]]
    out[out_at : out_at + LANES] = shares[:count] @ np.array(rows)


@intrinsic
def _largest(typingctx, states, at, count):
    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        states, at, count = _unpacked(context, builder, signature, values)
        lowest = ir.Constant(VECTOR, [-math.inf] * LANES)
        highest = cgutils.alloca_once_value(builder, lowest)
        with _vectors(builder, count) as index:
            x = _load(builder, states, builder.add(at, index), LANES, FLOAT)
            builder.store(_larger(builder, x, builder.load(highest)), highest)
        return _reduced(builder, builder.load(highest), _larger)

    return types.float32(states, at, count), codegen


def largest(states, at, count):
    """Return the largest of `count` numbers, in whole LANES."""
    return states[at : at + count].max()


@intrinsic
def _exponentials(typingctx, states, at, count, shift, out):
    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        shift = _broadcast(builder, values[3])
        states, at, count, _, out = _unpacked(context, builder, signature, values)
        total = cgutils.alloca_once_value(builder, NOTHING)
        with _vectors(builder, count) as index:
            x = _load(builder, states, builder.add(at, index), LANES, FLOAT)
            x = _exp(builder, builder.fsub(x, shift))
            _store(builder, x, out, index)
            builder.store(builder.fadd(builder.load(total), x), total)
        return _reduced(builder, builder.load(total), ir.IRBuilder.fadd)

    return types.float32(states, at, count, types.float32, out), codegen


def exponentials(states, at, count, shift, out):
    """Write e^(x - shift), for x in whole LANES of states, to the beginning of out; return the sum.

    x - shift is limited to [-87, 88].
    """
    out[:count] = np.exp(np.clip(states[at : at + count] - shift, -87, 88))
    return out[:count].sum()


@intrinsic
def _round_row(typingctx, states, at, size, codes, to, scales, zeros, row):
    arguments = (states, at, size, codes, to, scales, zeros, row)

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        states, at, size, codes, to, scales, zeros, row = _unpacked(
            context, builder, signature, values
        )
        extremes = [cgutils.alloca_once_value(builder, NOTHING) for _ in range(2)]
        with _vectors(builder, size) as index:
            x = _load(builder, states, builder.add(at, index), LANES, FLOAT)
            for extreme, function in zip(extremes, (_smaller, _larger), strict=True):
                builder.store(function(builder, builder.load(extreme), x), extreme)
        lowest = _reduced(builder, builder.load(extremes[0]), _smaller)
        span = builder.fsub(_reduced(builder, builder.load(extremes[1]), _larger), lowest)
        # The span of a row of zeros is 0.
        inverse = builder.fdiv(FLOAT(LEVELS), _larger(builder, span, FLOAT(SMALLEST)))
        zero = builder.fneg(_rounded(builder, builder.fmul(lowest, inverse)))
        scale = builder.fdiv(span, FLOAT(LEVELS))
        builder.store(scale, builder.gep(scales, [row]))
        builder.store(builder.fptosi(zero, INT), builder.gep(zeros, [row]))
        factor, shift = _broadcast(builder, inverse), _broadcast(builder, zero)
        with _vectors(builder, size) as index:
            x = _load(builder, states, builder.add(at, index), LANES, FLOAT)
            x = builder.fadd(_rounded(builder, builder.fmul(x, factor)), shift)
            words = builder.fptosi(x, ir.VectorType(INT, LANES))
            bytes_ = builder.trunc(words, ir.VectorType(BYTE, LANES))
            _store(builder, bytes_, codes, builder.add(to, index))
        return context.get_dummy_value()

    return types.void(*arguments), codegen


def round_row(states, at, size, codes, to, scales, zeros, row):
    """Write a row of states, in whole LANES, as codes with one scale and one zero point.

    A number is approximately (code - zero) * scale.
    """
    numbers = states[at : at + size]
    lowest, highest = min(np.float32(0), numbers.min()), max(np.float32(0), numbers.max())
    inverse = np.float32(LEVELS) / max(highest - lowest, np.float32(SMALLEST))
    zero = -np.rint(lowest * inverse)
    codes[to : to + size] = np.rint(numbers * inverse) + zero
    scales[row], zeros[row] = (highest - lowest) / np.float32(LEVELS), zero


@intrinsic
def _add_at(typingctx, array, at, number):
    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, values[0]).data
        return builder.atomic_rmw("add", builder.gep(data, [values[1]]), values[2], "seq_cst")

    return types.int64(array, types.int64, types.int64), codegen


def add_at(array, at, number):
    """Add to an element atomically; return its previous value."""
    before = array[at]
    array[at] += number
    return before


@intrinsic
def _read_at(typingctx, array, at):
    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, values[0]).data
        return builder.load_atomic(builder.gep(data, [values[1]]), "acquire", 8)

    return types.int64(array, types.int64), codegen


def read_at(array, at):
    """Read an element that another thread may write."""
    return array[at]


@intrinsic
def _give_way(typingctx):
    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        name = "SwitchToThread" if os.name == "nt" else "sched_yield"
        _call(builder, name, INT)
        return context.get_dummy_value()

    return types.void(), codegen


def give_way():
    """Let another thread have this processor core."""
    os.sched_yield()


if not config.DISABLE_JIT:
    tile, largest, exponentials, round_row = _tile, _largest, _exponentials, _round_row
    add_at, read_at, give_way, score, mix = _add_at, _read_at, _give_way, _score, _mix
