"""Runs the compiled search: fills its arrays, starts its threads, and reads its translations."""

from collections.abc import Iterable, Iterator, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import chain
from typing import Any

import numpy as np
import torch

from ...modeling_aiayn import AiaynForConditionalGeneration
from .. import wanted_phrases
from ..candidates import check_no_nan
from ..decoding_rules import DecodingRules
from ..hypotheses import Forms, Hypothesis, SourceSentence
from ..options import SearchOptions
from ..shortlist import Shortlist
from .instructions import LANES
from .instructions import ROWS as TILE_ROWS
from .kernels import APART, STOPPED, Model, Team
from .packing import ACTIVATIONS, aligned, packed_model, rows_of, shortlisted, whole
from .search import CHUNK, ENDS, NO_SENTENCE, SUPPRESSED, Job, Phrases, Slots, search

# Hypotheses of a team, and source tokens that it encodes together: enough to fill tiles, and few
# enough to fit into the processor's L2 cache.
ROWS, TOKENS = 128, 192
MEMORY = 2**29  # bytes for the keys and values of a team's hypotheses
KEPT = 4  # number of sizes for which memory is kept
LENGTHS = 64  # round lengths up to multiples of this, so that searches can reuse memory
# Sentences per part. Their lengths differ at most by a factor of 2, unless all are SHORT.
PART, SHORT = 2048, 64
LISTED = 64  # sentences that share the ids of a shortlist
MOST_PHRASES = 64  # a sentence has fewer phrases, because each is a bit of an int64
STEPS = 32  # steps of a search between two checks for finished sentences
# Weights times rows of a step that justify one more thread: waiting for it takes microseconds.
WORK = 2**20

Found = tuple[list[int], list[list[Hypothesis]]]


def is_supported(model: AiaynForConditionalGeneration) -> bool:
    """Whether the kernels support a model's activation function."""
    return model.config.activation_function in ACTIVATIONS


