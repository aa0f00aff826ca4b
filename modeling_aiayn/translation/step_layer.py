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
from ..layers import AddNorm, DecoderLayer
from .packing import Linear, linear_function


def stacked(linears: Sequence[nn.Linear], is_packed: bool) -> Linear:
    """Several linear layers of one input as one."""
    weight = torch.cat([linear.weight for linear in linears])
    has_bias = linears[0].bias is not None
    bias = torch.cat([linear.bias for linear in linears]) if has_bias else None
    return linear_function(weight, bias, is_packed)


def attention_dtype(states: Tensor) -> torch.dtype:
    """What a step attends in; keys and values are kept in it."""
    if states.device.type == "cpu":
        return torch.promote_types(states.dtype, torch.float32)
    return states.dtype


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Equation 1 over few queries.

    Args:
        query: Queries, [N * H, k, K], of any dtype.
        key: Keys, [N * H, K, S]: a column each, as the product reads them.
        value: Values, [N * H, S, K].
        mask: Added to the scores, [N * H, k, S], or None.

    Returns:
        The attended values, [N * H, k, K], and the attention weights, [N * H, k, S].
    """
    # Rounded alike with a mask and without, so that no dtype's scores depend on the batch.
    query = query.to(key.dtype) / math.sqrt(query.size(-1))
    scores = torch.bmm(query, key) if mask is None else torch.baddbmm(mask, query, key)
    weights = scores.softmax(-1)
    return torch.bmm(weights, value), weights


class StepAttention:
    """The projections of a MultiHeadAttention as a step needs them.

    Args:
        attention: The module.
        with_target: Whether keys and values come from the same states as queries.
        is_packed: As for `linear_function`.
    """

    def __init__(self, attention: MultiHeadAttention, with_target: bool, is_packed: bool) -> None:
        self.head_dim = attention.head_dim
        self.heads = attention.q_proj.out_features // attention.head_dim
        projections = [attention.q_proj]
        if with_target:
            projections += [attention.k_proj, attention.v_proj]
        self.parts = len(projections)
        self.project = stacked(projections, is_packed)
        out = attention.out_proj
        self.dtype = out.weight.dtype
        self.out = linear_function(out.weight, out.bias, is_packed)

    def split(self, hidden_states: Tensor, width: int) -> Tensor:
        """Queries, and keys and values with them: [N, H, parts, k, K] of states, [N * k, D]."""
        projected = self.project(hidden_states)
        shape = (-1, width, self.parts, self.heads, self.head_dim)
        return projected.view(shape).permute(0, 3, 2, 1, 4)

    def join(self, attended: Tensor, width: int) -> Tensor:
        """The output, [N * k, D], of attended values, [N * H, k, K]."""
        heads = attended.view(-1, self.heads, width, self.head_dim).transpose(1, 2)
        return self.out(heads.reshape(-1, self.heads * self.head_dim).to(self.dtype))


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


class StepLayer:
    """A DecoderLayer for decoding.

    Args:
        layer: The layer; its weights are copied.
        is_packed: As for `linear_function`.
    """

    def __init__(self, layer: DecoderLayer, is_packed: bool) -> None:
        self.self_attention = StepAttention(layer.self_attn, True, is_packed)
        self.self_norm = StepNorm(layer.self_attn_layer_norm)
        self.source_attention = StepAttention(layer.encoder_attn, False, is_packed)
        self.source_norm = StepNorm(layer.encoder_attn_layer_norm)
        self.fc1 = linear_function(layer.fc1.weight, layer.fc1.bias, is_packed)
        # In place: memory that is new costs more than the function.
        self.activation = torch.relu_ if type(layer.activation) is nn.ReLU else layer.activation
        self.fc2 = linear_function(layer.fc2.weight, layer.fc2.bias, is_packed)
        self.final_norm = StepNorm(layer.final_layer_norm)

    def __call__(
        self,
        hidden_states: Tensor,
        width: int,
        target: Tensor,
        size: int,
        mask: Tensor | None,
        source_keys: Tensor,
        source_values: Tensor,
        source_mask: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Run the layer.

        Args:
            hidden_states: States of one token of each hypothesis, [N * k, D].
            width: Hypotheses of each sentence, k.
            target: Keys and values of the target, [N, H, 2, room, K]; the token's own are written
                into the last k of size.
            size: How many of them there are.
            mask: Added to the scores over them, [N * H, k, size], or None.
            source_keys: The source's keys, [N * H, K, S].
            source_values: Its values, [N * H, S, K].
            source_mask: Added to the scores over them, [N * H, k, S], or None.

        Returns:
            States, [N * k, D], and the attention over the source, [N * H, k, S].
        """
        states = self.self_norm.before(hidden_states)
        projected = self.self_attention.split(states, width)
        target[:, :, :, size - width : size] = projected[:, :, 1:]
        keys, values = target[:, :, :, :size].flatten(0, 1).unbind(1)
        query = projected[:, :, 0].flatten(0, 1)
        attended, _ = attend(query, keys.transpose(1, 2), values, mask)
        output = self.self_attention.join(attended, width)
        hidden_states = self.self_norm.after(hidden_states, output)

        states = self.source_norm.before(hidden_states)
        query = self.source_attention.split(states, width)[:, :, 0].flatten(0, 1)
        attended, weights = attend(query, source_keys, source_values, source_mask)
        output = self.source_attention.join(attended, width)
        hidden_states = self.source_norm.after(hidden_states, output)

        states = self.final_norm.before(hidden_states)
        output = self.fc2(self.activation(self.fc1(states)))
        return self.final_norm.after(hidden_states, output), weights


def source_keys_values(layer: DecoderLayer, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
    """What every step reads of the source, made once.

    Args:
        layer: The layer.
        hidden_states: The encoder's output, [N, S, D].

    Returns:
        Keys, [N, H, K, S], each a column in memory too: few queries meet them five times as fast so
        as in rows. Values, [N, H, S, K].
    """
    key, value = (
        each.to(attention_dtype(hidden_states))
        for each in layer.encoder_attn.project_keys_values(hidden_states)
    )
    return key.transpose(2, 3).contiguous(), value.contiguous()
