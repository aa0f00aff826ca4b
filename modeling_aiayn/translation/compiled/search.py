"""Section 6.1 as functions that Numba compiles: beam search over sentences in slots.

A slot takes the next sentence when its search has ended. The rules are those of `SentenceSearch`.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import config, njit

from .instructions import BLOCK, add_at, exponentials, largest, next_above, read_at
from .kernels import (
    FIRST,
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

CHUNK = np.int64(8 * BLOCK)  # ids whose logits are computed before the best are picked
REFILL = 8  # encode new sentences when one in this many slots is free
ENDS, SUPPRESSED = 1, 2  # bit flags of ids
MET, BEGUN = 0, 1  # indices in `Slots.progress`
ENCODED, ROWS, CHUNKS = 0, 1, 2  # indices in `Slots.counts`: sentences to encode, rows, and chunks
NO_SENTENCE = -1


class Phrases(NamedTuple):
    """Phrases that translations should contain, each in one of its forms: see `PhraseSearch`."""

    ids: np.ndarray  # the different ids of each sentence's forms
    starts: np.ndarray  # where each sentence begins in ids
    forms: np.ndarray  # the ids of each form, as indices from the sentence's start in ids
    form_starts: np.ndarray  # where each form begins in forms
    first_forms: np.ndarray  # index of each sentence's first form
    owners: np.ndarray  # the phrase of each form, by its number in the sentence
    sizes: np.ndarray  # length of each phrase's first form
    first_phrases: np.ndarray  # index of each sentence's first phrase
    credits: np.ndarray  # for the first n ids of a phrase
    credit: float  # for one further id
    price: float  # of a missing phrase


class Job(NamedTuple):
    """Sentences to translate, and their translations; threads of several teams share it."""

    next: np.ndarray  # [1]: the next sentence that no team has taken
    ids: np.ndarray  # of all sources
    starts: np.ndarray  # where each source begins in ids
    lengths: np.ndarray
    prefixes: np.ndarray  # the first ids of all translations
    prefix_starts: np.ndarray
    certain: np.ndarray  # number of prefix ids with probability 1
    limits: np.ndarray  # maximum number of tokens of each translation
    phrases: Phrases
    flags: np.ndarray  # of each id of the vocabulary
    start_token: int
    width: int  # beams
    nbest: int  # number of translations to return
    candidates: int  # number of ranked continuations of a sentence
    min_length: int
    ngram: int  # no n-gram of this size occurs twice; 0: no limit
    alpha: float
    is_power: bool  # the length penalty is n^alpha
    done: np.ndarray  # whether the search of each sentence has ended
    found: np.ndarray  # number of translations of each sentence
    tokens: np.ndarray  # [N, width, limit], best first
    sizes: np.ndarray  # [N, width]
    scores: np.ndarray
    log_probabilities: np.ndarray


class Slots(NamedTuple):
    """A team's running searches. Rows are the running hypotheses of all slots."""

    counts: np.ndarray
    sentence: np.ndarray  # the sentence in each slot
    length: np.ndarray  # tokens of its hypotheses
    running: np.ndarray  # number of its running hypotheses
    first_row: np.ndarray  # of its hypotheses
    last: np.ndarray  # the last token of each, [slots, width]
    score: np.ndarray
    progress: np.ndarray  # phrases in each, as bits, and how many last ids begin one: [..., 2]
    next_progress: np.ndarray  # progress after each id of the phrases: [rows, ids, 2]
    credits: np.ndarray  # credits for these ids
    moved_progress: np.ndarray  # [width, 2]: memory to reorder progress
    ancestors: np.ndarray  # [slots, width, limit]: for each step the hypothesis that they came from
    fed: np.ndarray  # [slots, limit, width]: the decoder's input at each step
    moved: np.ndarray  # [width, limit]: memory to reorder ancestors
    source: np.ndarray  # keys and values of sources: [layers, slots, H, S, 2, K]
    target: np.ndarray  # the same for targets: [layers, slots, H, limit, width, 2, K]
    source_size: int  # S
    limit: int
    row_slot: np.ndarray  # the slot of each row
    row_beam: np.ndarray
    places: np.ndarray  # where each row finds its keys: [rows, limit]
    source_places: np.ndarray  # the same for the source's keys
    starts: np.ndarray  # of sentences that are encoded together
    taken: np.ndarray  # their slots
    room: int  # no more sentences are encoded together after this number of tokens
    sums: np.ndarray  # for each row and chunk, the largest logit and the sum of exponentials
    best: np.ndarray  # for each thread and row, the largest logits
    best_ids: np.ndarray
    ranked: np.ndarray  # a slot's candidates: their scores
    parents: np.ndarray  # the hypotheses that they continue
    tokens: np.ndarray  # the ids that they add


