"""Sections 3.1, 3.3, 3.5: positions, feed-forward networks, encoder and decoder layers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Cache, EncoderDecoderCache
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from .attention import MultiHeadAttention
from .dropout import drop


def sinusoidal_positions(positions: Tensor, d_model: int, base: float = 10000.0) -> Tensor:
    """Section 3.5: PE(p, 2i) = sin(p / base^(2i / d_model)), PE(p, 2i + 1) = cos(the same).

    Args:
        positions: Positions, [...]. They have no limit, because there is no table.
        d_model: Width, D, even.
        base: Base of the wavelengths, which go from 2 pi to base * 2 pi.

    Returns:
        Encodings, [..., D], in float32.

    Raises:
        ValueError: d_model is odd.
    """
    if d_model % 2:
        raise ValueError(f"d_model must be even (sine and cosine pairs), got d_model={d_model}.")
    # A float32 angle near 1000 is exact to four decimals only, so angles are float64. Apple's GPUs
    # have no float64.
    dtype = torch.float32 if positions.device.type == "mps" else torch.float64
    exponents = torch.arange(0, d_model, 2, device=positions.device, dtype=dtype) / d_model
    angles = positions[..., None].to(dtype) / base**exponents  # [..., D / 2]
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).float()  # [..., D]


class SinusoidalPositions(nn.Module):
    """Section 3.5 as a module: `sinusoidal_positions`, with offset as the first position."""

    max_length = None  # no table, so no limit

    def __init__(self, d_model: int, base: float = 10000.0, offset: int = 0) -> None:
        super().__init__()
        self.d_model = d_model
        self.base = base
        self.offset = offset

    def forward(self, position_ids: Tensor) -> Tensor:
        """Return encodings, [B, T, D], of positions counted from 0, [B, T]."""
        return sinusoidal_positions(position_ids + self.offset, self.d_model, self.base)


class LearnedPositions(nn.Embedding):
    """Table 3, row E: a trained table of max_length positions, after offset unused rows."""

    def __init__(self, max_length: int, d_model: int, offset: int = 0) -> None:
        super().__init__(max_length + offset, d_model)
        self.max_length = max_length
        self.offset = offset

    def forward(self, position_ids: Tensor) -> Tensor:
        """Return embeddings, [B, T, D], of positions from 0 to max_length - 1, [B, T]."""
        return super().forward(position_ids + self.offset)


def feed_forward(
    hidden_states: Tensor,
    fc1: Callable[[Tensor], Tensor],
    fc2: Callable[[Tensor], Tensor],
    activation: Callable[[Tensor], Tensor] = functional.relu,
    dropout: float = 0.0,
) -> Tensor:
    """Equation 2: max(0, x W1 + b1) W2 + b2.

    hidden_states and the output are [B, T, D]; fc1 maps D to F, and fc2 maps F to D. dropout is the
    rate on the activations.
    """
    return fc2(drop(activation(fc1(hidden_states)), dropout))


class AddNorm(nn.LayerNorm):
    """Section 3.1: the residual connection and normalization around a sub-layer.

    Post-norm, as in the paper, is LayerNorm(x + Sublayer(x)); pre-norm is
    x + Sublayer(LayerNorm(x)). A layer calls `before`, then the sub-layer, then `after`. A call of
    the module itself only normalizes. dropout applies to the sub-layer's output (section 5.4).
    """

    def __init__(self, d_model: int, eps: float, dropout: float, norm_first: bool) -> None:
        super().__init__(d_model, eps=eps)
        self.dropout = dropout
        self.norm_first = norm_first

    def before(self, hidden_states: Tensor) -> Tensor:
        """Return the input of the sub-layer, [B, T, D]: hidden_states, normalized if norm_first."""
        return self(hidden_states) if self.norm_first else hidden_states

    def after(self, hidden_states: Tensor, output: Tensor) -> Tensor:
        """Add the sub-layer's output to hidden_states, [B, T, D]; post-norm normalizes the sum."""
        output = drop(output, self.dropout, self.training)
        hidden_states = hidden_states + output
        return hidden_states if self.norm_first else self(hidden_states)


@dataclass(frozen=True)
class LayerSizes:
    """Sizes of an encoder or decoder layer. Fields mean the same as in AiaynConfig."""

    d_model: int
    num_heads: int
    ffn_dim: int
    head_dim: int | None = None
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    activation_function: str = "relu"
    norm_first: bool = False
    layer_norm_eps: float = 1e-6
    attention_bias: bool = False

    def attention(self, is_causal: bool = False) -> MultiHeadAttention:
        """Build a multi-head attention of these sizes."""
        return MultiHeadAttention(
            self.d_model,
            self.num_heads,
            self.head_dim,
            self.attention_dropout,
            self.attention_bias,
            is_causal,
        )

    def add_norm(self) -> AddNorm:
        """Build a residual connection of these sizes."""
        return AddNorm(self.d_model, self.layer_norm_eps, self.dropout, self.norm_first)


