"""Models that decode together."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .beam_decoder import BeamDecoder, StepModel
from .penalties import coverage_score


class Ensemble:
    """The decoders of one or more models over the same hypotheses; they vote by probability.

    Args:
        models: Models of one vocabulary.
        input_ids: Sources, [N, S].
        attention_mask: 1 for real source tokens, [N, S].
        width: Hypotheses of each source at most.
        max_length: Longest translation in tokens.
        with_coverage: Whether to sum up the attention that each source token gets.
    """

    def __init__(
        self,
        models: Sequence[StepModel],
        input_ids: Tensor,
        attention_mask: Tensor,
        width: int,
        max_length: int,
        with_coverage: bool,
    ) -> None:
        self.decoders = [
            BeamDecoder(model, input_ids, attention_mask, width, max_length) for model in models
        ]
        self.source_mask = attention_mask
        self.coverage: Tensor | None = None  # [N, k, S], with k = 1 at the start
        if with_coverage:
            sentences, length = input_ids.shape
            self.coverage = torch.zeros(sentences, 1, length, device=input_ids.device)

    def step(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Score every entry of the vocabulary as the next token of each hypothesis.

        Args:
            tokens: The token that each hypothesis ends in, [N, k].
            parents: Which hypothesis of the step before each goes on from, [N, k].

        Returns:
            Logits in float32, [N, k, V]; of several models the logarithm of their mean probability.
        """
        logits = [decoder.step(tokens, parents) for decoder in self.decoders]
        if self.coverage is not None:
            index = parents[..., None].expand(-1, -1, self.coverage.size(-1))
            received = torch.stack([decoder.source_attention() for decoder in self.decoders]).mean(
                0
            )
            self.coverage = self.coverage.gather(1, index) + received
        if len(logits) == 1:
            return logits[0]
        votes = torch.stack([scores.log_softmax(-1) for scores in logits])
        return votes.logsumexp(0) - math.log(len(logits))

    def coverage_scores(self) -> list[list[float]]:
        """`coverage_score` of each hypothesis, [N, k]; 0 where nothing was summed up."""
        if self.coverage is None:
            shape = self.decoders[0].tree.is_ancestor.shape[:2]
            return [[0.0] * shape[1]] * shape[0]
        scores: list[list[float]] = coverage_score(self.coverage, self.source_mask).tolist()
        return scores

    def keep(self, sentences: Tensor) -> None:
        """Go on with some of the sentences.

        Args:
            sentences: Their indices, [M].
        """
        for decoder in self.decoders:
            decoder.keep(sentences)
        self.source_mask = self.source_mask[sentences]
        if self.coverage is not None:
            self.coverage = self.coverage[sentences]
