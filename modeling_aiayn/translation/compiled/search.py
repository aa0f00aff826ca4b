"""Section 6.1 as functions that Numba compiles: beam search over sentences in slots.

A slot takes the next sentence when its own has ended. The rules are those of `SentenceSearch`.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import config, njit

from .instructions import BLOCK, add_at, exponentials, largest, read_at
from .kernels import (
    LOWEST,
    OPTIONS,
    STOPPED,
    attention,
    before,
    embed,
    encoder_layer,
    exact,
    feed_forward_layer,
    inlined,
    meet,
    multiply,
    multiply_blocks,
    normalize,
    round_rows,
    share,
    store,
    with_lowest,
)

CHUNK = 8 * BLOCK  # ids whose logits are computed before the best are picked
REFILL = 8  # sentences are encoded when one slot in so many is free
ENDS, SUPPRESSED = 1, 2  # flags of ids
ENCODED, ROWS, CHUNKS = 0, 1, 2  # in `Slots.counts`: sentences to encode, rows, and chunks
NO_SENTENCE = -1


class Job(NamedTuple):
    """Sentences to translate, and their translations; threads of several teams share it."""

    next: np.ndarray  # [1]: the next sentence that no team has taken
    ids: np.ndarray  # of all sources
    starts: np.ndarray  # of each source in ids
    lengths: np.ndarray
    prefixes: np.ndarray  # the first ids of all translations
    prefix_starts: np.ndarray
    certain: np.ndarray  # ids of a prefix that have the probability 1
    limits: np.ndarray  # most tokens of each translation
    flags: np.ndarray  # of each id of the vocabulary
    start_token: int
    width: int  # beams
    candidates: int  # continuations of a sentence that are ranked, k
    min_length: int
    ngram: int  # no n-gram of this size occurs twice; 0: any may
    alpha: float
    is_power: bool  # the length penalty is n^alpha
    done: np.ndarray  # whether the search of each sentence has ended
    found: np.ndarray  # translations of each sentence
    tokens: np.ndarray  # [N, width, limit], best first
    sizes: np.ndarray  # [N, width]
    scores: np.ndarray
    log_probabilities: np.ndarray


class Slots(NamedTuple):
    """A team's running searches. Rows are the running hypotheses of all slots."""

    counts: np.ndarray
    sentence: np.ndarray  # in each slot
    length: np.ndarray  # tokens of its hypotheses
    running: np.ndarray  # hypotheses
    last: np.ndarray  # the last token of each, [slots, width]
    score: np.ndarray
    ancestors: np.ndarray  # [slots, width, limit]: for each step the hypothesis that they came from
    fed: np.ndarray  # [slots, limit, width]: the decoder's input at each step
    moved: np.ndarray  # [width, limit]: memory to reorder ancestors
    source: np.ndarray  # keys and values of sources: [layers, slots, H, S, 2, K]
    target: np.ndarray  # and of targets: [layers, slots, H, limit, width, 2, K]
    source_size: int  # S
    limit: int
    row_slot: np.ndarray  # of each row
    row_beam: np.ndarray
    places: np.ndarray  # of each row, its keys: [rows, limit]
    source_places: np.ndarray  # the same for its source
    starts: np.ndarray  # of sentences that are encoded together
    taken: np.ndarray  # their slots
    room: int  # tokens that are encoded together, before the last sentence
    sums: np.ndarray  # of each row and chunk, the largest logit and the sum of exponentials
    best: np.ndarray  # of each thread and row, the largest logits
    best_ids: np.ndarray
    ranked: np.ndarray  # a slot's candidates: scores,
    parents: np.ndarray  # the hypotheses that they continue,
    tokens: np.ndarray  # and the ids that they add


@inlined
def take_sentences(job, slots):
    """Give free slots the next sentences, as many as can be encoded together."""
    count, size, tokens, free = 0, len(slots.sentence), 0, 0
    for slot in range(size):
        free += slots.sentence[slot] == NO_SENTENCE
    if free == size or free * REFILL >= size:
        for slot in range(size):
            if slots.sentence[slot] != NO_SENTENCE or tokens >= slots.room:
                continue
            number = add_at(job.next, 0, 1)
            if number >= len(job.limits):
                break
            slots.sentence[slot], slots.length[slot], slots.running[slot] = number, 0, 1
            slots.last[slot, 0], slots.score[slot, 0] = job.start_token, 0.0
            slots.taken[count], slots.starts[count] = slot, tokens
            tokens += job.lengths[number]
            count += 1
    slots.starts[count] = tokens
    slots.counts[ENCODED] = count