class TransformerLayer(GradientCheckpointingLayer):
    """The two sub-layers of both encoder and decoder layers: self-attention and feed-forward."""

    def __init__(self, sizes: LayerSizes, is_causal: bool) -> None:
        super().__init__()
        self.self_attn = sizes.attention(is_causal)
        self.self_attn_layer_norm = sizes.add_norm()
        self.fc1 = nn.Linear(sizes.d_model, sizes.ffn_dim)
        self.fc2 = nn.Linear(sizes.ffn_dim, sizes.d_model)
        self.final_layer_norm = sizes.add_norm()
        self.activation = ACT2FN[sizes.activation_function]
        self.activation_dropout = sizes.activation_dropout

    def _feed_forward(self, hidden_states: Tensor) -> Tensor:
        sublayer_input = self.final_layer_norm.before(hidden_states)
        dropout = self.activation_dropout if self.training else 0.0
        output = feed_forward(sublayer_input, self.fc1, self.fc2, self.activation, dropout)
        return self.final_layer_norm.after(hidden_states, output)


class EncoderLayer(TransformerLayer):
    """Figure 1, left: self-attention, then a feed-forward network."""

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__(sizes, is_causal=False)

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> Tensor:
        """Run the layer on states, [B, S, D]; the mask is in the form that attention takes."""
        sublayer_input = self.self_attn_layer_norm.before(hidden_states)
        key, value = self.self_attn.project_keys_values(sublayer_input)
        attended, _ = self.self_attn(sublayer_input, key, value, attention_mask, **kwargs)
        hidden_states = self.self_attn_layer_norm.after(hidden_states, attended)
        return self._feed_forward(hidden_states)


class DecoderLayer(TransformerLayer):
    """Figure 1, right: self-attention, attention over the source, a feed-forward network.

    Args:
        sizes: The layer's sizes.
        layer_idx: Index of the layer in its stack. A cache stores keys and values by this index.
        has_source: Whether the layer attends to a source; false in a language model.
    """

    def __init__(self, sizes: LayerSizes, layer_idx: int, has_source: bool = True) -> None:
        super().__init__(sizes, is_causal=True)
        self.layer_idx = layer_idx
        if has_source:
            self.encoder_attn = sizes.attention()
            self.encoder_attn_layer_norm = sizes.add_norm()

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Run the layer on the target's states, [B, T, D]. The output has the same shape.

        Args:
            hidden_states: States of the target, [B, T, D].
            encoder_hidden_states: The encoder's output, [B, S, D]. None: no attention over it.
            attention_mask: For self-attention, in the form that the implementation takes. Without
                a mask, eager attention sees later positions.
            encoder_attention_mask: For attention over the source, in the same form.
            cache: Cached keys and values of earlier steps. New ones are added here.
            **kwargs: Arguments of attention.
        """
        sublayer_input = self.self_attn_layer_norm.before(hidden_states)
        key, value = self._target_keys_values(sublayer_input, cache)
        attended, _ = self.self_attn(sublayer_input, key, value, attention_mask, **kwargs)
        hidden_states = self.self_attn_layer_norm.after(hidden_states, attended)

        if encoder_hidden_states is not None:
            sublayer_input = self.encoder_attn_layer_norm.before(hidden_states)
            key, value = self._source_keys_values(encoder_hidden_states, cache)
            attended, _ = self.encoder_attn(
                sublayer_input, key, value, encoder_attention_mask, **kwargs
            )
            hidden_states = self.encoder_attn_layer_norm.after(hidden_states, attended)

        return self._feed_forward(hidden_states)

    def _target_keys_values(self, states: Tensor, cache: Cache | None) -> tuple[Tensor, Tensor]:
        """Return keys and values of the target so far, and add the new ones to the cache."""
        key, value = self.self_attn.project_keys_values(states)
        if cache is None:
            return key, value
        if isinstance(cache, EncoderDecoderCache):
            cache = cache.self_attention_cache
        return cache.update(key, value, self.layer_idx)

    def _source_keys_values(
        self, encoder_hidden_states: Tensor, cache: EncoderDecoderCache | None
    ) -> tuple[Tensor, Tensor]:
        """Return keys and values of the source. They never change: project once, then reuse."""
        if cache is not None and cache.is_updated.get(self.layer_idx):
            cached = cache.cross_attention_cache.layers[self.layer_idx]
            return cached.keys, cached.values
        key, value = self.encoder_attn.project_keys_values(encoder_hidden_states)
        if cache is None:
            return key, value
        cache.is_updated[self.layer_idx] = True
        return cache.cross_attention_cache.update(key, value, self.layer_idx)


def pool_states(hidden_states: Tensor, mask: Tensor | None, pooling: str) -> Tensor:
    """Pool states, [B, S, D], over each text's real tokens to [B, D], for a classifier.

    mask is 1 for real tokens, [B, S], or None if all are real. pooling is "mean" or "max". A row
    that is all padding gives zeros.
    """
    if mask is None:
        mask = hidden_states.new_ones(hidden_states.shape[:2])  # [B, S]
    is_real = mask.to(hidden_states.device).bool()[..., None]  # [B, S, 1]
    if pooling == "mean":
        sum_dtype = torch.promote_types(hidden_states.dtype, torch.float32)
        total = hidden_states.masked_fill(~is_real, 0.0).sum(1, dtype=sum_dtype)  # [B, D]
        return (total / is_real.sum(1).clamp(min=1)).to(hidden_states.dtype)  # [B, D]
    lowest = torch.finfo(hidden_states.dtype).min
    highest = hidden_states.masked_fill(~is_real, lowest).amax(1)  # [B, D]
    return highest.masked_fill(~is_real.any(1), 0.0)  # [B, D]
