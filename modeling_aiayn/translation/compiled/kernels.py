"""The equations of attention.py and layers.py as functions that Numba compiles.

Arrays are flat, and "at" is the index where a row begins, because slices take longer than short
products. The threads of a team share the outputs of each product and the heads of attention. They
keep the order of sums, so the number of threads does not change any result.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit, uintp

from .instructions import (
    BLOCK,
    COLUMNS,
    GROUP,
    LANES,
    ROWS,
    add_at,
    copy_row,
    exponentials,
    give_way,
    largest,
    mix,
    read_at,
    round_row,
    score,
    tile,
)

# No reference counting: nothing is allocated here, and counting is slower than many functions.
OPTIONS = {"nogil": True, "error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}
# Without Python wrappers, compiling takes a quarter less time. But Python crashes if it calls a
# compiled function other than `search`. To call the others, set NUMBA_DISABLE_JIT=1.
# `reordered` functions may reorder sums, to use vector instructions. Functions that call
# instructions.py must be `exact`, because these options apply to the whole function.
inlined = njit(inline="always", fastmath=False, **OPTIONS)
exact = njit(fastmath=False, no_cpython_wrapper=True, **OPTIONS)
reordered = njit(fastmath={"contract", "reassoc", "nsz"}, no_cpython_wrapper=True, **OPTIONS)

SPINS = 5_000  # checks by a waiting thread before it gives way to other threads
APART = 8  # distance between numbers that threads write, to use different cache lines
WAITING, MEETINGS, STOPPED = 0, APART, 2 * APART  # indices in `Team.meeting`
RELU, SILU, GELU, GELU_TANH = range(4)  # activation functions
FIRST = np.int64(0)  # Numba would compile a function once more for a literal 0
ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)
LOWEST = np.float32(-np.inf)
ROOT_OF_HALF = np.float32(math.sqrt(0.5))
TANH_SLOPE, TANH_CUBE = np.float32(2 * math.sqrt(2 / math.pi)), np.float32(0.044715)


class Model(NamedTuple):
    """A model's weights; matrices and norms are numbered."""

    weights: np.ndarray  # of all matrices, int8 or float32, in blocks: see `tile`
    weights_at: np.ndarray  # where each matrix begins in weights
    inputs: np.ndarray  # of each matrix, padded to whole LANES
    outputs: np.ndarray  # of each matrix, padded to whole blocks
    output_weights: np.ndarray  # weights of the output layer
    output_ids: np.ndarray  # the vocabulary id of each output
    norms: np.ndarray  # weights and biases, [norms, 2, D]
    epsilon: np.float32
    source_embeddings: np.ndarray  # [V, D], to be multiplied by source_scale
    target_embeddings: np.ndarray
    source_positions: np.ndarray  # [S, D]
    target_positions: np.ndarray
    source_scale: np.float32
    target_scale: np.float32
    width: int  # D
    size: int  # D, padded to whole LANES
    encoder_layers: int
    decoder_layers: int
    encoder_heads: int
    decoder_heads: int
    encoder_head_size: int  # K, padded to whole LANES
    decoder_head_size: int
    encoder_scale: np.float32  # of attention scores
    decoder_scale: np.float32
    norm_first: bool
    final_norms: bool
    activation: int

    @property
    def codes(self) -> Any:
        """The type of the inputs of matrix products."""
        return np.uint8 if self.weights.dtype == np.int8 else np.float32

    @property
    def kept(self) -> Any:
        """The type in which keys and values are kept: with integer weights, bits of bfloat16."""
        return np.uint16 if self.weights.dtype == np.int8 else np.float32


class Team(NamedTuple):
    """A thread of a team: the memory that it shares with the others, and its own."""

    size: int
    thread: int
    meeting: np.ndarray
    projected: np.ndarray  # shared: queries, keys and values, [rows, 3 * H * K]
    context: np.ndarray  # shared: attended values, [rows, H * K]
    inner: np.ndarray  # shared: [rows, F]
    output: np.ndarray  # shared: a sub-layer's output, [rows, D]
    hidden: np.ndarray  # own: the layer's input, [rows, D], which all threads compute
    normed: np.ndarray  # own: [rows, D]
    codes: np.ndarray  # own: inputs of a product, in the type of its weights
    scales: np.ndarray  # own: the scale of each row of codes
    zeros: np.ndarray  # own: the code of 0 in each row
    scores: np.ndarray  # own: the attention scores of a query
    logits: np.ndarray  # own: the logits of a part of the vocabulary
    places: np.ndarray  # own: where the encoder finds keys
    bases: np.ndarray  # own: where the memory of each row's keys begins
    firsts: np.ndarray  # own: index of each row's first place
    counts: np.ndarray  # own: number of each row's places