@inlined
def lay_out_rows(slots, entry):
    """List the running hypotheses, and where each finds its ancestors' keys."""
    rows, width = 0, slots.score.shape[1]
    for slot in range(len(slots.sentence)):
        if slots.sentence[slot] != NO_SENTENCE:
            length = slots.length[slot]
            for beam in range(slots.running[slot]):
                slots.row_slot[rows], slots.row_beam[rows] = slot, beam
                slots.fed[slot, length, beam] = slots.last[slot, beam]
                slots.ancestors[slot, beam, length] = beam
                for step in range(length + 1):
                    place = step * width + slots.ancestors[slot, beam, step]
                    slots.places[rows * slots.limit + step] = place * entry
                rows += 1
    slots.counts[ROWS] = rows


@inlined
def encode(model, job, slots, team):
    """Encode the sentences that were taken, and store each decoder layer's keys and values."""
    count, size = slots.counts[ENCODED], model.size
    for index in range(count):
        start = job.starts[slots.sentence[slots.taken[index]]]
        for row in range(slots.starts[index], slots.starts[index + 1]):
            position = row - slots.starts[index]
            embed(model.source_embeddings, model.source_scale, model.source_positions,
                  job.ids[start + position], position, size, team.hidden, row * size)  # fmt: skip
    for layer in range(model.encoder_layers):
        encoder_layer(model, layer, team, slots.starts, count, team.places)
    rows = slots.starts[count]
    if model.final_norms:
        normalize(model, 2 * model.encoder_layers, team.hidden, rows, team.hidden)
    entry, heads = 2 * model.decoder_head_size, model.decoder_heads
    step = slots.source_size * entry
    for layer in range(model.decoder_layers):
        number = 4 * model.encoder_layers + 7 * layer + 6
        multiply(model, number, team, team.hidden, size, rows, team.projected)
        meet(team)
        for index in range(count):
            at = (layer * len(slots.sentence) + slots.taken[index]) * heads * step
            for row in range(slots.starts[index], slots.starts[index + 1]):
                key = row * model.outputs[number]
                value = key + heads * model.decoder_head_size
                to = at + (row - slots.starts[index]) * entry
                store(model, team, key, value, slots.source, to, step)
        meet(team)


@inlined
def decode(model, job, slots, team):
    """Compute the decoder's output, in team.hidden, for the last token of each row."""
    rows, size = slots.counts[ROWS], model.size
    heads, entry, count = model.decoder_heads, 2 * model.decoder_head_size, len(slots.sentence)
    source_step, step = slots.source_size * entry, slots.limit * job.width * entry
    for row in range(rows):
        slot, beam = slots.row_slot[row], slots.row_beam[row]
        token, length = slots.last[slot, beam], slots.length[slot]
        embed(model.target_embeddings, model.target_scale, model.target_positions, token, length,
              size, team.hidden, row * size)  # fmt: skip
    for layer in range(model.decoder_layers):
        matrix = 4 * model.encoder_layers + 7 * layer
        norm = 2 * model.encoder_layers + 1 + 3 * layer
        before(model, norm, team, rows)
        multiply(model, matrix, team, team.normed, size, rows, team.projected)
        meet(team)
        for row in range(rows):
            slot, length = slots.row_slot[row], slots.length[slots.row_slot[row]]
            team.bases[row] = (layer * count + slot) * heads * step
            to = team.bases[row] + (length * job.width + slots.row_beam[row]) * entry
            key = row * model.outputs[matrix] + heads * model.decoder_head_size
            value = key + heads * model.decoder_head_size
            store(model, team, key, value, slots.target, to, step)
            team.counts[row] = length + 1
        attention(model, matrix, norm, team, rows, slots.target, step, slots.places, slots.limit,
                  team.counts)  # fmt: skip
        before(model, norm + 1, team, rows)
        multiply(model, matrix + 2, team, team.normed, size, rows, team.projected)
        meet(team)
        for row in range(rows):
            slot = slots.row_slot[row]
            team.bases[row] = (layer * count + slot) * heads * source_step
            team.counts[row] = job.lengths[slots.sentence[slot]]
        attention(model, matrix + 2, norm + 1, team, rows, slots.source, source_step,
                  slots.source_places, 0, team.counts)  # fmt: skip
        feed_forward_layer(model, matrix + 4, norm + 2, team, rows)
    if model.final_norms:
        norm = 2 * model.encoder_layers + 1 + 3 * model.decoder_layers
        normalize(model, norm, team.hidden, rows, team.hidden)