class CompiledModel:
    """A model in the arrays of the kernels."""

    def __init__(
        self,
        model: AiaynForConditionalGeneration,
        int8: bool,
        excluded: Sequence[int],
        shortlist: Shortlist | None = None,
    ) -> None:
        self._shortlist = shortlist
        self._stacks = (model.model.encoder, model.model.decoder)
        self._start_token = model.config.decoder_start_token_id
        self.arrays = packed_model(model, int8, excluded)
        first = 4 * self.arrays.encoder_layers  # number of the decoder's first matrix
        self._step_weights = int((self.arrays.inputs * self.arrays.outputs)[first:].sum())
        self._step_weights += self.arrays.output_weights.size
        # Memory of earlier searches, by its sizes. A search removes the memory that it uses.
        self._free: dict[tuple[int, ...], list[tuple[Slots, Team]]] = {}

    def knows(self, sentence: SourceSentence) -> bool:
        """Whether the search supports a sentence: few phrases, and none with a shortlist."""
        return len(sentence.phrases) < (1 if self._shortlist else MOST_PHRASES)

    def compile(self) -> None:
        """Compile the search, or load it from the cache."""
        rules = DecodingRules(frozenset([0]), (), (), 0)
        job = self._job([], SearchOptions(), rules)
        for worker in self._workers(job, 1, 1, 1)[1]:
            search(self.arrays, job, *worker, 1)

    def searches(
        self,
        sentences: Sequence[SourceSentence],
        options: SearchOptions,
        rules: DecodingRules,
        batch_size: int,
    ) -> Iterator[Found]:
        """Search for all sentences; yield indices and hypotheses of finished sentences.

        Each team of threads searches for up to batch_size sentences at a time.
        """
        order = sorted(range(len(sentences)), key=lambda n: -len(sentences[n].input_ids))
        while order:
            longest = len(sentences[order[0]].input_ids)
            part = [
                n
                for n in order[: LISTED if self._shortlist else PART]
                if 2 * len(sentences[n].input_ids) >= longest or longest <= SHORT
            ]
            order = order[len(part) :]
            given = [sentences[index] for index in part]
            for numbers, found in self._search(given, options, rules, batch_size):
                yield [part[number] for number in numbers], found

    def _search(
        self,
        sentences: Sequence[SourceSentence],
        options: SearchOptions,
        rules: DecodingRules,
        batch_size: int,
    ) -> Iterator[Found]:
        job = self._job(sentences, options, rules)
        model = self._with_positions(job)
        if self._shortlist:
            ids = self._shortlist.for_batch(sentences, rules.eos_token_ids)
            model = shortlisted(model, ids.numpy())
        threads = torch.get_num_threads()
        teams = min(threads, len(sentences))
        rows = -(-len(sentences) // teams) * options.width
        size = max(1, min(threads // teams, rows * self._step_weights // WORK))
        slots = min(batch_size, -(-ROWS // options.width), -(-len(sentences) // teams))
        key, workers = self._workers(job, teams, size, slots)

        def work(worker: tuple[Slots, Team]) -> None:
            while not search(model, job, *worker, STEPS):
                pass

        reported = np.zeros(len(sentences), bool)
        with ThreadPoolExecutor(max(1, len(workers) - 1)) as pool:
            futures = [pool.submit(work, worker) for worker in workers[1:]]
            try:
                is_last = False
                while not is_last:
                    is_last = search(model, job, *workers[0], STEPS)
                    if is_last:
                        wait(futures)
                    new: list[int] = np.flatnonzero(job.done & ~reported).tolist()
                    reported[new] = True
                    yield new, [_hypotheses(job, number, options.nbest) for number in new]
            except BaseException:  # interrupted, or the caller has stopped
                for _, team in workers:
                    team.meeting[STOPPED] = 1
                raise
        self._free = {**dict([*self._free.items()][1 - KEPT :]), key: workers}

    def _with_positions(self, job: Job) -> Model:
        """Return the arrays, with positions for the longest source and target."""
        count = max(4 * LENGTHS, *(whole(int(x.max()), LENGTHS) for x in (job.lengths, job.limits)))
        arrays = self.arrays  # another thread may replace them
        if len(arrays.source_positions) < count * arrays.size:
            tables: dict[str, Any] = {}
            for name, stack in zip(("source", "target"), self._stacks, strict=True):
                longest = min(count, stack.embed_positions.max_length or count)
                table = rows_of(stack.embed_positions(torch.arange(longest)))
                tables[f"{name}_positions"] = np.resize(table, count * arrays.size)
            self.arrays = arrays = arrays._replace(**tables)
        return arrays

    def _job(
        self, sentences: Sequence[SourceSentence], options: SearchOptions, rules: DecodingRules
    ) -> Job:
        flags = np.zeros(len(self.arrays.output_ids), np.uint8)
        flags[list(rules.suppressed_token_ids)] |= SUPPRESSED
        flags[list(rules.eos_token_ids)] |= ENDS
        limits = _whole_numbers(rules.max_length(sentence, options) for sentence in sentences)
        shape = (len(sentences), options.width)
        sources = [sentence.input_ids for sentence in sentences]
        prefixes = [sentence.prefix for sentence in sentences]
        return Job(
            next=_zeros(1),
            ids=_whole_numbers(chain(*sources)),
            starts=_starts(sources),
            lengths=_whole_numbers(map(len, sources)),
            prefixes=_whole_numbers(chain(*prefixes)),
            prefix_starts=_starts(prefixes),
            certain=_whole_numbers(sentence.certain for sentence in sentences),
            limits=limits,
            phrases=_phrases([x.phrases if options.num_beams > 1 else () for x in sentences]),
            flags=flags,
            start_token=self._start_token,
            width=options.width,
            nbest=options.nbest,
            candidates=(1 + len(rules.eos_token_ids)) * options.width,
            min_length=options.min_length,
            ngram=options.no_repeat_ngram_size,
            alpha=float(options.length_penalty),
            is_power=options.length_normalization == "power",
            done=np.zeros(len(sentences), bool),
            found=np.zeros(len(sentences), np.int64),
            tokens=np.zeros((*shape, int(limits.max(initial=0))), np.int64),
            sizes=np.zeros(shape, np.int64),
            scores=np.zeros(shape),
            log_probabilities=np.zeros(shape),
        )

    def _workers(
        self, job: Job, teams: int, size: int, slots: int
    ) -> tuple[tuple[int, ...], list[tuple[Slots, Team]]]:
        """Return memory for all threads, and its sizes; reuse the memory of an earlier search."""
        source, limit = (
            whole(int(numbers.max(initial=1)), LENGTHS) for numbers in (job.lengths, job.limits)
        )
        entry = 2 * self.arrays.decoder_heads * self.arrays.decoder_head_size
        numbers = self.arrays.decoder_layers * entry * (source + limit * job.width)
        slots = max(1, min(slots, MEMORY // (numbers * np.dtype(self.arrays.kept).itemsize)))
        ids = whole(int(np.diff(job.phrases.starts).max(initial=0)), LENGTHS)
        key = (teams, size, slots, source, limit, job.width, job.candidates, ids)
        workers = self._free.pop(key, [])
        for _ in range(0 if workers else teams):
            own = _new_slots(self.arrays, *key[1:])
            workers += [(own, team) for team in _new_team(self.arrays, own, size)]
        return key, workers


def _phrases(phrases: Sequence[Sequence[Forms]]) -> Phrases:
    """Put the phrases of each sentence into arrays."""
    forms = [[*chain(*each)] for each in phrases]
    ids = [
        {token: number for number, token in enumerate(dict.fromkeys(chain(*each)))}
        for each in forms
    ]
    longest = max(map(len, chain(*forms)), default=0)
    return Phrases(
        ids=_whole_numbers(chain(*ids)),
        starts=_starts(ids),
        forms=_whole_numbers(
            numbers[token]
            for numbers, each in zip(ids, forms, strict=True)
            for token in chain(*each)
        ),
        form_starts=_starts(chain(*forms)),
        first_forms=_starts(forms),
        owners=_whole_numbers(
            number for each in phrases for number, some in enumerate(each) for _ in some
        ),
        sizes=_whole_numbers(len(some[0]) for some in chain(*phrases)),
        first_phrases=_starts(phrases),
        credits=np.array([wanted_phrases.credit_for(size) for size in range(longest + 1)]),
        credit=wanted_phrases.CREDIT,
        price=wanted_phrases.PRICE,
    )


def _starts(parts: Iterable[Sized]) -> np.ndarray:
    """Return where concatenated parts start, and where the last part ends."""
    return np.cumsum([0, *map(len, parts)])


def _whole_numbers(numbers: Iterable[int]) -> np.ndarray:
    return np.array(list(numbers), np.int64)


def _zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int64)


def _new_slots(
    model: Model,
    team: int,
    slots: int,
    source: int,
    limit: int,
    width: int,
    candidates: int,
    ids: int,
) -> Slots:
    rows, layers, chunks = slots * width, model.decoder_layers, -(-len(model.output_ids) // CHUNK)
    entry = 2 * model.decoder_heads * model.decoder_head_size
    return Slots(
        counts=_zeros(3),
        sentence=np.full(slots, NO_SENTENCE),
        length=_zeros(slots),
        running=_zeros(slots),
        first_row=_zeros(slots),
        last=_zeros(slots, width),
        score=np.zeros((slots, width)),
        progress=_zeros(slots, width, 2),
        next_progress=_zeros(rows, ids, 2),
        credits=np.zeros((rows, ids), np.float32),
        moved_progress=_zeros(width, 2),
        ancestors=_zeros(slots, width, limit),
        fed=_zeros(slots, limit, width),
        moved=_zeros(width, limit),
        source=aligned(layers * slots * source * entry, model.kept),
        target=aligned(layers * slots * limit * width * entry, model.kept),
        source_size=source,
        limit=limit,
        row_slot=_zeros(rows),
        row_beam=_zeros(rows),
        places=_zeros(rows * limit),
        source_places=np.arange(source) * 2 * model.decoder_head_size,
        starts=_zeros(slots + 1),
        taken=_zeros(slots),
        room=TOKENS,
        sums=np.zeros((rows, chunks, 2), np.float32),
        best=np.zeros((team, rows, candidates), np.float32),
        best_ids=_zeros(team, rows, candidates),
        ranked=np.zeros(candidates),
        parents=_zeros(candidates),
        tokens=_zeros(candidates),
    )


def _new_team(model: Model, slots: Slots, size: int) -> list[Team]:
    # The last tile of a product may exceed the number of rows.
    rows = max(len(slots.row_slot), slots.room + slots.source_size) + TILE_ROWS
    widest = int(model.outputs.max())
    shared = {name: aligned(rows * widest) for name in ("projected", "context", "inner", "output")}
    meeting = _zeros(3 * APART)
    return [
        Team(
            size=size,
            thread=thread,
            meeting=meeting,
            hidden=aligned(rows * model.size),
            normed=aligned(rows * model.size),
            codes=aligned(rows * int(model.inputs.max()), model.codes),
            scales=aligned(rows),
            zeros=np.zeros(rows, np.int32),
            scores=aligned(LANES + max(slots.source_size, slots.limit, int(CHUNK), widest)),
            logits=aligned(rows * int(CHUNK)),
            places=_zeros(rows),
            bases=_zeros(rows),
            firsts=_zeros(rows),
            counts=_zeros(rows),
            **shared,
        )
        for thread in range(size)
    ]


def _hypotheses(job: Job, number: int, nbest: int) -> list[Hypothesis]:
    """Return the translations of a sentence, best first; a NaN raises a ValueError."""
    check_no_nan(job.scores[number])
    return [
        Hypothesis(
            tuple(job.tokens[number, rank, : job.sizes[number, rank]].tolist()),
            float(job.log_probabilities[number, rank]),
            float(job.scores[number, rank]),
        )
        for rank in range(min(nbest, job.found[number]))
    ]