@exact
def meet(team):
    """Wait until all threads of the team have arrived, or the search is stopped."""
    if team.size > 1:
        meetings, spins = read_at(team.meeting, MEETINGS), 0
        if add_at(team.meeting, WAITING, 1) == team.size - 1:
            add_at(team.meeting, WAITING, -team.size)
            add_at(team.meeting, MEETINGS, 1)
        while read_at(team.meeting, MEETINGS) == meetings and not read_at(team.meeting, STOPPED):
            spins += 1
            if spins > SPINS:
                give_way()


@exact
def share(team, count):
    """Return the start and end of this thread's share of `count` items."""
    return count * team.thread // team.size, count * (team.thread + 1) // team.size


@exact
def round_rows(states, rows, size, codes, scales, zeros):
    """Round states, [rows, size], to integers; for products in float32, copy them."""
    if codes.itemsize == 1:
        for row in range(rows):
            round_row(states, row * size, size, codes, row * size, scales, zeros, row)
    else:
        for n in range(rows * size):
            codes[n] = states[n]


@exact
def multiply_blocks(weights, at, inputs, team, rows, first, last, out, to, stride):
    """Write some blocks of the outputs of a matrix, for rows that `round_rows` prepared."""
    group = GROUP if team.codes.itemsize == 1 else 1
    for block in range(first, last):
        row, size = 0, ROWS
        while row < rows:
            # A tile may exceed the remaining rows: 8 at once are faster than tiles of 4, 2 and 1.
            while size // 2 >= rows - row:
                size //= 2
            tile(size, inputs // group, team.codes, row * inputs, inputs, team.scales, team.zeros,
                 row, weights, at + block * BLOCK * (inputs + COLUMNS * group), out,
                 to + row * stride + block * BLOCK, stride)  # fmt: skip
            row += size


