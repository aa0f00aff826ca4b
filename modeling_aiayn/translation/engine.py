"""From source ids to target ids: what Translator hands sentences to."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig

from ..generation import max_tokens_beyond_source
from ..losses import IGNORED_LABEL
from ..modeling_aiayn import AiaynForConditionalGeneration
from .beam_decoder import StepModel
from .candidates import (
    Candidate,
    Restrictions,
    best_candidates,
    drawn_candidates,
    refuse_nan,
)
from .ensemble import Ensemble
from .hypotheses import Hypothesis, SentenceSampling, SentenceSearch
from .options import SearchOptions
from .required_phrases import ConstrainedSearch

# Finished sentences leave when they are this share of a batch: leaving copies what stays.
LEAVING_SHARE = 0.125


# Taken off the logit of an id that is to have no share of a softmax: a number in float16 too, so
# that what is given stays possible.
RULED_OUT = 1e4


@dataclass(frozen=True)
class SourceSentence:
    """What is translated, in ids.

    Args:
        input_ids: The source, `</s>` last.
        prefix: What the translation begins with.
        phrases: What it contains besides.
        number: Which of all sentences this is; where sampling starts from depends on it.
    """

    input_ids: Sequence[int]
    prefix: Sequence[int] = ()
    phrases: Sequence[Sequence[int]] = ()
    number: int = 0


class Engine(Protocol):
    """What translates ids.

    Args:
        positions: As `positions_of` gives them.
    """

    positions: dict[str, int | None]

    def check(self, options: SearchOptions, with_phrases: bool) -> None:
        """Refuse options that do not fit each other or the engine, before anything is read."""

    def search(
        self, sentences: Sequence[SourceSentence], options: SearchOptions
    ) -> list[list[Hypothesis]]:
        """The nbest translations of each sentence of a batch, best first."""

    def score(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[float]:
        """The log-probability of each target of a batch, `</s>` last, in nats."""


def positions_of(models: Sequence[AiaynForConditionalGeneration]) -> dict[str, int | None]:
    """How many tokens learned positions have room for, in each half of all models.

    Args:
        models: The models.

    Returns:
        Tokens by half, "encoder" and "decoder"; None: any number of them.
    """
    found = {}
    for half in ("encoder", "decoder"):
        tables = (getattr(model.model, half).embed_positions.max_length for model in models)
        found[half] = min((table for table in tables if table is not None), default=None)
    return found


def length_limit(
    sentence: SourceSentence, options: SearchOptions, beyond_source: int, positions: int | None
) -> int:
    """How many tokens a translation may have, `</s>` counted.

    Args:
        sentence: What is translated; there is room for what its translation must have.
        options: How to search.
        beyond_source: The offset where options have none.
        positions: How many the decoder has positions for. None: any number.

    Returns:
        The limit.
    """
    offset = options.max_length_offset
    offset = beyond_source if offset is None else offset
    limit = int(options.max_length_factor * len(sentence.input_ids)) + offset
    given = len(sentence.prefix) + sum(map(len, sentence.phrases))
    limit = max(limit, given + 1)
    return min(limit, positions or limit)


def suppressed_tokens(generation_config: GenerationConfig) -> list[int]:
    """Ids that a model never generates: suppress_tokens, and bad_words_ids of one id each.

    Args:
        generation_config: The model's.

    Returns:
        The ids.

    Raises:
        ValueError: A bad word has several ids, which generate() knows and this decoder does not.
    """
    words = generation_config.bad_words_ids or []
    for word in words:
        if len(word) != 1:
            raise ValueError(
                f"bad_words_ids must be of one id each here, got {word}. Use model.generate(), or "
                "take it out of the generation config."
            )
    return sorted({*(generation_config.suppress_tokens or []), *(word[0] for word in words)})


def left_out_of_odds(generation_config: GenerationConfig) -> list[int]:
    """Ids that have no share of the probability, where a model counts shares of what is left.

    Args:
        generation_config: The model's; renormalize_logits says so, as OPUS-MT's do.

    Returns:
        The ids.
    """
    return suppressed_tokens(generation_config) if generation_config.renormalize_logits else []


def refuse_what_the_decoder_lacks(generation_config: GenerationConfig) -> None:
    """Name the first thing of a generation config that generate() does and no option here does.

    Args:
        generation_config: The model's.

    Raises:
        ValueError: There is one.
    """
    for name in ("repetition_penalty", "encoder_repetition_penalty"):
        if getattr(generation_config, name) not in (None, 1.0):
            raise ValueError(_lacking(generation_config, name))
    for name in ("forced_bos_token_id", "begin_suppress_tokens", "sequence_bias"):
        if getattr(generation_config, name) is not None:
            raise ValueError(_lacking(generation_config, name))


def _lacking(generation_config: GenerationConfig, name: str) -> str:
    return (
        f"The generation config says {name}={getattr(generation_config, name)!r}, which this "
        "decoder does not have. Use model.generate(), or take it out."
    )


class TorchEngine:
    """Our own decoder loop; several models vote by the mean of their probabilities.

    Args:
        models: Models of one vocabulary.
        compile: Whether torch.compile rewrites a step; the first batches wait for it.
    """

    def __init__(
        self, models: Sequence[AiaynForConditionalGeneration], compile: bool = False
    ) -> None:
        self.models = models
        self.step_models = [StepModel(model, compile) for model in models]
        self.config = models[0].config
        self.beyond_source = max_tokens_beyond_source(models[0].generation_config)
        ends = models[0].generation_config.eos_token_id
        self.eos_token_ids = frozenset(ends if isinstance(ends, list) else [ends])
        refuse_what_the_decoder_lacks(models[0].generation_config)
        self.suppressed = suppressed_tokens(models[0].generation_config)
        self.left_out = left_out_of_odds(models[0].generation_config)
        self.positions = positions_of(models)
        size = models[0].lm_head.out_features
        if self.suppressed and not 0 <= self.suppressed[0] <= self.suppressed[-1] < size:
            raise ValueError(
                f"suppress_tokens and bad_words_ids must be in [0, {size}), got {self.suppressed}."
            )

    def check(self, options: SearchOptions, with_phrases: bool) -> None:
        """Refuse options that do not fit each other.

        Args:
            options: How to search.
            with_phrases: Whether translations are to contain phrases.

        Raises:
            ValueError: Phrases are to be found without beams.
        """
        if with_phrases and (options.do_sample or options.num_beams < 2):
            raise ValueError("Required phrases need beam search: set num_beams to at least 2.")

    @torch.inference_mode()
    def search(
        self, sentences: Sequence[SourceSentence], options: SearchOptions
    ) -> list[list[Hypothesis]]:
        """The nbest translations of each sentence of a batch.

        Args:
            sentences: The batch.
            options: How to search.

        Returns:
            Finished hypotheses, best first.

        Raises:
            ValueError: The model's scores are no numbers, or the options do not fit each other.
        """
        searches = [self._search_of(sentence, options) for sentence in sentences]
        input_ids, attention_mask = self._padded([sentence.input_ids for sentence in sentences])
        ensemble = Ensemble(
            self.step_models,
            input_ids,
            attention_mask,
            options.width,
            max(search.max_length for search in searches),
            options.coverage_penalty > 0,
        )
        batch = _Batch(
            searches, self.config.decoder_start_token_id, options, self.suppressed, self.left_out
        )
        while not batch.is_done:
            batch.advance(ensemble)
        return [search.finished[: options.nbest] for search in searches]

    @torch.inference_mode()
    def score(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[float]:
        """How likely each source's translation is.

        Args:
            sources: Source ids of a batch.
            targets: Their translations' ids, `</s>` last.

        Returns:
            The log-probability of each, in nats.

        Raises:
            ValueError: The model's scores are no numbers.
        """
        input_ids, attention_mask = self._padded(sources)
        labels, is_real = self._padded(targets)
        decoder_input_ids = self.models[0].prepare_decoder_input_ids_from_labels(
            labels.masked_fill(is_real == 0, IGNORED_LABEL)
        )
        votes = torch.stack(
            [
                model(input_ids, attention_mask, decoder_input_ids).logits.float().log_softmax(-1)
                for model in self.models
            ]
        )  # [models, N, T, V]
        if self.left_out:
            shares = votes.logsumexp(0)  # but for a constant
            shares[..., self.left_out] -= RULED_OUT
            votes = shares.log_softmax(-1)[None]
        picked = votes.gather(-1, labels[None, ..., None].expand(len(votes), -1, -1, 1))[..., 0]
        mean = picked.logsumexp(0) - math.log(len(votes))
        totals: list[float] = mean.masked_fill(is_real == 0, 0.0).sum(-1).tolist()
        refuse_nan(totals)
        return totals

    def _padded(self, sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Ids and their mask, [N, S] both."""
        rows = [torch.tensor(sequence, dtype=torch.long) for sequence in sequences]
        mask = [torch.ones_like(row) for row in rows]
        device = self.models[0].device
        ids = pad_sequence(rows, batch_first=True, padding_value=self.config.pad_token_id)
        return ids.to(device), pad_sequence(mask, batch_first=True).to(device)

    def _search_of(self, sentence: SourceSentence, options: SearchOptions) -> SentenceSearch:
        limit = length_limit(sentence, options, self.beyond_source, self.positions["decoder"])
        shared = (options, self.eos_token_ids, limit, sentence.prefix)
        if options.do_sample:
            return SentenceSampling(*shared, seed=f"{options.search_seed} {sentence.number}")
        if sentence.phrases:
            return ConstrainedSearch(*shared, phrases=sentence.phrases)
        return SentenceSearch(*shared)


