"""The model's equations as functions that Numba compiles, beside attention.py and layers.py.

Arrays are flat, and "at" is where a row begins: slices cost more than short products. Where several
threads compute a step as a team, each computes a share of the outputs of a product and of the
heads, in the order in which one thread would, so that the number of threads changes no result.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit, uintp

from .instructions import (
    BLOCK,
    GROUP,
    LANES,
    ROWS,
    add_at,
    exponentials,
    give_way,
    largest,
    mix,
    read_at,
    round_row,
    score,
    tile,
)

# No counts of references: nothing is created here, and counting takes longer than many functions.
OPTIONS = {"nogil": True, "error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}
# Without wrappers for Python, compiling takes a quarter less time. But Python crashes if it calls a
# compiled function other than `search`: set NUMBA_DISABLE_JIT=1 to call them.
# Sums of `reordered` functions may be in another order, for vectors. Functions that call those of
# instructions.py must be exact, because both apply to the whole function.
inlined = njit(inline="always", fastmath=False, **OPTIONS)
exact = njit(fastmath=False, no_cpython_wrapper=True, **OPTIONS)
reordered = njit(fastmath={"contract", "reassoc", "nsz"}, no_cpython_wrapper=True, **OPTIONS)

SPINS = 5_000  # of a thread that waits for its team, before others may have its core
APART = 8  # numbers between two that threads write: they have different lines of the cache
WAITING, MEETINGS, STOPPED = 0, APART, 2 * APART  # in `Team.meeting`
RELU, SILU, GELU, GELU_TANH = range(4)  # activation functions
FIRST = np.int64(0)  # Numba compiles a function once more for an argument like 0
ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)
LOWEST = np.float32(-np.inf)
ROOT_OF_HALF = np.float32(math.sqrt(0.5))
TANH_SLOPE, TANH_CUBE = np.float32(2 * math.sqrt(2 / math.pi)), np.float32(0.044715)


class Model(NamedTuple):
    """A model's weights; matrices and norms have numbers."""

    weights: np.ndarray  # of all matrices, int8 or float32, in blocks: see `tile`
    columns: np.ndarray  # a scale, a sum of weights and a bias for each output of a matrix
    weights_at: np.ndarray  # of each matrix
    columns_at: np.ndarray
    inputs: np.ndarray  # with zeros up to a whole group
    outputs: np.ndarray  # with zeros up to a whole block
    output_weights: np.ndarray  # the same for the output layer
    output_columns: np.ndarray
    output_ids: np.ndarray  # the id of each output
    norms: np.ndarray  # weights and biases, [norms, 2, D]
    epsilon: np.float32
    source_embeddings: np.ndarray  # [V, D], times the scale
    target_embeddings: np.ndarray
    source_positions: np.ndarray  # [S, D]
    target_positions: np.ndarray
    source_scale: np.float32
    target_scale: np.float32
    width: int  # D
    size: int  # the same with zeros up to whole LANES
    encoder_layers: int
    decoder_layers: int
    encoder_heads: int
    decoder_heads: int
    encoder_head_size: int  # K, with zeros up to whole LANES
    decoder_head_size: int
    encoder_scale: np.float32  # of scores
    decoder_scale: np.float32
    norm_first: bool
    final_norms: bool
    activation: int

    @property
    def codes(self) -> Any:
        """The type of the inputs of products."""
        return np.uint8 if self.weights.dtype == np.int8 else np.float32


class Team(NamedTuple):
    """A thread of a team: the memory that it shares with the others, and its own."""

    size: int
    thread: int
    meeting: np.ndarray
    projected: np.ndarray  # shared: queries, keys and values, [rows, 3 * H * K]
    context: np.ndarray  # shared: attended values, [rows, H * K]
    inner: np.ndarray  # shared: [rows, F]
    output: np.ndarray  # shared: a sub-layer's, [rows, D]
    hidden: np.ndarray  # own: the layer's input, [rows, D], which all threads compute
    normed: np.ndarray  # own: [rows, D]
    codes: np.ndarray  # own: inputs of a product, in the type of its weights
    scales: np.ndarray  # own: of each row of codes
    zeros: np.ndarray  # own: the code of 0 in each row
    scores: np.ndarray  # own: of a query
    logits: np.ndarray  # own: of a part of the vocabulary
    places: np.ndarray  # own: where the encoder finds keys
    bases: np.ndarray  # own: of each row, where its keys begin
    firsts: np.ndarray  # own: of each row, where their places begin,
    counts: np.ndarray  # own: and how many there are


