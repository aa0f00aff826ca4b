"""Our own engine: finds the target ids for a batch of source ids, step by step."""

import hashlib
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ..modeling_aiayn import AiaynForConditionalGeneration
from .beam_decoder import BeamDecoder
from .candidates import Restrictions, best_candidates, check_no_nan, drawn_candidates
from .compiled import compiled_model
from .decoding_rules import DecodingRules
from .fast_model import FastModel, check_plain_layers, int8_linear_function, linear_function
from .hypotheses import Hypothesis, SentenceSampling, SentenceSearch, SourceSentence
from .options import SearchOptions, search_defaults
from .pools import search_in_batches
from .shortlist import Shortlist
from .wanted_phrases import PhraseSearch

if TYPE_CHECKING:
    from .compiled.engine import CompiledModel

# A forked process has another id; a spawned process imports this module again.
IMPORTED_BY = os.getpid()
# Removing finished sentences copies the rest, so wait until this share of a batch is finished.
LEAVING_SHARE = 0.125


class TorchEngine:
    """Our own decoder; an ensemble averages the probabilities of its models.

    Models run without dropout. Their weights are packed on first use, and again after they change.
    Generation configs are read on first use, and later changes have no effect. int8 and the
    shortlist affect only `search`; `score` uses the model's dtype and the whole vocabulary.
    """

    def __init__(
        self,
        models: Sequence[AiaynForConditionalGeneration],
        *,
        int8: bool = False,
        shortlist: Shortlist | None = None,
    ) -> None:
        self.int8 = int8
        self.shortlist = shortlist
        # torch.compile wraps the model in a module; our decoder reads the model itself.
        self.models = [
            cast(AiaynForConditionalGeneration, getattr(model, "_orig_mod", model))
            for model in models
        ]
        for model in self.models:
            if not isinstance(model, AiaynForConditionalGeneration):
                raise ValueError(
                    "Translator needs an AiaynForConditionalGeneration, got "
                    f"{type(model).__name__}. Merge adapters first: model.merge_and_unload()."
                )
            if int8 and (model.device.type, model.dtype) != ("cpu", torch.float32):
                raise ValueError(
                    "int8 needs a model in float32 on a CPU, got "
                    f"{str(model.dtype).removeprefix('torch.')} on {model.device.type}. Load "
                    "it with dtype='int8' and device='cpu', or on a GPU with dtype='bfloat16'."
                )
        self._packed_versions: list[tuple[int, int]] | None = None
        self._packed: dict[str, Any] = {}
        self.source_positions = self._shortest_table("encoder")
        self.target_positions = self._shortest_table("decoder")

    def _shortest_table(self, half: str) -> int | None:
        tables = (getattr(model.model, half).embed_positions.max_length for model in self.models)
        return min((table for table in tables if table is not None), default=None)

    @property
    def device(self) -> torch.device:
        """The device of the models. `model.device` would search all modules for it."""
        return self.models[0].lm_head.weight.device

    @cached_property
    def rules(self) -> DecodingRules:
        """The rules of the first model's generation config."""
        first = self.models[0]
        return DecodingRules.from_generation_config(
            first.generation_config, first.lm_head.out_features, self.target_positions
        )

    @property
    def search_defaults(self) -> dict[str, Any]:
        """Search options of the first model, if it was imported."""
        return search_defaults(self.models[0].generation_config)

    def _current(self, name: str, pack: Callable[[], Any]) -> Any:
        """Return a packed form of the models; pack them again if their weights have changed."""
        versions = _versions(weight for model in self.models for weight in model.parameters())
        if versions != self._packed_versions:
            self._packed_versions, self._packed = versions, {}
        if name not in self._packed:
            self._packed[name] = pack()
        return self._packed[name]

    @property
    def _fast_models(self) -> list[FastModel]:
        make_linear = int8_linear_function if self.int8 else linear_function
        models: list[FastModel] = self._current(
            "fast", lambda: [FastModel(model, make_linear) for model in self.models]
        )
        return models

    def _compiled(self, options: SearchOptions) -> "CompiledModel | None":
        """Return the compiled search, if it is available and supports the options."""
        first = self.models[0]
        is_ours = len(self.models) == 1 and not options.do_sample
        is_plain = first.device.type == "cpu" and first.dtype == torch.float32
        if not is_ours or not is_plain or options.coverage_penalty:
            return None

        def pack() -> "CompiledModel | None":
            check_plain_layers(first)
            excluded = self.rules.excluded_from_softmax
            return compiled_model(first, self.int8, excluded, self.shortlist)

        compiled: CompiledModel | None = self._current("compiled", pack)
        return compiled

    @property
    def fingerprint(self) -> str:
        """A hash of the weights, the generation configs and the shortlist."""
        digest = hashlib.sha256(f"int8={self.int8}".encode())
        tensors: list[Tensor] = []
        for model in self.models:
            digest.update(model.generation_config.to_json_string().encode())
            digest.update(model.config.to_json_string().encode())
            tensors += model.parameters()
        if self.shortlist is not None:
            tensors += [self.shortlist.starts, self.shortlist.ids, self.shortlist.always]
        for tensor in tensors:
            digest.update(
                tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
            )
        return digest.hexdigest()[:16]

    def check_options(self, options: SearchOptions) -> None:
        """Check the models, and compile the search, before an output file is opened."""
        if self._compiled(options) is None:
            _ = self.rules, self._fast_models

    def search(
        self, sentences: Sequence[SourceSentence], options: SearchOptions
    ) -> list[list[Hypothesis]]:
        """Return the nbest finished translations of each sentence of a batch, best first."""
        found: dict[int, list[Hypothesis]] = {}
        for numbers, hypotheses in self.searches(sentences, options, len(sentences), sys.maxsize):
            found.update(zip(numbers, hypotheses, strict=True))
        return [found[number] for number in range(len(sentences))]

    def searches(
        self,
        sentences: Sequence[SourceSentence],
        options: SearchOptions,
        batch_size: int,
        max_tokens_per_batch: int,
    ) -> Iterator[tuple[list[int], list[list[Hypothesis]]]]:
        """Search for any number of sentences; yield the indices and translations of some at a time.

        In float32 on a CPU, Numba's compiled functions search if Numba is installed; they limit
        their own memory. torch handles ensembles, sampling, coverage, and phrases with a shortlist.
        """
        _avoid_threads_of_parent(os.getpid())
        compiled = self._compiled(options)
        is_ours = [
            compiled is not None and (options.num_beams == 1 or compiled.knows(sentence))
            for sentence in sentences
        ]
        ours = [number for number, is_one in enumerate(is_ours) if is_one]
        others = [number for number, is_one in enumerate(is_ours) if not is_one]
        if compiled is not None and ours:
            given = [sentences[number] for number in ours]
            for numbers, found in compiled.searches(given, options, self.rules, batch_size):
                yield [ours[number] for number in numbers], found
        given = [sentences[number] for number in others]
        sizes = (batch_size, max_tokens_per_batch)
        for numbers, found in search_in_batches(self._search_batch, given, options, *sizes):
            yield [others[number] for number in numbers], found

    @torch.inference_mode()
    def _search_batch(
        self, sentences: Sequence[SourceSentence], options: SearchOptions
    ) -> list[list[Hypothesis]]:
        searches = [self._search_for(sentence, options) for sentence in sentences]
        input_ids, attention_mask = self._padded([sentence.input_ids for sentence in sentences])
        shortlisted = columns = None
        if self.shortlist is not None:
            ids = self.shortlist.for_batch(sentences, self.rules.eos_token_ids)
            shortlisted = ids.to(self.device)
            columns = {token: column for column, token in enumerate(ids.tolist())}
        decoder = BeamDecoder(
            self._fast_models,
            input_ids,
            attention_mask,
            options.width,
            max(search.max_length for search in searches),
            options.coverage_penalty > 0,
            shortlisted,
        )
        running = searches
        while running:
            self._advance(running, decoder, options, columns)
            running = _remove_done(running, decoder)
        return [search.finished[: options.nbest] for search in searches]

    def _search_for(self, sentence: SourceSentence, options: SearchOptions) -> SentenceSearch:
        limit = self.rules.max_length(sentence, options)
        start = self.models[0].config.decoder_start_token_id
        arguments = (sentence, options, self.rules.eos_token_ids, limit, start)
        if options.do_sample:
            return SentenceSampling(*arguments)
        if sentence.phrases and options.num_beams > 1:
            return PhraseSearch(*arguments)
        return SentenceSearch(*arguments)

    def _advance(
        self,
        searches: Sequence[SentenceSearch],
        decoder: BeamDecoder,
        options: SearchOptions,
        columns: Mapping[int, int] | None,
    ) -> None:
        tokens, parents, log_probabilities = self._running_rows(searches)
        logits = decoder.step(tokens, parents)
        self.rules.exclude_from_softmax(logits, columns)
        restrictions = self._restrictions(searches).within(columns)
        if options.do_sample:
            draws = [search.draws()[: tokens.size(1)] for search in searches]
            candidates = drawn_candidates(logits, log_probabilities, restrictions, options, draws)
        else:
            # A hypothesis has one candidate per end id, so at least width candidates do not end.
            count = (1 + len(self.rules.eos_token_ids)) * options.width
            candidates = best_candidates(logits, log_probabilities, restrictions, count)
        if columns is not None:
            ids = list(columns)
            candidates = [
                found._replace(tokens=[ids[column] for column in found.tokens])
                for found in candidates
            ]
        coverage = decoder.coverage_scores()
        for search, best, covered in zip(searches, candidates, coverage, strict=True):
            if not search.is_done:
                search.advance(best, covered)

    def _running_rows(self, searches: Sequence[SentenceSearch]) -> tuple[Tensor, Tensor, Tensor]:
        """Return last tokens, parents and log-probabilities of running hypotheses, [N, k] each.

        k is the largest number of hypotheses of a sentence; missing hypotheses have probability 0.
        """
        width = max(len(search.running.tokens) for search in searches)
        scores: list[float] = []
        parents: list[int] = []
        tokens: list[int] = []
        for search in searches:
            running = search.running
            missing = width - len(running.tokens)
            scores += running.log_probabilities + [-math.inf] * missing
            parents += running.parents + [0] * missing
            tokens += running.tokens + [0] * missing
        shape = (-1, width)
        return (
            _tensor(tokens, np.int64).view(shape).to(self.device),
            _tensor(parents, np.int64).view(shape).to(self.device),
            _tensor(scores, np.float32).view(shape).to(self.device),
        )

    def _restrictions(self, searches: Sequence[SentenceSearch]) -> Restrictions:
        restrictions = Restrictions({}, [], [], self.rules.suppressed_token_ids)
        for index, search in enumerate(searches):
            if search.is_done:
                continue
            forced = search.forced_tokens()
            if forced is not None:
                restrictions.forced[index] = forced
            # Most lists are empty: a loop then takes a tenth of extend()'s time.
            for hypothesis, token in search.banned_tokens():
                restrictions.banned.append((index, hypothesis, token))
            for hypothesis, token, credit in search.wanted_tokens():
                restrictions.wanted.append((index, hypothesis, token, credit))
        return restrictions

    @torch.inference_mode()
    def score(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], certain: int = 0
    ) -> list[float]:
        """Return the log-probability of each target of a batch, `</s>` last, in nats.

        The first `certain` ids of each target have the probability 1.
        """
        _avoid_threads_of_parent(os.getpid())
        input_ids, attention_mask = self._padded(sources)
        labels, is_real = self._padded(targets)
        decoder_input_ids = self.models[0].prepare_decoder_input_ids_from_labels(labels)
        inputs = (input_ids, attention_mask, decoder_input_ids)
        with in_eval_mode(self.models):
            votes = torch.stack(
                [model(*inputs).logits.float().log_softmax(-1) for model in self.models]
            )  # [models, N, T, V]
        if self.rules.excluded_from_softmax:
            shares = votes.logsumexp(0)  # up to a constant, which the next softmax removes
            self.rules.exclude_from_softmax(shares)
            votes = shares.log_softmax(-1)[None]
        picked = votes.gather(-1, labels[None, ..., None].expand(len(votes), -1, -1, 1))[..., 0]
        mean = picked.logsumexp(0) - math.log(len(votes))
        totals: list[float] = mean.masked_fill(is_real == 0, 0.0)[:, certain:].sum(-1).tolist()
        check_no_nan(totals)
        return totals

    @torch.inference_mode()
    def attention(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[Tensor]:
        """Average all cross-attention in the first model, target to source ids, [T, S] each."""
        model = self.models[0]
        input_ids, attention_mask = self._padded(sources)
        labels, _ = self._padded(targets)
        inputs = (input_ids, attention_mask, model.prepare_decoder_input_ids_from_labels(labels))
        with showing_weights(model):
            weights = model.model(*inputs, output_attentions=True).cross_attentions
        means = torch.stack(list(weights)).float().mean((0, 2)).cpu()  # [N, T, S]
        return [
            mean[: len(target), : len(source)]
            for mean, source, target in zip(means, sources, targets, strict=True)
        ]

    def _padded(self, sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Return padded ids and their mask, [N, S] both."""
        rows = [torch.tensor(sequence, dtype=torch.long) for sequence in sequences]
        mask = [torch.ones_like(row) for row in rows]
        padding = self.models[0].config.pad_token_id
        ids = pad_sequence(rows, batch_first=True, padding_value=padding)
        return ids.to(self.device), pad_sequence(mask, batch_first=True).to(self.device)


@contextmanager
def in_eval_mode(models: Iterable[nn.Module]) -> Iterator[None]:
    """Let models compute without dropout, and restore the mode of each module at the end."""
    modes = [(module, module.training) for model in models for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def showing_weights(model: Any) -> Iterator[None]:
    """Make a model compute attention weights without dropout; restore its state at the end."""
    implementation = model.config._attn_implementation
    try:
        # Other implementations return no weights.
        model.set_attn_implementation("eager")
        with in_eval_mode([model]):
            yield
    finally:
        model.set_attn_implementation(implementation)


def _tensor(numbers: Sequence[float], dtype: Any) -> Tensor:
    # numpy reads lists five times as fast as torch does.
    return torch.from_numpy(np.array(numbers, dtype=dtype))


@lru_cache(maxsize=1)
def _avoid_threads_of_parent(process: int) -> None:
    """Use one thread in a forked process, because its parent's threads do not exist there.

    This is done once, so that the process may set another number of threads afterwards.
    """
    if process != IMPORTED_BY:
        torch.set_num_threads(1)


def _remove_done(searches: list[SentenceSearch], decoder: BeamDecoder) -> list[SentenceSearch]:
    staying = [index for index, search in enumerate(searches) if not search.is_done]
    if len(searches) - len(staying) < LEAVING_SHARE * len(searches):
        return searches
    if staying:
        decoder.keep(torch.tensor(staying, device=decoder.attention_mask.device))
    return [searches[index] for index in staying]


def _versions(weights: Iterable[Tensor]) -> list[tuple[int, int]]:
    return [
        (weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights
    ]