class _Batch:
    """The searches of a batch, step by step; finished ones leave it."""

    def __init__(
        self,
        searches: list[SentenceSearch],
        start_token_id: int,
        options: SearchOptions,
        suppressed: list[int],
        left_out: list[int],
    ) -> None:
        self.searches = searches
        self.options = options
        self.suppressed = suppressed
        self.left_out = left_out
        # A search ranks twice as many continuations as it has beams, as generate() does.
        ends = len(searches[0].eos_token_ids)
        self.count = (1 + ends) * options.width
        start = [Candidate(0.0, 0, start_token_id)] * (options.width if options.do_sample else 1)
        self.living = [start for _ in searches]

    @property
    def is_done(self) -> bool:
        return not self.searches

    def advance(self, ensemble: Ensemble) -> None:
        tokens, parents, log_probabilities = self._rows(ensemble.source_mask.device)
        logits = ensemble.step(tokens, parents)
        if self.left_out:
            logits[..., self.left_out] -= RULED_OUT
        restrictions = self._restrictions()
        if self.options.do_sample:
            chances = [
                search.chances()[: tokens.size(1)]
                for search in self.searches
                if isinstance(search, SentenceSampling)
            ]
            candidates = drawn_candidates(
                logits, log_probabilities, restrictions, self.options, chances
            )
        else:
            candidates = best_candidates(logits, log_probabilities, restrictions, self.count)
        coverage = ensemble.coverage_scores()
        for index, search in enumerate(self.searches):
            if not search.is_done:
                living = search.advance(candidates[index], coverage[index])
                self.living[index] = [] if search.is_done else living
        self._let_leave(ensemble)

    def _rows(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Last tokens, parents and log-probabilities of all hypotheses, [N, k] each.

        There are as many as the sentence with the most has: one at the start of a beam search.
        """
        width = max(map(len, self.living))
        nobody = [Candidate(-torch.inf, 0, 0)] * width
        rows = (candidate for row in self.living for candidate in (row + nobody)[:width])
        scores, parents, tokens = (
            torch.tensor(column, device=device).view(-1, width)
            for column in zip(*rows, strict=True)
        )
        return tokens, parents, scores

    def _restrictions(self) -> Restrictions:
        restrictions = Restrictions({}, [], [], [], self.suppressed)
        for index, search in enumerate(self.searches):
            if search.is_done:
                continue
            only = search.only()
            if only is not None:
                restrictions.only[index] = only
            restrictions.banned.extend((index, *place) for place in search.banned())
            restrictions.wanted.extend((index, *place) for place in search.wanted())
            if isinstance(search, ConstrainedSearch):
                restrictions.diverse.append(index)
        return restrictions

    def _let_leave(self, ensemble: Ensemble) -> None:
        staying = [index for index, search in enumerate(self.searches) if not search.is_done]
        if len(self.searches) - len(staying) < LEAVING_SHARE * len(self.searches):
            return
        self.searches = [self.searches[index] for index in staying]
        self.living = [self.living[index] for index in staying]
        if staying:
            ensemble.keep(torch.tensor(staying, device=ensemble.source_mask.device))