@exact
def token_at(slots, slot, beam, index):
    """Return a running hypothesis's token at an index; it must be in the decoder's input."""
    return slots.fed[slot, index + 1, slots.ancestors[slot, beam, index + 1]]


@exact
def credit_of(phrases, number, met):
    """Return a hypothesis's credit for the phrases that it contains."""
    total = 0.0
    first, last = phrases.first_phrases[number], phrases.first_phrases[number + 1]
    for phrase in range(first, last):
        if met >> (phrase - first) & 1:
            total += phrases.credits[phrases.sizes[phrase]]
    return total


@exact
def missing_phrases(phrases, number, met):
    """Count the phrases of a sentence that a hypothesis lacks."""
    count = phrases.first_phrases[number + 1] - phrases.first_phrases[number]
    while met:
        met &= met - 1
        count -= 1
    return count


@exact
def has_begun(job, slots, slot, beam, form, size):
    """Whether the last `size` ids of a hypothesis are the first ids of a form."""
    phrases, length = job.phrases, slots.length[slot]
    ids, start = phrases.starts[slots.sentence[slot]], phrases.form_starts[form]
    for n in range(size):
        token = phrases.ids[ids + phrases.forms[start + n]]
        if token != token_at(slots, slot, beam, length - size + n):
            return False
    return True


@exact
def look_for_phrases(job, slots, row):
    """Compute a hypothesis's progress and credit after each id of its phrases."""
    slot, beam = slots.row_slot[row], slots.row_beam[row]
    phrases, number, after = job.phrases, slots.sentence[slot], slots.next_progress
    met, begun = slots.progress[slot, beam, MET], slots.progress[slot, beam, BEGUN]
    ids = phrases.starts[number + 1] - phrases.starts[number]
    for n in range(ids):
        after[row, n, MET], after[row, n, BEGUN] = met, 0
    for is_whole in (True, False):
        for form in range(phrases.first_forms[number], phrases.first_forms[number + 1]):
            start, bit = phrases.form_starts[form], 1 << phrases.owners[form]
            last = phrases.form_starts[form + 1] - start - 1
            for size in range(last if is_whole else 0, min(begun + 1, last + is_whole)):
                n = phrases.forms[start + size]
                if not after[row, n, MET] & bit and has_begun(job, slots, slot, beam, form, size):
                    if is_whole:
                        after[row, n, MET] |= bit
                    else:
                        after[row, n, BEGUN] = max(after[row, n, BEGUN], size + 1)
    for n in range(ids):
        gained = credit_of(phrases, number, after[row, n, MET])
        gained -= credit_of(phrases, number, met)
        slots.credits[row, n] = gained + phrases.credits[after[row, n, BEGUN]]


@exact
def progress_after(job, slots, row, token):
    """Return the progress of a hypothesis after another id."""
    slot, beam = slots.row_slot[row], slots.row_beam[row]
    phrases, number = job.phrases, slots.sentence[slot]
    for n in range(phrases.starts[number + 1] - phrases.starts[number]):
        if phrases.ids[phrases.starts[number] + n] == token:
            return slots.next_progress[row, n, MET], slots.next_progress[row, n, BEGUN]
    return slots.progress[slot, beam, MET], 0


