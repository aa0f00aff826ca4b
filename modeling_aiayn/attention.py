"""Section 3.2: attention.

Shapes, here and in every file: B batch, T query length, S key length, D d_model, H heads,
K width of a head (d_k = d_v in the paper), F d_ff, V vocabulary.
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
        attention_mask: Added to the scores, broadcastable to [B, H, T, S]; 0 where a query may look
            and the dtype's minimum where not.
        dropout: Share of the attention weights that is dropped before they meet the values.

    Returns:
        The attended values, [B, H, T, K], and the attention weights, [B, H, T, S].

    Departs from the paper: masked scores get the dtype's minimum, not minus infinity, so a row in
    which everything is padding stays finite (`eager_attention_forward` has float16's room for it).
    """
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))  # [B, H, T, S]
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = scores.softmax(dim=-1)
    return drop(weights, dropout) @ value, weights


def eager_attention_forward(
    module: nn.Module,  # noqa: ARG001 (the library's signature)
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    **kwargs: Any,  # noqa: ARG001
) -> tuple[Tensor, Tensor]:
    """Equation 1 under the signature that transformers' attention implementations share.

    Args:
        module: The calling module; other implementations read it, this one does not.
        query: Queries, [B, H, T, K].
        key: Keys, [B, H, S, K].
        value: Values, [B, H, S, K].
        attention_mask: As in `scaled_dot_product_attention`.
        dropout: As in `scaled_dot_product_attention`.
        **kwargs: What other implementations take.

    Returns:
        The attended values, [B, T, H, K], and the attention weights, [B, H, T, S].
    """
    if attention_mask is not None and attention_mask.dtype == torch.float16:
        # A score below the dtype's minimum would be minus infinity, and a row of them not finite.
        attention_mask = attention_mask.clamp(min=torch.finfo(torch.float16).min / 2)
    attended, weights = scaled_dot_product_attention(query, key, value, attention_mask, dropout)
    return attended.transpose(1, 2), weights  # [B, T, H, K], [B, H, T, S]


class MultiHeadAttention(nn.Module):
    """Section 3.2.2: h attentions side by side, each on its own projection of the input.

    Keys and values are projected by a method of their own, so that a decoder can keep them.

    Args:
        d_model: Width of the input and the output, D.
        num_heads: Number of heads, H.
        head_dim: Width of a head, K. None: D / H.
        dropout: Rate on the attention weights.
        bias: Give the four projections a bias.
        is_causal: Whether a query sees only keys up to its own position. The mask decides that
            here; implementations that get no mask read this.

    Raises:
        ValueError: d_model is no multiple of num_heads, and head_dim is not given.
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
                "d_model must be a multiple of num_heads where head_dim is None, "
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
        """Keys and values of what is looked at.

        Args:
            hidden_states: States to look at, [B, S, D].

        Returns:
            Keys and values, [B, H, S, K] each.
        """
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
        """Look from hidden_states at keys and values.

        Args:
            hidden_states: States that look, [B, T, D].
            key: Keys, [B, H, S, K].
            value: Values, [B, H, S, K].
            attention_mask: In the form that attention_function takes.
            attention_function: One of transformers' attention implementations.
            **kwargs: Handed to attention_function.

        Returns:
            The output, [B, T, D], and the attention weights, [B, H, T, S], or None where
            attention_function has none to give.
        """
        query = self._split_heads(self.q_proj(hidden_states))
        dropout = self.dropout if self.training else 0.0
        attended, weights = attention_function(
            self, query, key, value, attention_mask, dropout=dropout, **kwargs
        )
        return self.out_proj(self._join_heads(attended)), weights

    def _split_heads(self, projected: Tensor) -> Tensor:
        heads = projected.size(-1) // self.head_dim
        split = projected.view(*projected.shape[:-1], heads, self.head_dim)  # [B, T, H, K]
        return split.transpose(1, 2)  # [B, H, T, K]

    def _join_heads(self, attended: Tensor) -> Tensor:
        return attended.flatten(-2)  # [B, T, H * K]