@exact
def repeats(job, slots, slot, beam, token):
    """Whether a token would end an n-gram that a hypothesis already contains."""
    length, size = slots.length[slot], job.ngram
    for end in range(size - 1, length):
        same = token_at(slots, slot, beam, end) == token
        for back in range(1, size):
            if not same:
                break
            same = token_at(slots, slot, beam, end - back) == token_at(
                slots, slot, beam, length - back
            )
        if same:
            return True
    return False


@exact
def token_at(slots, slot, beam, index):
    """The token of a running hypothesis at an index, once it is the decoder's input."""
    return slots.fed[slot, index + 1, slots.ancestors[slot, beam, index + 1]]


@inlined
def is_allowed(job, slots, row, token):
    """Whether a token may come next: see `SentenceSearch` and `Restrictions`."""
    slot, flags = slots.row_slot[row], job.flags[token]
    number, length = slots.sentence[slot], slots.length[slot]
    if length + 1 >= job.limits[number]:
        return flags & ENDS != 0
    prefix = job.prefix_starts[number] + length
    if prefix < job.prefix_starts[number + 1]:
        return token == job.prefixes[prefix]
    if flags & SUPPRESSED or (flags & ENDS and length < job.min_length):
        return False
    return job.ngram == 0 or not repeats(job, slots, slot, slots.row_beam[row], token)


@inlined
def insert(scores, ids, score, token):
    """Insert a score into a list, best first, and drop the last; equal scores stay in order."""
    place = len(scores) - 1
    while place > 0 and scores[place - 1] < score:
        scores[place], ids[place] = scores[place - 1], ids[place - 1]
        place -= 1
    scores[place], ids[place] = score, token


@inlined
def choose(model, job, slots, team):
    """Pick each row's best next ids from the product with the vocabulary, chunk by chunk."""
    rows, size, outputs = slots.counts[ROWS], model.size, len(model.output_columns) // 3
    round_rows(team.hidden, rows, size, team.codes, team.scales, team.zeros)
    for row in range(rows):
        for rank in range(job.candidates):
            slots.best[team.thread, row, rank] = LOWEST
    slots.counts[CHUNKS] = (len(model.output_ids) + CHUNK - 1) // CHUNK
    first, last = share(team, slots.counts[CHUNKS])
    for chunk in range(first, last):
        start = chunk * CHUNK
        count = min(CHUNK, len(model.output_ids) - start)
        blocks = (count + BLOCK - 1) // BLOCK
        multiply_blocks(model.output_weights, start * size, model.output_columns, start, size,
                        outputs, team, rows, blocks, team.logits, 0, CHUNK)  # fmt: skip
        for row in range(rows):
            whole = with_lowest(team.logits, row * CHUNK, count)
            highest = largest(team.logits, row * CHUNK, whole)
            total = exponentials(team.logits, row * CHUNK, whole, highest, team.scores)
            slots.sums[row, chunk, 0], slots.sums[row, chunk, 1] = highest, total
            if highest > slots.best[team.thread, row, job.candidates - 1]:
                best, ids = slots.best[team.thread, row], slots.best_ids[team.thread, row]
                for n in range(count):
                    logit, token = team.logits[row * CHUNK + n], model.output_ids[start + n]
                    if logit > best[-1] and is_allowed(job, slots, row, token):
                        insert(best, ids, logit, token)


@inlined
def log_of_sum(sums, chunks):
    """log(sum(exp(x))) of chunks, each of which gives its largest x and its own sum below it."""
    highest, total = LOWEST, 0.0
    for n in range(chunks):
        highest = max(highest, sums[n, 0])
    for n in range(chunks):
        total += sums[n, 1] * math.exp(sums[n, 0] - highest)
    return highest + math.log(total)


@exact
def normalized(job, log_probability, length):
    """See `normalized_score`."""
    divisor = float(length) if job.is_power else (5.0 + length) / 6.0
    return log_probability / divisor**job.alpha


