"""The encoder without padding, and what every step reads of its output.

As step_layer.py is to the decoder, so is this to the encoder. Sentences of a batch are of many
lengths, and most of an encoder's work is done on each token by itself: it is done on real ones.
Only attention lays a sentence out in a row of its own.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from ..layers import DecoderLayer, EncoderLayer
from ..modeling_aiayn import AiaynForConditionalGeneration
from .step_layer import StepAttention, StepFeedForward, StepNorm, attend, attention_dtype, stacked


def padding_mask(attention_mask: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
    """What is added to scores over sources: 0, and the dtype's minimum at padding.

    Args:
        attention_mask: 1 for real tokens, [N, S].
        heads: Heads of attention, H.
        dtype: What attention is in.

    Returns:
        The mask, [N, H, 1, S].
    """
    mask = torch.zeros(attention_mask.shape, dtype=dtype, device=attention_mask.device)
    mask.masked_fill_(attention_mask == 0, torch.finfo(dtype).min)
    return mask[:, None, None].repeat(1, heads, 1, 1)


@dataclass(frozen=True)
class SourceTokens:
    """Where the M real tokens of N sentences are.

    Args:
        places: Of each token among all places of a batch, N * S, [M].
        rows: The token at each place, and any of the same sentence at padding, [N * S].
        length: The longest sentence's, S.
        mask: Added to scores over a sentence's places, [N * H, 1, S].
    """

    places: Tensor
    rows: Tensor
    length: int
    mask: Tensor

    @classmethod
    def of(cls, attention_mask: Tensor, heads: int, dtype: torch.dtype) -> "SourceTokens":
        """Find the tokens.

        Args:
            attention_mask: 1 for real tokens, which come first, [N, S].
            heads: Heads of attention, H.
            dtype: What attention is in.

        Returns:
            Where they are.
        """
        is_real = attention_mask.flatten() != 0
        return cls(
            is_real.nonzero()[:, 0],
            is_real.cumsum(0) - 1,
            attention_mask.size(1),
            padding_mask(attention_mask, heads, dtype).flatten(0, 1),
        )


class SourceLayer:
    """An EncoderLayer over real tokens.

    Args:
        layer: The layer; what is done to its weights later may not reach this.
    """

    def __init__(self, layer: EncoderLayer) -> None:
        self.attention = StepAttention(layer.self_attn, with_keys=True, is_packed=True)
        self.norm = StepNorm(layer.self_attn_layer_norm)
        self.feed_forward = StepFeedForward(layer, is_packed=True)

    def __call__(self, hidden_states: Tensor, tokens: SourceTokens) -> Tensor:
        """Run the layer, [M, D] to [M, D]."""
        projected = self.attention.project(self.norm.before(hidden_states))
        laid_out = projected.to(tokens.mask.dtype)[tokens.rows]  # [N * S, 3 * H * K]
        query, key, value = self.attention.split(laid_out, tokens.length)  # [N, H, S, K] each
        key = key.transpose(2, 3).flatten(0, 1)
        attended, _ = attend(query, key, value.flatten(0, 1), tokens.mask)
        output = self.attention.out(self.attention.join(attended)[tokens.places])
        return self.feed_forward(self.norm.after(hidden_states, output))


class SourceEncoder:
    """A model's encoder, and the projections of its output that decoder layers attend to.

    Args:
        model: The model; what is done to its weights later may not reach this.
    """

    def __init__(self, model: AiaynForConditionalGeneration) -> None:
        self.encoder = model.model.encoder
        encoder_layers = cast(list[EncoderLayer], list(self.encoder.layers))
        decoder_layers = cast(list[DecoderLayer], list(model.model.decoder.layers))
        self.layers = [SourceLayer(layer) for layer in encoder_layers]
        attentions = [layer.encoder_attn for layer in decoder_layers]
        self.projections = [stacked([each.k_proj, each.v_proj], True) for each in attentions]
        self.head_dim = attentions[0].head_dim
        self.encoder_heads = model.config.encoder_attention_heads

    def __call__(self, input_ids: Tensor, attention_mask: Tensor) -> list[tuple[Tensor, Tensor]]:
        """What each decoder layer attends to, made once.

        Args:
            input_ids: Sources, [N, S].
            attention_mask: 1 for real tokens, which come first, [N, S].

        Returns:
            For each layer keys, [N, H, K, S], each a column in memory too: few queries meet them
            five times as fast so as in rows. And values, [N, H, S, K].
        """
        embedded = self.encoder.embed(self.encoder.look_up(input_ids, None), attention_mask)
        dtype = attention_dtype(embedded)
        tokens = SourceTokens.of(attention_mask, self.encoder_heads, dtype)
        hidden_states = embedded.flatten(0, 1)[tokens.places]  # [M, D]
        for layer in self.layers:
            hidden_states = layer(hidden_states, tokens)
        hidden_states = self.encoder.layer_norm(hidden_states)
        return [self._keys_values(project(hidden_states), tokens) for project in self.projections]

    def _keys_values(self, projected: Tensor, tokens: SourceTokens) -> tuple[Tensor, Tensor]:
        shape = (-1, tokens.length, 2, projected.size(-1) // self.head_dim // 2, self.head_dim)
        key, value = projected.to(tokens.mask.dtype)[tokens.rows].view(shape).unbind(2)
        # [N, S, H, K] each
        return key.permute(0, 2, 3, 1).contiguous(), value.transpose(1, 2).contiguous()
