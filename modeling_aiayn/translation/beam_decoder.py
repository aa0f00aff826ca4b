"""One model's decoder over the hypotheses of many sentences, a token at a time."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache

from ..attention import eager_attention_forward
from ..modeling_aiayn import AiaynForConditionalGeneration
from .hypothesis_tree import HypothesisTree


class BeamDecoder:
    """The model's own layers, called with the hypotheses of a sentence in the place of positions.

    So a source's keys and values are there once for all of its hypotheses, and self-attention reads
    from a `HypothesisTree` in which nothing is moved.

    Args:
        model: The model, its linear layers packed or not.
        input_ids: Sources, [N, S].
        attention_mask: 1 for real source tokens, [N, S].
        width: Hypotheses of each source, k.
        max_length: Longest translation in tokens.
        watch_attention: Whether to keep each step's attention over the source.
        run_layers: `decode_step`, compiled or not.
    """

    def __init__(
        self,
        model: AiaynForConditionalGeneration,
        input_ids: Tensor,
        attention_mask: Tensor,
        width: int,
        max_length: int,
        watch_attention: bool = False,
        run_layers: Callable[..., Tensor] | None = None,
    ) -> None:
        self.decoder = model.model.decoder
        self.lm_head = model.lm_head
        self.run_layers = run_layers or decode_step
        device = input_ids.device
        source = model.model.encoder(input_ids, attention_mask=attention_mask)
        self.encoder_hidden_states = source.last_hidden_state  # [N, S, D]
        dtype = self.encoder_hidden_states.dtype
        self.source_mask = None
        if not attention_mask.all():
            blocked = attention_mask[:, None, None] == 0  # [N, 1, 1, S]
            self.source_mask = torch.zeros(blocked.shape, dtype=dtype, device=device).masked_fill(
                blocked, torch.finfo(dtype).min
            )
        self.tree = HypothesisTree(len(self.decoder.layers), len(input_ids), width, device)
        self.cache = EncoderDecoderCache(self.tree, DynamicCache())
        positions = torch.arange(max_length, device=device)
        self.positions = self.decoder.embed_positions(positions).to(dtype)  # [max_length, D]
        self.length = 0
        # Mean over the heads of the last layer, [N, k, S], where it is watched.
        self.source_attention = torch.empty(0)
        self._watched = self.decoder.layers[-1].encoder_attn if watch_attention else None

    def step(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Score every entry of the vocabulary as the next token of each hypothesis.

        Args:
            tokens: The token that each hypothesis ends in, [N, k].
            parents: Which hypothesis of the step before each goes on from, [N, k].

        Returns:
            Logits in float32, [N, k, V].
        """
        self.tree.grow(parents)
        embedded = self.decoder.embed_tokens(tokens) * self.decoder.embed_scale  # [N, k, D]
        hidden_states = self.run_layers(
            self.decoder,
            embedded + self.positions[self.length],
            self.encoder_hidden_states,
            self.tree.mask(embedded.dtype),
            self.source_mask,
            self.cache,
            self._attend,
        )
        self.length += 1
        return self.lm_head(hidden_states).float()

    def keep(self, sentences: Tensor) -> None:
        """Go on with some of the sentences.

        Args:
            sentences: Their indices, [M].
        """
        self.tree.keep(sentences)
        self.cache.cross_attention_cache.batch_select_indices(sentences)
        self.encoder_hidden_states = self.encoder_hidden_states[sentences]
        if self.source_mask is not None:
            self.source_mask = self.source_mask[sentences]

    def _attend(self, module: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        attended, weights = eager_attention_forward(module, *args, **kwargs)
        if module is self._watched:
            self.source_attention = weights.mean(1)
        return attended, weights


def decode_step(
    decoder: Any,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    attention_mask: Tensor | None,
    source_mask: Tensor | None,
    cache: EncoderDecoderCache,
    attention_function: Callable[..., Any],
) -> Tensor:
    """The decoder's layers over one token of each hypothesis.

    Args:
        decoder: The decoder.
        hidden_states: Embedded tokens, [N, k, D].
        encoder_hidden_states: The encoder's output, [N, S, D].
        attention_mask: Added to the scores over the tree, [N, 1, k, size], or None.
        source_mask: Added to the scores over the source, [N, 1, 1, S], or None.
        cache: The tree, and the source's keys and values.
        attention_function: An attention implementation.

    Returns:
        States, [N, k, D].
    """
    for layer in decoder.layers:
        hidden_states = layer(
            hidden_states,
            encoder_hidden_states,
            attention_mask,
            source_mask,
            past_key_values=cache,
            attention_function=attention_function,
        )
    output: Tensor = decoder.layer_norm(hidden_states)
    return output