@exact
def finish(job, slots, slot, beam, log_probability, token):
    """Add a hypothesis and its end to the translations, best first."""
    number, length = slots.sentence[slot], slots.length[slot]
    score = normalized(job, log_probability, length + 1)
    place = min(job.found[number], job.width)
    if place == job.width and job.scores[number, place - 1] >= score:
        return
    place = min(place, job.width - 1)
    while place > 0 and job.scores[number, place - 1] < score:
        job.scores[number, place] = job.scores[number, place - 1]
        job.log_probabilities[number, place] = job.log_probabilities[number, place - 1]
        job.sizes[number, place] = job.sizes[number, place - 1]
        for index in range(job.sizes[number, place]):
            job.tokens[number, place, index] = job.tokens[number, place - 1, index]
        place -= 1
    job.scores[number, place], job.sizes[number, place] = score, length + 1
    job.log_probabilities[number, place] = log_probability
    for index in range(length):
        job.tokens[number, place, index] = token_at(slots, slot, beam, index)
    job.tokens[number, place, length] = token
    job.found[number] = min(job.found[number] + 1, job.width)


@exact
def advance(job, slots, slot, row, team_size):
    """Continue a slot's hypotheses, whose rows begin at row, by the best candidates."""
    scores, parents, tokens = slots.ranked, slots.parents, slots.tokens
    number, length, width = slots.sentence[slot], slots.length[slot], job.width
    for rank in range(job.candidates):
        scores[rank] = -np.inf
    for beam in range(slots.running[slot]):
        log_sum = log_of_sum(slots.sums[row + beam], slots.counts[CHUNKS])
        if math.isnan(log_sum):
            job.scores[number, 0] = log_sum  # an error where scores are read
        for thread in range(team_size):
            for rank in range(job.candidates):
                logit = slots.best[thread, row + beam, rank]
                score = slots.score[slot, beam] + (logit - log_sum)
                if logit == LOWEST or score <= scores[-1]:
                    break
                place = job.candidates - 1
                while place > 0 and scores[place - 1] < score:
                    scores[place], parents[place] = scores[place - 1], parents[place - 1]
                    tokens[place] = tokens[place - 1]
                    place -= 1
                scores[place], parents[place] = score, beam
                tokens[place] = slots.best_ids[thread, row + beam, rank]
    living = 0
    for rank in range(job.candidates):
        if scores[rank] == -np.inf:
            break
        if job.flags[tokens[rank]] & ENDS:
            if rank < width:
                finish(job, slots, slot, parents[rank], scores[rank], tokens[rank])
        elif living < width:
            scores[living], parents[living], tokens[living] = (
                scores[rank], parents[rank], tokens[rank]
            )  # fmt: skip
            living += 1
    for beam in range(living):
        for step in range(length + 1):
            slots.moved[beam, step] = slots.ancestors[slot, parents[beam], step]
    for beam in range(living):
        for step in range(length + 1):
            slots.ancestors[slot, beam, step] = slots.moved[beam, step]
        slots.last[slot, beam] = tokens[beam]
        is_certain = length < job.certain[number]
        slots.score[slot, beam] = 0.0 if is_certain else scores[beam]
    slots.length[slot], slots.running[slot] = length + 1, living
    if living and job.found[number] == width:
        best = normalized(job, slots.score[slot, 0], length + 1)
        if best <= job.scores[number, width - 1]:
            slots.running[slot] = 0
    if slots.running[slot] == 0:
        slots.sentence[slot], job.done[number] = NO_SENTENCE, True


@njit(cache=bool(config.CACHE_DIR), fastmath=False, **OPTIONS)
def search(model, job, slots, team, steps):
    """Search for some steps, in each thread of a team; return whether it is over."""
    entry = 2 * model.decoder_head_size
    for _ in range(steps):
        if team.thread == 0:
            take_sentences(job, slots)
            lay_out_rows(slots, entry)
        meet(team)
        if slots.counts[ROWS] == 0 or read_at(team.meeting, STOPPED):
            return True
        if slots.counts[ENCODED]:
            encode(model, job, slots, team)
        decode(model, job, slots, team)
        choose(model, job, slots, team)
        meet(team)
        if team.thread == 0:
            row = 0
            for slot in range(len(slots.sentence)):
                if slots.sentence[slot] != NO_SENTENCE:
                    count = slots.running[slot]
                    advance(job, slots, slot, row, team.size)
                    row += count
    return False
