"""One model's decoder over the hypotheses of many sentences, a token at a time."""

from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from torch import Tensor

from ..layers import DecoderLayer
from ..modeling_aiayn import AiaynForConditionalGeneration
from .hypothesis_tree import HypothesisTree
from .packing import packed_linear
from .step_layer import StepLayer, source_keys_values


class StepModel:
    """A translation model made ready for decoding; its decoder's weights are copied.

    Args:
        model: The model.
        compile: Whether torch.compile rewrites a step.
    """

    def __init__(self, model: AiaynForConditionalGeneration, compile: bool = False) -> None:
        self.model = model
        self.decoder = model.model.decoder
        self.decoder_layers = cast(list[DecoderLayer], list(self.decoder.layers))
        self.layers = [StepLayer(layer) for layer in self.decoder_layers]
        self.heads = model.config.decoder_attention_heads
        self.lm_head = packed_linear(model.lm_head.weight, model.lm_head.bias)
        self.run: Callable[..., tuple[Tensor, Tensor]] = self.run_layers
        if compile:
            self.run = torch.compile(self.run_layers, dynamic=True)

    def run_layers(
        self,
        hidden_states: Tensor,
        width: int,
        tree: HypothesisTree,
        sources: list[Tensor],
        source_mask: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """The decoder's layers and the output projection over one token of each hypothesis.

        Args:
            hidden_states: Embedded tokens, [N * k, D].
            width: Hypotheses of each sentence, k.
            tree: Keys and values of the tokens so far; it has room for these.
            sources: The source's keys and values of each layer, [2, N * H, S, K].
            source_mask: Added to the scores over the source, [N * H, k, S], or None.

        Returns:
            Logits in float32, [N * k, V], and the last layer's attention over the source,
            [N * H, k, S].
        """
        mask = tree.mask(hidden_states.dtype, self.heads)
        for index, (layer, source) in enumerate(zip(self.layers, sources, strict=True)):
            update = partial(tree.update, index)
            hidden_states, weights = layer(hidden_states, width, update, mask, source, source_mask)
        return self.lm_head(self.decoder.layer_norm(hidden_states)).float(), weights


class BeamDecoder:
    """Decodes a batch: the hypotheses of a sentence stand where positions do in training.

    So a source's keys and values are there once for all of its hypotheses, and self-attention reads
    from a `HypothesisTree` in which nothing is moved.

    Args:
        model: The model.
        input_ids: Sources, [N, S].
        attention_mask: 1 for real source tokens, [N, S].
        width: Hypotheses of each source, k.
        max_length: Longest translation in tokens.
    """

    def __init__(
        self,
        model: StepModel,
        input_ids: Tensor,
        attention_mask: Tensor,
        width: int,
        max_length: int,
    ) -> None:
        self.model = model
        self.width = width
        decoder, device = model.decoder, input_ids.device
        encoded = model.model.model.encoder(input_ids, attention_mask=attention_mask)
        hidden_states = encoded.last_hidden_state  # [N, S, D]
        dtype = hidden_states.dtype
        self.sources = [source_keys_values(layer, hidden_states) for layer in model.decoder_layers]
        self.source_mask = None
        if not attention_mask.all():
            blocked = attention_mask[:, None, None] == 0  # [N, 1, 1, S]
            mask = torch.zeros(blocked.shape, dtype=dtype, device=device)
            mask = mask.masked_fill(blocked, torch.finfo(dtype).min)
            self.source_mask = mask.repeat(1, model.heads, width, 1)  # [N, H, k, S]
        self.tree = HypothesisTree(len(model.layers), len(input_ids), width, device)
        positions = torch.arange(max_length, device=device)
        self.positions = decoder.embed_positions(positions).to(dtype)  # [max_length, D]
        self.length = 0
        # Of the last step, the mean over the heads of the last layer, [N, k, S].
        self.source_attention = torch.empty(0)

    def step(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Score every entry of the vocabulary as the next token of each hypothesis.

        Args:
            tokens: The token that each hypothesis ends in, [N, k].
            parents: Which hypothesis of the step before each goes on from, [N, k].

        Returns:
            Logits in float32, [N, k, V].
        """
        self.tree.grow(parents)
        decoder, mask = self.model.decoder, self.source_mask
        embedded = decoder.embed_tokens(tokens.flatten()) * decoder.embed_scale  # [N * k, D]
        logits, attention = self.model.run(
            embedded + self.positions[self.length],
            self.width,
            self.tree,
            [source.flatten(1, 2) for source in self.sources],
            None if mask is None else mask.flatten(0, 1),
        )
        self.length += 1
        shape = (len(tokens), self.model.heads, self.width, -1)
        self.source_attention = attention.view(shape).mean(1)
        return logits.view(*tokens.shape, -1)

    def keep(self, sentences: Tensor) -> None:
        """Go on with some of the sentences.

        Args:
            sentences: Their indices, [M].
        """
        self.tree.keep(sentences)
        self.sources = [source[:, sentences] for source in self.sources]
        if self.source_mask is not None:
            self.source_mask = self.source_mask[sentences]