@exact
def meet(team):
    """Wait until all threads of the team are here, or the search is stopped."""
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
    """This thread's part of a number of things, from and to."""
    return count * team.thread // team.size, count * (team.thread + 1) // team.size


@exact
def round_rows(states, rows, size, codes, scales, zeros):
    """Write states, [rows, size], in whole numbers; for products in float32, copy them."""
    if codes.itemsize == 1:
        for row in range(rows):
            round_row(states, row * size, size, codes, row * size, scales, zeros, row)
    else:
        for n in range(rows * size):
            codes[n] = states[n]


@exact
def multiply_blocks(weights, at, columns, columns_at, inputs, outputs, team, rows, blocks, out, to,
                    stride):  # fmt: skip
    """Write some blocks of the outputs of a matrix, for rows that `round_rows` prepared."""
    depth = inputs // GROUP if team.codes.itemsize == 1 else inputs
    for block in range(blocks):
        row, size = 0, ROWS
        while row < rows:
            # More rows than there are: one tile of 8 takes less time than tiles of 4, 2 and 1.
            while size // 2 >= rows - row:
                size //= 2
            tile(size, depth, team.codes, row * inputs, inputs, team.scales, team.zeros, row,
                 weights, at + block * BLOCK * inputs, columns, columns_at + block * BLOCK,
                 outputs, out, to + row * stride + block * BLOCK, stride)  # fmt: skip
            row += size


@exact
def multiply(model, number, team, states, size, rows, out):
    """Write x W^T + b of states x, [rows, size], and return this thread's columns of it."""
    round_rows(states, rows, size, team.codes, team.scales, team.zeros)
    inputs, outputs = model.inputs[number], model.outputs[number]
    first, last = share(team, outputs // BLOCK)
    multiply_blocks(model.weights, model.weights_at[number] + first * BLOCK * inputs, model.columns,
                    model.columns_at[number] + first * BLOCK, inputs, outputs, team, rows,
                    last - first, out, first * BLOCK, outputs)  # fmt: skip
    return first * BLOCK, last * BLOCK


@exact
def activate(states, at, size, function, powers):
    """Apply an activation function in place, in whole LANES; powers has room for as many."""
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
    """Layer normalisation of states, [rows, D]."""
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
        for n in range(model.size):  # behind the width, weights and biases are 0
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
    """Write the lowest number behind `count` numbers, up to whole LANES; return where they end."""
    whole = -(-count // LANES) * LANES
    for n in range(at + count, at + whole):
        states[n] = LOWEST
    return whole


@inlined
def attend_head(
    query, at, memory, base, places, first, count, values, size, scale, scores, out, to
):
    """Equation 1 for one query of a head, of `size` numbers, and `count` keys.

    A key is in memory at base + places[first + n], and its value comes `values` behind it.
    """
    score(query, at, size, memory, base, places, first, count, scale, scores)
    whole = with_lowest(scores, FIRST, count)
    total = exponentials(scores, 0, whole, largest(scores, 0, whole), scores)
    for n in range(count):
        scores[n] /= total
    for x in range(0, size, LANES):
        mix(scores, memory, base + values + x, places, first, count, out, to + x)


@exact
def feed_forward_layer(model, matrix, norm, team, rows):
    """Equation 2 with its residual connection; matrix is the number of the first matrix."""
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
    """Sections 3.4 and 3.5: a token's embedding and its position's encoding."""
    for n in range(size):
        embedding = embeddings[uintp(token * size + n)]
        out[uintp(at + n)] = embedding * scale + positions[uintp(position * size + n)]


@inlined
def encoder_layer(model, layer, team, starts, sentences):
    """A layer over the tokens of sentences, from starts[n] to starts[n + 1]."""
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
    """Write a token's keys and values, which are in team.projected, to memory.

    Each head has its own part of it, `step` numbers long, in which a value comes behind its key.
    """
    size = model.decoder_head_size
    first, last = share(team, model.decoder_heads)
    for head in range(first, last):
        for n in range(size):
            at = to + head * step + n
            memory[uintp(at)] = team.projected[uintp(key + head * size + n)]
            memory[uintp(at + size)] = team.projected[uintp(value + head * size + n)]


@exact
def attention(model, matrix, norm, team, rows, memory, step, places):
    """A decoder's attention with its residual connection, once queries are projected.

    Row r attends to team.counts[r] places, from places[team.firsts[r]], in memory that begins at
    team.bases[r], and is `step` numbers long for each head.
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
