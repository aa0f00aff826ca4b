"""Processor instructions that Python code in Numba cannot use, written as LLVM code.

Each `intrinsic` has the same function in plain Python beside it, which defines the result and runs
if NUMBA_DISABLE_JIT is set. Arrays are flat; at is the index where a row begins.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

GROUP = 4  # 8-bit numbers that are multiplied and added at once
VECTORS = 2  # vectors of outputs in a tile
COLUMNS = 3  # floats of each output after its weights: a scale, the sum of weights, and a bias
AHEAD = 2048  # weights are fetched from memory this number of bytes before they are read
LEVELS = 127  # inputs have 7 bits: on AVX2, a sum of two products with 8 bits does not overflow
LARGEST_SUM = 255  # of weights of one sign: times codes of at most 128, it fits into 16 bits
SMALLEST = 1e-30  # rows with a smaller span are rounded to 0


class InstructionSet(NamedTuple):
    """The instructions for products of 8-bit numbers, and sizes that fit their registers."""

    name: str
    lanes: int  # 32-bit numbers in a vector
    rows: int  # of a tile
    summed: int = 1  # groups whose products are added in 16 bits

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
        return InstructionSet("avx2", 8, 4, 4)
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
MAGIC = 1.5 * 2**23
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


def _load_floats(builder: Any, data: Any, at: Any) -> Any:
    """Load LANES numbers of an array of float32, or of the bits of bfloat16."""
    if data.type.pointee != SHORT:
        return _load(builder, data, at, LANES, FLOAT)
    words = ir.VectorType(INT, LANES)
    bits = builder.zext(_load(builder, data, at, LANES, SHORT), words)
    return builder.bitcast(builder.shl(bits, ir.Constant(words, [16] * LANES)), VECTOR)


def _store(builder: Any, vector: Any, data: Any, at: Any) -> None:
    pointer = builder.bitcast(builder.gep(data, [at]), vector.type.as_pointer())
    builder.store(vector, pointer, align=1)


def _multiply_add(builder: Any, x: Any, y: Any, z: Any) -> Any:
    return _call(builder, f"llvm.fma.v{LANES}f32", VECTOR, x, y, z)


def _larger(builder: Any, x: Any, y: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", x, y), x, y)


def _smaller(builder: Any, x: Any, y: Any) -> Any:
    return builder.select(builder.fcmp_ordered("<", x, y), x, y)


def _magic(x: Any) -> Any:
    """The constant 1.5 * 2^23 of a type: a float has no bits for a fraction after adding it."""
    return x.type([MAGIC] * LANES) if x.type == VECTOR else x.type(MAGIC)


def _rounded(builder: Any, x: Any) -> Any:
    """Round to the nearest integer."""
    return builder.fsub(builder.fadd(x, _magic(x)), _magic(x))


def _exp(builder: Any, x: Any) -> Any:
    """Compute e^x in each lane, with x limited to [-87, 88].

    e^x = 2^n * e^r with an integer n. A polynomial, fitted to the smallest relative error (1e-7),
    computes e^r. Adding n to the bits of the exponent multiplies by 2^n.
    """

    def constant(number: float) -> ir.Constant:
        return ir.Constant(VECTOR, [float(np.float32(number))] * LANES)

    words = ir.VectorType(INT, LANES)
    x = _larger(builder, x, constant(-87))
    x = _smaller(builder, x, constant(88))
    shifted = _multiply_add(builder, x, constant(math.log2(math.e)), _magic(x))
    power = builder.fsub(shifted, _magic(x))
    x = _multiply_add(builder, power, constant(-math.log(2)), x)
    total = constant(8.3125294e-3)
    for factor in (4.1890120e-2, 1.6667114e-1, 4.9999232e-1, 1, 1):
        total = _multiply_add(builder, total, x, constant(factor))
    power = builder.shl(builder.bitcast(shifted, words), ir.Constant(words, [23] * LANES))
    return builder.bitcast(builder.add(builder.bitcast(total, words), power), VECTOR)


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


def _loops(builder: Any, end: Any, sizes: Iterable[int], body: Callable[[Any, int], None]) -> None:
    """Loop from 0 to end in steps of the first size; then of the next one, over what is left.

    body(index, size) emits a step.
    """
    start = SIZE(0)
    for size in sizes:
        whole = builder.sub(end, builder.srem(builder.sub(end, start), SIZE(size)))
        with cgutils.for_range_slice(builder, start, whole, SIZE(size), SIZE) as (index, _):
            body(index, size)
        start = whole


@contextmanager
def _vectors(builder: Any, count: Any) -> Iterator[Any]:
    """Loop over vectors of LANES; yield the index where each begins."""
    with cgutils.for_range_slice(builder, SIZE(0), count, SIZE(LANES), SIZE) as (index, _):
        yield index


def _broadcast(builder: Any, number: Any, count: int = LANES) -> Any:
    vector = ir.VectorType(number.type, count)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), number, INT(0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(INT, count), [0] * count))


def _add_products(builder: Any, total: Any, pairs: Sequence[tuple[Any, Any]]) -> Any:
    """Add the products of pairs of inputs and weights to total; of 8 bits, four to each lane."""
    size, sums = INSTRUCTIONS.lanes, total.type
    if INSTRUCTIONS.name == "avx2" and sums != VECTOR:
        shorts = ir.VectorType(SHORT, 2 * size)
        added = ir.Constant(shorts, None)
        for codes, weights in pairs:
            codes = builder.bitcast(codes, weights.type)
            two = _call(builder, "llvm.x86.avx2.pmadd.ub.sw", shorts, codes, weights)
            added = builder.add(added, two)
        ones = ir.Constant(shorts, [1] * 2 * size)
        return builder.add(total, _call(builder, "llvm.x86.avx2.pmadd.wd", sums, added, ones))
    for codes, weights in pairs:
        if sums == VECTOR:
            total = _multiply_add(builder, codes, weights, total)
        elif "vnni" in INSTRUCTIONS.name:
            name = f"llvm.x86.avx512.vpdpbusd.{32 * size}"
            total = _call(builder, name, sums, total, codes, builder.bitcast(weights, sums))
        else:
            wide = ir.VectorType(INT, GROUP * size)
            codes = builder.zext(builder.bitcast(codes, weights.type), wide)
            products = builder.mul(codes, builder.sext(weights, wide))
            for first in range(GROUP):
                lanes = [first + GROUP * n for n in range(size)]
                lanes = ir.Constant(ir.VectorType(INT, size), lanes)
                total = builder.add(total, builder.shuffle_vector(products, products, lanes))
    return total


@intrinsic
def _tile(typingctx, rows, depth, inputs, inputs_at, stride, scales, zeros, first, weights,
          weights_at, out, out_at, out_stride):  # fmt: skip
    arguments = (rows, depth, inputs, inputs_at, stride, scales, zeros, first, weights,
                 weights_at, out, out_at, out_stride)  # fmt: skip
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
    out: Any,
    out_at: Any,
    out_stride: Any,
) -> None:
    kind = INT if is_int8 else FLOAT
    group = GROUP if is_int8 else 1
    vector = ir.VectorType(kind, LANES)
    summed = INSTRUCTIONS.summed if is_int8 else 1
    # With few rows, an output has several partial sums: otherwise each addition waits for the
    # previous one. Floats have one sum, so that a row's result does not depend on other rows.
    parts = ROWS // rows if is_int8 and summed == 1 else 1
    starts = [builder.add(inputs_at, builder.mul(stride, SIZE(row))) for row in range(rows)]

    def place_of(n: int, index: Any) -> Any:
        index = builder.add(builder.mul(builder.add(depth, SIZE(COLUMNS)), SIZE(n)), index)
        return builder.add(weights_at, builder.mul(index, SIZE(LANES * group)))

    def load_weights(n: int, index: Any) -> Any:
        at = place_of(n, index)
        # Processors fetch ahead by themselves, but not past the end of a page (4 KB), which is what
        # the weights of a vector of outputs often take.
        later = builder.gep(weights, [builder.add(at, SIZE(AHEAD * group // GROUP))])
        later = builder.bitcast(later, BYTE.as_pointer())
        options = [INT(number) for number in (0, 3, 1)]  # to read, into all caches, data
        _call(builder, "llvm.prefetch.p0", ir.VoidType(), later, *options)
        return _load(builder, weights, at, LANES * group, weights.type.pointee)

    def load_input(row: int, index: Any) -> Any:
        at = builder.add(starts[row], builder.mul(index, SIZE(group)))
        pointer = builder.bitcast(builder.gep(inputs, [at]), kind.as_pointer())
        return _broadcast(builder, builder.load(pointer, align=1))

    def write(vectors: Sequence[int]) -> None:
        nothing = ir.Constant(vector, None)
        sums = [
            [[cgutils.alloca_once_value(builder, nothing) for _ in range(parts)] for _ in vectors]
            for _ in range(rows)
        ]

        def add(start: Any, groups: int) -> None:
            places = [builder.add(start, SIZE(n)) for n in range(groups)]
            blocks = [[load_weights(n, place) for place in places] for n in vectors]
            for row in range(rows):
                numbers = [load_input(row, place) for place in places]
                for block, totals in zip(blocks, sums[row], strict=True):
                    pairs = [*zip(numbers, block, strict=True)]
                    for part, total in enumerate(totals[:groups]):
                        added = _add_products(builder, builder.load(total), pairs[part::parts])
                        builder.store(added, total)

        _loops(builder, depth, sorted({max(summed, parts), 1}, reverse=True), add)
        for number, n in enumerate(vectors):
            scale, total_weight, bias = (
                _load(builder, weights, place_of(n, builder.add(depth, SIZE(i))), LANES, FLOAT)
                for i in range(COLUMNS)
            )
            for row in range(rows):
                added = builder.add if is_int8 else builder.fadd
                result = reduce(added, map(builder.load, sums[row][number]))
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

    # With all rows and several groups, only the sums of one vector fit into the registers.
    step = 1 if summed > 1 and rows == ROWS else VECTORS
    for n in range(0, VECTORS, step):
        write(range(n, n + step))


def tile(rows, depth, inputs, inputs_at, stride, scales, zeros, first, weights, weights_at, out,
         out_at, out_stride):  # fmt: skip
    """Write a block of outputs for a few rows.

    A row has depth groups of inputs: four codes or one float each. weights has the matching groups
    for each vector of outputs, and then COLUMNS vectors of floats. Row r's inputs are
    (code - zeros[first + r]) * scales[first + r].
    """
    is_int8 = weights.dtype == np.int8
    group = GROUP if is_int8 else 1
    block = weights[weights_at:][: VECTORS * (depth + COLUMNS) * LANES * group]
    block = block.reshape(VECTORS, depth + COLUMNS, LANES, group)
    columns = np.ascontiguousarray(block[:, depth:]).view(np.float32)
    scale, total_weight, bias = columns.swapaxes(0, 1).reshape(COLUMNS, BLOCK)
    block = block[:, :depth]
    for row in range(rows):
        at = inputs_at + row * stride
        numbers = inputs[at : at + depth * group].reshape(depth, 1, group)
        if is_int8:
            total = (block.astype(np.int32) * numbers).sum((1, 3), dtype=np.int32).ravel()
            total -= zeros[first + row] * total_weight.astype(np.int32)
            result = total.astype(np.float32) * (scales[first + row] * scale)
        else:
            result = (block * numbers).sum((1, 3), dtype=np.float32).ravel()
        at = out_at + row * out_stride
        out[at : at + BLOCK] = result + bias


@intrinsic
def _copy_row(typingctx, states, at, size, memory, to):
    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        states, at, size, memory, to = _unpacked(context, builder, signature, values)
        words, shorts = (ir.VectorType(kind, LANES) for kind in (INT, SHORT))
        half, bits = (ir.Constant(words, [number] * LANES) for number in (2**15, 16))
        with _vectors(builder, size) as index:
            x = _load(builder, states, builder.add(at, index), LANES, FLOAT)
            if memory.type.pointee == SHORT:
                x = builder.lshr(builder.add(builder.bitcast(x, words), half), bits)
                x = builder.trunc(x, shorts)
            _store(builder, x, memory, builder.add(to, index))
        return context.get_dummy_value()

    return types.void(states, at, size, memory, to), codegen


def copy_row(states, at, size, memory, to):
    """Copy numbers, in whole LANES, to memory; if that has 16 bits, round them to bfloat16."""
    numbers = states[at : at + size]
    if memory.dtype == np.uint16:
        numbers = (numbers.view(np.uint32) + 2**15) >> 16
    memory[to : to + size] = numbers


def _floats(numbers):
    is_short = numbers.dtype == np.uint16
    return (numbers.astype(np.uint32) << 16).view(np.float32) if is_short else numbers


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
            with _vectors(builder, size) as index:
                x = _load(builder, query, builder.add(at, index), LANES, FLOAT)
                for at_key, total in zip(at_keys, sums, strict=True):
                    y = _load_floats(builder, memory, builder.add(at_key, index))
                    builder.store(_multiply_add(builder, x, y, builder.load(total)), total)
            for number, total in zip(numbers, sums, strict=True):
                result = _reduced(builder, builder.load(total), ir.IRBuilder.fadd)
                builder.store(builder.fmul(result, scale), builder.gep(scores, [number]))

        _loops(builder, count, (KEYS, 1), score)
        return context.get_dummy_value()

    return types.void(*arguments), codegen


def score(query, at, size, memory, base, places, first, count, scale, scores):
    """Write the scores of the keys at `places` in memory, for a query of whole LANES."""
    for number in range(count):
        key = base + places[first + number]
        scores[number] = query[at : at + size] @ _floats(memory[key : key + size]) * scale


@intrinsic
def _mix(typingctx, shares, memory, base, places, first, count, size, out, out_at):
    arguments = (shares, memory, base, places, first, count, size, out, out_at)

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        shares, memory, base, places, first, count, size, out, out_at = _unpacked(
            context, builder, signature, values
        )

        def mix(start: Any, numbers: int) -> None:
            """Mix several vectors at once: for one, each addition would wait for the last."""
            columns = [builder.add(start, SIZE(n)) for n in range(0, numbers, LANES)]
            sums = [cgutils.alloca_once_value(builder, NOTHING) for _ in columns]
            with cgutils.for_range(builder, count, intp=SIZE) as loop:
                place = builder.load(builder.gep(places, [builder.add(first, loop.index)]))
                row = builder.add(base, place)
                y = _broadcast(builder, builder.load(builder.gep(shares, [loop.index])))
                for each, total in zip(columns, sums, strict=True):
                    x = _load_floats(builder, memory, builder.add(row, each))
                    builder.store(_multiply_add(builder, x, y, builder.load(total)), total)
            for each, total in zip(columns, sums, strict=True):
                _store(builder, builder.load(total), out, builder.add(out_at, each))

        _loops(builder, size, (4 * LANES, 2 * LANES, LANES), mix)
        return context.get_dummy_value()

    return types.void(*arguments), codegen


def mix(shares, memory, base, places, first, count, size, out, out_at):
    """Sum the rows, `size` numbers in whole LANES, at `places` in memory, weighted by shares."""
    rows = [_floats(memory[base + place :][:size]) for place in places[first : first + count]]
    out[out_at : out_at + size] = shares[:count] @ np.array(rows)


def _extreme(builder: Any, states: Any, at: Any, count: Any, function: Any, first: float) -> Any:
    """Combine numbers, in whole LANES, and a first one by a function such as `_larger`."""
    start = ir.Constant(VECTOR, [first] * LANES)
    extremes = [cgutils.alloca_once_value(builder, start) for _ in range(4)]

    def compare(index: Any, numbers: int) -> None:
        """Compare several vectors at once: for one, each comparison would wait for the last."""
        for n, extreme in enumerate(extremes[: numbers // LANES]):
            x = _load(
                builder, states, builder.add(at, builder.add(index, SIZE(n * LANES))), LANES, FLOAT
            )
            builder.store(function(builder, builder.load(extreme), x), extreme)

    _loops(builder, count, (4 * LANES, LANES), compare)
    extreme = reduce(partial(function, builder), map(builder.load, extremes))
    return _reduced(builder, extreme, function)


@intrinsic
def _largest(typingctx, states, at, count):
    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        states, at, count = _unpacked(context, builder, signature, values)
        return _extreme(builder, states, at, count, _larger, -math.inf)

    return types.float32(states, at, count), codegen


def largest(states, at, count):
    """Return the largest of `count` numbers, in whole LANES."""
    return states[at : at + count].max()


@intrinsic
def _next_above(typingctx, states, at, start, count, bound):
    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        bound = _broadcast(builder, values[4])
        states, at, start, count, _ = _unpacked(context, builder, signature, values)
        place, lanes = cgutils.alloca_once_value(builder, start), ir.IntType(LANES)
        blocks = [builder.append_basic_block(name) for name in ("check", "compare", "end")]
        builder.branch(blocks[0])
        builder.position_at_end(blocks[0])
        index = builder.load(place)
        builder.cbranch(builder.icmp_signed("<", index, count), *blocks[1:])
        builder.position_at_end(blocks[1])
        x = _load(builder, states, builder.add(at, index), LANES, FLOAT)
        above = builder.bitcast(builder.fcmp_ordered(">", x, bound), lanes)
        first = builder.cttz(above, ir.IntType(1)(0))  # LANES, if no number is above
        builder.store(builder.add(index, builder.zext(first, SIZE)), place)
        builder.cbranch(builder.icmp_unsigned("==", above, lanes(0)), blocks[0], blocks[2])
        builder.position_at_end(blocks[2])
        return builder.load(place)

    return types.int64(states, at, start, count, types.float32), codegen


def next_above(states, at, start, count, bound):
    """Return the first index from start whose number is above a bound; count or more if none is.

    Up to LANES numbers after `count` may be read.
    """
    above = np.flatnonzero(states[at + start : at + count] > bound)
    return start + above[0] if above.size else count


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
        lowest = _extreme(builder, states, at, size, _smaller, 0)
        span = builder.fsub(_extreme(builder, states, at, size, _larger, 0), lowest)
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
    next_above, copy_row = _next_above, _copy_row
