"""Section 3.2: attention.

Shapes, here and in every file: B batch, T query length, S key length, D d_model, H heads,
K width of a head (d_k and d_v of the paper, equal here), F d_ff, V vocabulary, L classes.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .dropout import drop

AttentionFunction = Callable[..., tuple[Tensor, Tensor | None]]


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Equation 1: softmax(Q K^T / sqrt(d_k)) V.

    Args:
        query: Queries, [B, H, T, K].
        key: Keys, [B, H, S, K].
        value: Values, [B, H, S, K].
        attention_mask: Added to the scores, broadcastable to [B, H, T, S]: 0 at keys that a query
            attends to, and a very low number at the others; see `additive_mask`.
        dropout: Share of the attention weights to drop before they multiply the values.

    Returns:
        The attended values, [B, H, T, K], and the attention weights, [B, H, T, S].
    """
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))  # [B, H, T, S]
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = scores.softmax(dim=-1)
    return drop(weights, dropout) @ value, weights


def additive_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert a mask to numbers that can be added to scores of a dtype.

    mask is boolean (True: attend), or holds numbers of any dtype to add to the scores. Its shape is
    broadcastable to [B, H, T, S], and the result has the same shape.

    Departs from the paper: masked scores get the dtype's minimum (in float16, half of it) instead
    of minus infinity. So the softmax of a row that is all padding stays finite.
    """
    lowest = torch.finfo(dtype).min
    if dtype == torch.float16:
        # The minimum plus a negative score would be minus infinity. Softmax of such a row is NaN.
        lowest /= 2
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, lowest)
    return mask.to(torch.promote_types(mask.dtype, dtype)).clamp(min=lowest).to(dtype)


def eager_attention_forward(
    module: nn.Module,  # noqa: ARG001 (the library's signature)
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    **kwargs: Any,  # noqa: ARG001
) -> tuple[Tensor, Tensor]:
    """Equation 1 with the signature of transformers' attention implementations.

    query, key, value and dropout are as in `scaled_dot_product_attention`; attention_mask is as in
    `additive_mask`. This implementation ignores module and kwargs.

    Returns:
        The attended values, [B, T, H, K], and the attention weights, [B, H, T, S].
    """
    mask = None if attention_mask is None else additive_mask(attention_mask, query.dtype)
    attended, weights = scaled_dot_product_attention(query, key, value, mask, dropout)
    return attended.transpose(1, 2), weights  # [B, T, H, K], [B, H, T, S]


class MultiHeadAttention(nn.Module):
    """Section 3.2.2: h attentions in parallel, each on its own projection of the input.

    Keys and values are projected by a separate method, so that a decoder can cache them.

    Args:
        d_model: Width of the input and the output, D.
        num_heads: Number of heads, H.
        head_dim: Width of a head, K. None: D / H.
        dropout: Rate on the attention weights.
        bias: Give the four projections a bias.
        is_causal: Whether a query attends only to keys up to its own position. The eager
            implementation reads only the mask; others read this if there is no mask.

    Raises:
        ValueError: d_model is not a multiple of num_heads, and head_dim is not given.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        head_dim: int | None = None,
        dropout: float = 0.0,
        bias: bool = False,
        is_causal: bool = False,
    ) -> None:
        super().__init__()
        if head_dim is None and d_model % num_heads:
            raise ValueError(
                "d_model must be a multiple of num_heads if head_dim is None, "
                f"got d_model={d_model} and num_heads={num_heads}."
            )
        self.head_dim = head_dim or d_model // num_heads
        self.dropout = dropout
        self.is_causal = is_causal
        self.q_proj = nn.Linear(d_model, num_heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(d_model, num_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(d_model, num_heads * self.head_dim, bias=bias)
        self.out_proj = nn.Linear(num_heads * self.head_dim, d_model, bias=bias)

    def project_keys_values(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        """Project states, [B, S, D], to their keys and values, [B, H, S, K] each."""
        return (
            self._split_heads(self.k_proj(hidden_states)),
            self._split_heads(self.v_proj(hidden_states)),
        )

    def forward(
        self,
        hidden_states: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        attention_function: AttentionFunction = eager_attention_forward,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from hidden_states to keys and values.

        Args:
            hidden_states: States that the queries are projected from, [B, T, D].
            key: Keys, [B, H, S, K].
            value: Values, [B, H, S, K].
            attention_mask: In the form that attention_function takes.
            attention_function: One of transformers' attention implementations.
            **kwargs: Arguments of attention_function.

        Returns:
            The output, [B, T, D], and the attention weights, [B, H, T, S], or None if
            attention_function does not return them.
        """
        query = self._split_heads(self.q_proj(hidden_states))
        dropout = self.dropout if self.training else 0.0
        options = {"dropout": dropout, "scaling": self.head_dim**-0.5, **kwargs}
        attended, weights = attention_function(self, query, key, value, attention_mask, **options)
        return self.out_proj(self._join_heads(attended)), weights

    def _split_heads(self, projected: Tensor) -> Tensor:
        heads = projected.size(-1) // self.head_dim
        split = projected.view(*projected.shape[:-1], heads, self.head_dim)  # [B, T, H, K]
        return split.transpose(1, 2)  # [B, H, T, K]

    def _join_heads(self, attended: Tensor) -> Tensor:
        return attended.flatten(-2)  # [B, T, H * K]