@exact
def add_credits(job, slots, row, logits, at, start, count):
    """Add a row's credits to the logits of ids from start; return whether it has phrases."""
    phrases, number = job.phrases, slots.sentence[slots.row_slot[row]]
    first, last = phrases.starts[number], phrases.starts[number + 1]
    for n in range(first, last):
        if start <= phrases.ids[n] < start + count:
            logits[at + phrases.ids[n] - start] += slots.credits[row, n - first]
    return last > first


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
            slots.progress[slot, 0, MET] = slots.progress[slot, 0, BEGUN] = 0
            slots.taken[count], slots.starts[count] = slot, tokens
            tokens += job.lengths[number]
            count += 1
    slots.starts[count] = tokens
    slots.counts[ENCODED] = count


@inlined
def lay_out_rows(job, slots, entry):
    """List the running hypotheses, and where each finds its ancestors' keys."""
    slots.counts[ROWS], width = 0, slots.score.shape[1]
    for slot in range(len(slots.sentence)):
        if slots.sentence[slot] != NO_SENTENCE:
            length = slots.length[slot]
            slots.first_row[slot] = slots.counts[ROWS]
            for beam in range(slots.running[slot]):
                row = slots.first_row[slot] + beam
                slots.row_slot[row], slots.row_beam[row] = slot, beam
                slots.fed[slot, length, beam] = slots.last[slot, beam]
                slots.ancestors[slot, beam, length] = beam
                for step in range(length + 1):
                    place = step * width + slots.ancestors[slot, beam, step]
                    slots.places[row * slots.limit + step] = place * entry
                look_for_phrases(job, slots, row)
            slots.counts[ROWS] += slots.running[slot]


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
        encoder_layer(model, layer, team, slots.starts, count)
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
            team.firsts[row], team.counts[row] = row * slots.limit, length + 1
        attention(model, matrix, norm, team, rows, slots.target, step, slots.places)
        before(model, norm + 1, team, rows)
        multiply(model, matrix + 2, team, team.normed, size, rows, team.projected)
        meet(team)
        for row in range(rows):
            slot = slots.row_slot[row]
            team.bases[row] = (layer * count + slot) * heads * source_step
            team.firsts[row], team.counts[row] = 0, job.lengths[slots.sentence[slot]]
        attention(
            model, matrix + 2, norm + 1, team, rows, slots.source, source_step, slots.source_places
        )
        feed_forward_layer(model, matrix + 4, norm + 2, team, rows)
    if model.final_norms:
        norm = 2 * model.encoder_layers + 1 + 3 * model.decoder_layers
        normalize(model, norm, team.hidden, rows, team.hidden)


@exact
def repeats(job, slots, slot, beam, token):
    """Whether a token would complete an n-gram that a hypothesis already contains."""
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
    """Compute the logits of each row, chunk by chunk, and pick its best next ids."""
    rows, size = slots.counts[ROWS], model.size
    round_rows(team.hidden, rows, size, team.codes, team.scales, team.zeros)
    for row in range(rows):
        for rank in range(job.candidates):
            slots.best[team.thread, row, rank] = LOWEST
    slots.counts[CHUNKS] = (len(model.output_ids) + CHUNK - 1) // CHUNK
    first, last = share(team, slots.counts[CHUNKS])
    for chunk in range(first, last):
        start = chunk * CHUNK
        count = min(CHUNK, len(model.output_ids) - start)
        end = (start + count + BLOCK - 1) // BLOCK
        multiply_blocks(model.output_weights, FIRST, size, team, rows, start // BLOCK, end,
                        team.logits, -start, CHUNK)  # fmt: skip
        for row in range(rows):
            whole = with_lowest(team.logits, row * CHUNK, count)
            highest = largest(team.logits, row * CHUNK, whole)
            total = exponentials(team.logits, row * CHUNK, whole, highest, team.scores)
            slots.sums[row, chunk, 0], slots.sums[row, chunk, 1] = highest, total
            if add_credits(job, slots, row, team.logits, row * CHUNK, start, count):
                highest = largest(team.logits, row * CHUNK, whole)
            if highest > slots.best[team.thread, row, job.candidates - 1]:
                best, ids = slots.best[team.thread, row], slots.best_ids[team.thread, row]
                n = next_above(team.logits, row * CHUNK, FIRST, count, best[-1])
                while n < count:
                    logit, token = team.logits[row * CHUNK + n], model.output_ids[start + n]
                    if is_allowed(job, slots, row, token):
                        insert(best, ids, logit, token)
                    n = next_above(team.logits, row * CHUNK, n + 1, count, best[-1])