@exact
def multiply(model, number, team, states, size, rows, out):
    """Write x W^T + b for states x, [rows, size]; return the range of this thread's columns."""
    round_rows(states, rows, size, team.codes, team.scales, team.zeros)
    inputs, outputs = model.inputs[number], model.outputs[number]
    first, last = share(team, outputs // BLOCK)
    multiply_blocks(model.weights, model.weights_at[number], inputs, team, rows, first, last, out,
                    FIRST, outputs)  # fmt: skip
    return first * BLOCK, last * BLOCK


@exact
def activate(states, at, size, function, powers):
    """Apply an activation function in place, in whole LANES; powers is scratch memory."""
    if function == RELU:
        for n in range(at, at + size):
            states[uintp(n)] = max(states[uintp(n)], ZERO)
    elif function == GELU:
        for n in range(at, at + size):
            x = states[uintp(n)]
            states[uintp(n)] = x * HALF * (ONE + np.float32(math.erf(x * ROOT_OF_HALF)))
    else:
        if function == GELU_TANH:
            for n in range(size):
                x = states[uintp(at + n)]
                powers[uintp(n)] = TANH_SLOPE * (x + TANH_CUBE * x * x * x)
            exponentials(powers, 0, size, ZERO, powers)
        else:
            exponentials(states, at, size, ZERO, powers)
        for n in range(size):
            states[uintp(at + n)] *= powers[uintp(n)] / (ONE + powers[uintp(n)])


@reordered
def normalize(model, number, states, rows, out):
    """Apply layer normalization to states, [rows, D]."""
    width = np.float32(model.width)
    weight, bias = 2 * number * model.size, (2 * number + 1) * model.size
    for row in range(rows):
        at = row * model.size
        mean = variance = ZERO
        for n in range(model.width):
            mean += states[uintp(at + n)]
        mean /= width
        for n in range(model.width):
            difference = states[uintp(at + n)] - mean
            variance += difference * difference
        factor = ONE / np.float32(math.sqrt(variance / width + model.epsilon))
        for n in range(model.size):  # beyond the width, weights and biases are 0
            x = (states[uintp(at + n)] - mean) * factor
            out[uintp(at + n)] = x * model.norms[uintp(weight + n)] + model.norms[uintp(bias + n)]


@exact
def before(model, norm, team, rows):
    """Write a sub-layer's input, [rows, D], into team.normed."""
    if model.norm_first:
        normalize(model, norm, team.hidden, rows, team.normed)
    else:
        for n in range(rows * model.size):
            team.normed[n] = team.hidden[n]


@exact
def after(model, norm, team, stride, rows):
    """Add a sub-layer's output, once all threads have written it, to the layer's input."""
    meet(team)
    for row in range(rows):
        for n in range(model.size):
            team.hidden[uintp(row * model.size + n)] += team.output[uintp(row * stride + n)]
    if not model.norm_first:
        normalize(model, norm, team.hidden, rows, team.hidden)


@exact
def with_lowest(states, at, count):
    """Pad `count` numbers to whole LANES with the lowest number; return the padded count."""
    whole = -(-count // LANES) * LANES
    for n in range(at + count, at + whole):
        states[n] = LOWEST
    return whole


@inlined
def attend_head(
    query, at, memory, base, places, first, count, values, size, scale, scores, out, to
):
    """Compute equation 1 for one query of a head, with `size` numbers, and `count` keys.

    Key n is in memory at base + places[first + n]; its value is `values` numbers after it.
    """
    score(query, at, size, memory, base, places, first, count, scale, scores)
    whole = with_lowest(scores, FIRST, count)
    total = exponentials(scores, 0, whole, largest(scores, 0, whole), scores)
    for n in range(count):
        scores[n] /= total
    mix(scores, memory, base + values, places, first, count, size, out, to)


@exact
def feed_forward_layer(model, matrix, norm, team, rows):
    """Compute equation 2 with its residual connection; matrix is the number of the first matrix."""
    before(model, norm, team, rows)
    first, last = multiply(model, matrix, team, team.normed, model.size, rows, team.inner)
    width = model.outputs[matrix]
    for row in range(rows):
        activate(team.inner, row * width + first, last - first, model.activation, team.scores)
    meet(team)
    multiply(model, matrix + 1, team, team.inner, width, rows, team.output)
    after(model, norm, team, model.outputs[matrix + 1], rows)


@exact
def embed(embeddings, scale, positions, token, position, size, out, at):
    """Add a token's embedding and its position's encoding (sections 3.4 and 3.5)."""
    for n in range(size):
        embedding = embeddings[uintp(token * size + n)]
        out[uintp(at + n)] = embedding * scale + positions[uintp(position * size + n)]


@inlined
def encoder_layer(model, layer, team, starts, sentences):
    """Run a layer over the tokens of sentences; sentence n is from starts[n] to starts[n + 1]."""
    matrix, norm, rows = 4 * layer, 2 * layer, starts[sentences]
    size = model.encoder_heads * model.encoder_head_size
    stride = model.outputs[matrix]
    before(model, norm, team, rows)
    multiply(model, matrix, team, team.normed, model.size, rows, team.projected)
    meet(team)
    for number in range(rows):
        team.places[number] = number * stride
    first, last = share(team, model.encoder_heads)
    for number in range(sentences):
        start, end = starts[number], starts[number + 1]
        for row in range(start, end):
            for head in range(first, last):
                at = head * model.encoder_head_size
                attend_head(team.projected, row * stride + at, team.projected, size + at,
                            team.places, start, end - start, size, model.encoder_head_size,
                            model.encoder_scale, team.scores, team.context,
                            row * size + at)  # fmt: skip
    meet(team)
    multiply(model, matrix + 1, team, team.context, size, rows, team.output)
    after(model, norm, team, model.outputs[matrix + 1], rows)
    feed_forward_layer(model, matrix + 2, norm + 1, team, rows)


@exact
def store(model, team, key, value, memory, to, step):
    """Copy a token's keys and values from team.projected to memory.

    Each head has its own part of the memory, `step` numbers long. A value follows its key.
    """
    size = model.decoder_head_size
    first, last = share(team, model.decoder_heads)
    for head in range(first, last):
        at = to + head * step
        copy_row(team.projected, key + head * size, size, memory, at)
        copy_row(team.projected, value + head * size, size, memory, at + size)


@exact
def attention(model, matrix, norm, team, rows, memory, step, places):
    """Run a decoder's attention for projected queries, with its residual connection.

    Row r attends to team.counts[r] places, from places[team.firsts[r]]. Its memory begins at
    team.bases[r] and has `step` numbers for each head.
    """
    size = model.decoder_head_size
    first, last = share(team, model.decoder_heads)
    for row in range(rows):
        for head in range(first, last):
            query = row * model.outputs[matrix] + head * size
            base = team.bases[row] + head * step
            attend_head(team.projected, query, memory, base, places, team.firsts[row],
                        team.counts[row], size, size, model.decoder_scale, team.scores,
                        team.context, (row * model.decoder_heads + head) * size)  # fmt: skip
    meet(team)
    size *= model.decoder_heads
    multiply(model, matrix + 1, team, team.context, size, rows, team.output)
    after(model, norm, team, model.outputs[matrix + 1], rows)
