"""Score the next token of every hypothesis of a batch, step by step."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .fast_model import FastModel
from .hypothesis_tree import HypothesisTree


class BeamDecoder:
    """Decodes a batch with one model, or with an ensemble that averages probabilities.

    Queries have the shape [N, H, k, K]: the k hypotheses of a sentence take the place of the target
    positions in training. So all hypotheses of a sentence share the keys and values of its source.
    Self-attention reads a `HypothesisTree`.

    Sources and attention_mask are [N, S]. Only the ids in `shortlisted`, [C], get scores; None
    means the whole vocabulary, and C is V. `with_coverage` sums the attention that each source
    token receives.
    """

    def __init__(
        self,
        models: Sequence[FastModel],
        input_ids: Tensor,
        attention_mask: Tensor,
        width: int,
        max_length: int,
        with_coverage: bool,
        shortlisted: Tensor | None = None,
    ) -> None:
        self.models = models
        self.outputs = [model.output_layer(shortlisted) for model in models]
        self.attention_mask = attention_mask
        self.sources = [model.encode(input_ids, attention_mask) for model in models]
        self.tree = HypothesisTree(width, [source.values for source in self.sources])
        self.positions = [
            model.target_positions(max_length, input_ids.device) for model in models
        ]  # [max_length, D] each
        self.length = 0
        self.coverage: Tensor | None = None  # [N, k, S], with k = 1 at the start
        if with_coverage:
            self.coverage = torch.zeros_like(input_ids[:, None], dtype=torch.float32)

    def step(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Score the next tokens, [N, k, C]: float32 logits, or log probabilities of an ensemble.

        tokens, [N, k], are the last tokens of the hypotheses. parents, [N, k], are the indices of
        the previous step's hypotheses that they continue.
        """
        self.tree.grow(parents)
        logits, attention = [], []
        for number, model in enumerate(self.models):
            sources, output = self.sources[number], self.outputs[number]
            entries, mask = self.tree.entries(number), self.tree.mask(number)
            position = self.positions[number][self.length]
            scores, weights = model.step(tokens, position, entries, mask, sources, output)
            logits.append(scores)
            attention.append(weights)
        self.length += 1
        if self.coverage is not None:
            index = parents[..., None].expand(-1, -1, self.coverage.size(-1))
            self.coverage = self.coverage.gather(1, index) + self._mean_attention(attention)
        if len(logits) == 1:
            return logits[0]
        votes = torch.stack([scores.log_softmax(-1) for scores in logits])
        return votes.logsumexp(0) - math.log(len(logits))

    def _mean_attention(self, attention: Sequence[Tensor]) -> Tensor:
        sentences = len(self.attention_mask)
        by_head = [weights.view(sentences, -1, *weights.shape[1:]) for weights in attention]
        return torch.stack([weights.mean(1) for weights in by_head]).mean(0)

    def coverage_scores(self) -> list[list[float]]:
        """Sum log(min(attention received, 1)) over the source (Wu et al. 2016, equation 14).

        The result, [N, k], has a score for each hypothesis, at most 0; it is 0 without coverage.
        """
        if self.coverage is None:
            sentences, width = self.tree.is_ancestor.shape[:2]
            return [[0.0] * width] * sentences
        received = self.coverage.clamp(min=1e-9, max=1.0).log()
        received.masked_fill_(self.attention_mask[:, None] == 0, 0.0)
        scores: list[list[float]] = received.sum(-1).tolist()
        return scores

    def keep(self, sentences: Tensor) -> None:
        """Keep the sentences at given indices, [M], and remove the others."""
        self.tree.keep(sentences)
        self.sources = [source.select(sentences) for source in self.sources]
        self.attention_mask = self.attention_mask[sentences]
        if self.coverage is not None:
            self.coverage = self.coverage[sentences]