@inlined
def log_of_sum(sums, chunks):
    """Compute log(sum(exp(x))) from each chunk's largest x and its sum of exp(x - largest)."""
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
    met = slots.progress[slot, beam, MET]
    log_probability -= credit_of(job.phrases, number, met)
    price = job.phrases.price * missing_phrases(job.phrases, number, met)
    score = normalized(job, log_probability - price, length + 1)
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
def advance(job, slots, slot, team_size):
    """Continue a slot's hypotheses with the best candidates."""
    scores, parents, tokens = slots.ranked, slots.parents, slots.tokens
    row = slots.first_row[slot]
    number, length, width = slots.sentence[slot], slots.length[slot], job.width
    for rank in range(job.candidates):
        scores[rank] = -np.inf
    for beam in range(slots.running[slot]):
        log_sum = log_of_sum(slots.sums[row + beam], slots.counts[CHUNKS])
        if math.isnan(log_sum):
            job.scores[number, 0] = log_sum  # raises an error when scores are read
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
        parent = parents[beam]
        slots.moved_progress[beam, MET], slots.moved_progress[beam, BEGUN] = progress_after(
            job, slots, row + parent, tokens[beam]
        )
        for step in range(length + 1):
            slots.moved[beam, step] = slots.ancestors[slot, parent, step]
    for beam in range(living):
        for step in range(length + 1):
            slots.ancestors[slot, beam, step] = slots.moved[beam, step]
        slots.last[slot, beam] = tokens[beam]
        begun = slots.moved_progress[beam, BEGUN]
        slots.progress[slot, beam, MET] = slots.moved_progress[beam, MET]
        slots.progress[slot, beam, BEGUN] = begun
        is_certain = length < job.certain[number]
        credit = job.phrases.credits[begun]  # lost if the phrase is not completed
        slots.score[slot, beam] = 0.0 if is_certain else scores[beam] - credit
    slots.length[slot], slots.running[slot] = length + 1, living
    first, last = job.phrases.first_phrases[number], job.phrases.first_phrases[number + 1]
    needed = job.nbest if last > first else width
    if living and job.found[number] >= needed:
        best = -np.inf
        for beam in range(living):
            met = slots.progress[slot, beam, MET]
            least = job.phrases.credit * missing_phrases(job.phrases, number, met)
            credit = credit_of(job.phrases, number, met)
            best = max(best, slots.score[slot, beam] - credit - least)
        if normalized(job, best, length + 1) <= job.scores[number, needed - 1]:
            slots.running[slot] = 0
    if slots.running[slot] == 0:
        slots.sentence[slot], job.done[number] = NO_SENTENCE, True


@njit(cache=bool(config.CACHE_DIR), fastmath=False, **OPTIONS)
def search(model, job, slots, team, steps):
    """Run some steps in each thread of a team; return whether the search is over."""
    entry = 2 * model.decoder_head_size
    for _ in range(steps):
        if team.thread == 0:
            take_sentences(job, slots)
            lay_out_rows(job, slots, entry)
        meet(team)
        if slots.counts[ROWS] == 0 or read_at(team.meeting, STOPPED):
            return True
        if slots.counts[ENCODED]:
            encode(model, job, slots, team)
        decode(model, job, slots, team)
        choose(model, job, slots, team)
        meet(team)
        if team.thread == 0:
            for slot in range(len(slots.sentence)):
                if slots.sentence[slot] != NO_SENTENCE:
                    advance(job, slots, slot, team.size)
    return False
