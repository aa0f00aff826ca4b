"""A decoder layer for one token of each hypothesis, without what only training needs.

The equations are those of layers.DecoderLayer, and a test holds the two together for every
architecture. What differs is how few operations there are: query, key and value in one product, no
dropout, weights packed on a CPU. There attention is in float32 even where the weights are in less:
the products are too small to be faster for it.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..attention import MultiHeadAttention
from ..layers import AddNorm, DecoderLayer, TransformerLayer
from .packing import Linear, linear_function


def stacked(linears: Sequence[nn.Linear], is_packed: bool) -> Linear:
    """Several linear layers of one input as one."""
    weight = torch.cat([linear.weight for linear in linears])
    has_bias = linears[0].bias is not None
    bias = torch.cat([linear.bias for linear in linears]) if has_bias else None
    return linear_function(weight, bias, is_packed)


def attention_dtype(states: Tensor) -> torch.dtype:
    """What decoding attends in; keys and values are kept in it."""
    if states.device.type == "cpu":
        return torch.promote_types(states.dtype, torch.float32)
    return states.dtype


def in_dtype(states: Tensor, dtype: torch.dtype) -> Tensor:
    """States in another type: what is cast is put in order in the same pass."""
    return states.to(dtype, memory_format=torch.contiguous_format)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Equation 1, its scale and its mask in the product of queries and keys.

    Args:
        query: Queries, [N, H, k, K], of any dtype.
        key: Keys, [N * H, K, S]: a column each, as the product reads them.
        value: Values, [N * H, S, K].
        mask: Added to the scores, broadcastable to [N * H, k, S].

    Returns:
        The attended values, [N * H, k, K], and the attention weights, [N * H, k, S].
    """
    query = in_dtype(query, key.dtype).flatten(0, 1)
    scores = torch.baddbmm(mask, query, key, alpha=1 / math.sqrt(query.size(-1)))
    weights = scores.softmax(-1)
    return torch.bmm(weights, value), weights


class StepAttention:
    """The projections of a MultiHeadAttention for decoding.

    Args:
        attention: The module.
        with_keys: Whether keys and values come from the same states as queries.
        is_packed: As for `linear_function`.
    """

    def __init__(self, attention: MultiHeadAttention, with_keys: bool, is_packed: bool) -> None:
        self.head_dim = attention.head_dim
        self.heads = attention.q_proj.out_features // attention.head_dim
        projections = [attention.q_proj]
        if with_keys:
            projections += [attention.k_proj, attention.v_proj]
        self.parts = len(projections)
        self.project = stacked(projections, is_packed)
        out = attention.out_proj
        self.dtype = out.weight.dtype
        self.out = linear_function(out.weight, out.bias, is_packed)

    def split(self, projected: Tensor, width: int) -> Tensor:
        """Queries, and keys and values with them, by heads: [parts, N, H, k, K].

        Args:
            projected: What `project` made of states, [N * k, parts * H * K].
            width: States of each sentence, k.
        """
        shape = (-1, width, self.parts, self.heads, self.head_dim)
        return projected.view(shape).permute(2, 0, 3, 1, 4)

    def join(self, attended: Tensor) -> Tensor:
        """What `out` takes, [N * k, H * K], of attended values, [N * H, k, K]."""
        heads = attended.view(-1, self.heads, *attended.shape[1:]).transpose(1, 2)
        return in_dtype(heads, self.dtype).reshape(-1, self.heads * self.head_dim)


class StepNorm:
    """An AddNorm without dropout.

    Args:
        norm: The module.
    """

    def __init__(self, norm: AddNorm) -> None:
        self.norm_first = norm.norm_first
        # Detached: the compiler makes one graph of each Parameter, and one for all plain tensors.
        weight, bias = norm.weight.detach(), norm.bias.detach()
        self.arguments = (norm.normalized_shape, weight, bias, norm.eps)

    def before(self, hidden_states: Tensor) -> Tensor:
        """What the sub-layer sees."""
        if self.norm_first:
            return torch.layer_norm(hidden_states, *self.arguments)
        return hidden_states

    def after(self, hidden_states: Tensor, output: Tensor) -> Tensor:
        """The sub-layer's output added to what came in."""
        hidden_states = hidden_states + output
        if self.norm_first:
            return hidden_states
        return torch.layer_norm(hidden_states, *self.arguments)


class StepFeedForward:
    """A layer's last sub-layer without dropout.

    Args:
        layer: The layer.
        is_packed: As for `linear_function`.
    """

    def __init__(self, layer: TransformerLayer, is_packed: bool) -> None:
        self.fc1 = linear_function(layer.fc1.weight, layer.fc1.bias, is_packed)
        # In place: memory that is new costs more than the function.
        self.activation = torch.relu_ if type(layer.activation) is nn.ReLU else layer.activation
        self.fc2 = linear_function(layer.fc2.weight, layer.fc2.bias, is_packed)
        self.norm = StepNorm(layer.final_layer_norm)

    def __call__(self, hidden_states: Tensor) -> Tensor:
        """Equation 2 with what is around it, [rows, D] both."""
        states = self.norm.before(hidden_states)
        return self.norm.after(hidden_states, self.fc2(self.activation(self.fc1(states))))


class StepLayer:
    """A DecoderLayer for decoding.

    Args:
        layer: The layer; what is done to its weights later may not reach this.
        is_packed: As for `linear_function`.
    """

    def __init__(self, layer: DecoderLayer, is_packed: bool) -> None:
        self.self_attention = StepAttention(layer.self_attn, True, is_packed)
        self.self_norm = StepNorm(layer.self_attn_layer_norm)
        self.source_attention = StepAttention(layer.encoder_attn, False, is_packed)
        self.source_norm = StepNorm(layer.encoder_attn_layer_norm)
        self.feed_forward = StepFeedForward(layer, is_packed)

    def __call__(
        self,
        hidden_states: Tensor,
        width: int,
        target: Tensor,
        size: int,
        mask: Tensor,
        source_keys: Tensor,
        source_values: Tensor,
        source_mask: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Run the layer.

        Args:
            hidden_states: States of one token of each hypothesis, [N * k, D].
            width: Hypotheses of each sentence, k.
            target: Keys and values of the target, [N, H, 2, room, K]; the token's own are written
                into the last k of size.
            size: How many of them there are.
            mask: Added to the scores over them, broadcastable to [N * H, k, size].
            source_keys: The source's keys, [N * H, K, S].
            source_values: Its values, [N * H, S, K].
            source_mask: Added to the scores over them, broadcastable to [N * H, k, S].

        Returns:
            States, [N * k, D], and the attention over the source, [N * H, k, S].
        """
        states = self.self_norm.before(hidden_states)
        parts = self.self_attention.split(self.self_attention.project(states), width)
        target[:, :, :, size - width : size] = parts[1:].permute(1, 2, 0, 3, 4)
        keys, values = target[:, :, :, :size].flatten(0, 1).unbind(1)
        attended, _ = attend(parts[0], keys.transpose(1, 2), values, mask)
        output = self.self_attention.out(self.self_attention.join(attended))
        hidden_states = self.self_norm.after(hidden_states, output)

        states = self.source_norm.before(hidden_states)
        (query,) = self.source_attention.split(self.source_attention.project(states), width)
        attended, weights = attend(query, source_keys, source_values, source_mask)
        output = self.source_attention.out(self.source_attention.join(attended))
        hidden_states = self.source_norm.after(hidden_states, output)

        return self.feed_forward(hidden_states), weights
