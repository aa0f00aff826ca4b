"""A second implementation of the model, for decoding: the equations of layers.py, fewer operations.

The classes are in the same order as in layers.py, and tests compare the two. Differences:

- There is no dropout. Query, key and value come from one matrix product.
- On a CPU, attention is in float32 even if the weights have 16 bits: its matrix products are too
  small to be faster in 16 bits.
- The encoder computes real tokens only. Only its attention sees padding.
- The decoder computes one token of each hypothesis at a time.

If the model's weights change after construction, this copy may keep the old ones.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..attention import MultiHeadAttention
from ..layers import AddNorm, DecoderLayer, EncoderLayer, TransformerLayer
from ..modeling_aiayn import AiaynForConditionalGeneration
from ..saved.int8 import rounded_to_int8
from .hypothesis_tree import Entries

# Linear layers of which decoding uses only the weights.
PROJECTIONS = {"q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2", "lm_head"}


Linear = Callable[[Tensor], Tensor]
MakeLinear = Callable[[Tensor, Tensor | None], Linear]


def linear_function(weight: Tensor, bias: Tensor | None) -> Linear:
    """Make a linear layer for decoding, x W^T + b; x is [rows, in] and weight is [out, in]."""
    weight, bias = weight.detach(), None if bias is None else bias.detach()
    return partial(functional.linear, weight=weight, bias=bias)


def int8_linear_function(weight: Tensor, bias: Tensor | None) -> Linear:
    """Do the same as `linear_function`, with weights rounded to 8 bits and float32 products."""
    numbers, scales = rounded_to_int8(weight)
    return linear_function(numbers.to(weight.dtype) * scales[:, None].to(weight.dtype), bias)


def stacked_linear(linears: Sequence[nn.Linear], make_linear: MakeLinear) -> Linear:
    """Join linear layers of the same input into one layer; their outputs are concatenated."""
    weight = torch.cat([linear.weight for linear in linears])
    has_bias = linears[0].bias is not None
    bias = torch.cat([linear.bias for linear in linears]) if has_bias else None
    return make_linear(weight, bias)


def _in_dtype(states: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast states to a dtype; the same pass makes them contiguous."""
    if states.dtype == dtype:  # a call of torch takes a microsecond even if it does nothing
        return states
    return states.to(dtype, memory_format=torch.contiguous_format)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Compute equation 1: attended values, [N * H, k, K], and attention weights, [N * H, k, S].

    query is [N, H, k, K], of any dtype; key, [N * H, K, S], has a key in each column; value is
    [N * H, S, K]. mask, broadcastable to [N * H, k, S], is added to the scores.
    """
    query = _in_dtype(query, key.dtype).flatten(0, 1)
    scores = torch.bmm(query, key)
    torch.add(mask, scores, alpha=1 / math.sqrt(query.size(-1)), out=scores)
    weights = scores.softmax(-1)
    return torch.bmm(weights, value), weights


class FastAttention:
    """The projections of a MultiHeadAttention, in one product.

    Cross-attention computes only queries here: `FastModel.encode` computes keys and values.
    """

    def __init__(
        self, attention: MultiHeadAttention, is_self_attention: bool, make_linear: MakeLinear
    ) -> None:
        self.head_dim = attention.head_dim
        self.heads = attention.q_proj.out_features // attention.head_dim
        projections = [attention.q_proj]
        if is_self_attention:
            projections += [attention.k_proj, attention.v_proj]
        self.project = stacked_linear(projections, make_linear)
        self.dtype = attention.out_proj.weight.dtype
        self.out = make_linear(attention.out_proj.weight, attention.out_proj.bias)

    def split_heads(self, projected: Tensor, width: int) -> Tensor:
        """Split [N * k, parts * H * K] by heads and query, key, value: [parts, N, H, k, K]."""
        parts = projected.size(1) // (self.heads * self.head_dim)
        shape = (-1, width, parts, self.heads, self.head_dim)
        return projected.view(shape).permute(2, 0, 3, 1, 4)

    def join_heads(self, attended: Tensor) -> Tensor:
        """Join attended values, [N * H, k, K], to the input of `out`, [N * k, H * K]."""
        heads = attended.view(-1, self.heads, attended.size(1), self.head_dim).transpose(1, 2)
        return _in_dtype(heads, self.dtype).reshape(-1, self.heads * self.head_dim)


class FastAddNorm:
    """An AddNorm without dropout."""

    def __init__(self, norm: AddNorm) -> None:
        self.norm_first = norm.norm_first
        self.arguments = (norm.normalized_shape, norm.weight, norm.bias, norm.eps)

    def before(self, hidden_states: Tensor) -> Tensor:
        """The sub-layer's input."""
        if self.norm_first:
            return torch.layer_norm(hidden_states, *self.arguments)
        return hidden_states

    def after(self, hidden_states: Tensor, output: Tensor) -> Tensor:
        """Add the sub-layer's output, which is overwritten, to the layer's input."""
        output += hidden_states
        if self.norm_first:
            return output
        return torch.layer_norm(output, *self.arguments)


class FastFeedForward:
    """A layer's feed-forward network, equation 2, with its AddNorm."""

    def __init__(self, layer: TransformerLayer, make_linear: MakeLinear) -> None:
        self.fc1 = make_linear(layer.fc1.weight, layer.fc1.bias)
        # Run in place, because allocating memory takes longer than the function itself.
        self.activation = torch.relu_ if type(layer.activation) is nn.ReLU else layer.activation
        self.fc2 = make_linear(layer.fc2.weight, layer.fc2.bias)
        self.norm = FastAddNorm(layer.final_layer_norm)

    def __call__(self, hidden_states: Tensor) -> Tensor:
        """Run the network, [rows, D] to [rows, D]."""
        states = self.norm.before(hidden_states)
        return self.norm.after(hidden_states, self.fc2(self.activation(self.fc1(states))))


def padding_mask(attention_mask: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
    """Make a mask to add to scores, [N, H, 1, S]: the dtype's minimum at padding, 0 elsewhere."""
    mask = torch.zeros(attention_mask.shape, dtype=dtype, device=attention_mask.device)
    mask.masked_fill_(attention_mask == 0, torch.finfo(dtype).min)
    return mask[:, None, None].repeat(1, heads, 1, 1)


class PaddedLayout:
    """The positions of the M real tokens in a padded batch of N sentences.

    attention_mask, [N, S], is 1 for real tokens, which come first; dtype is that of attention.
    """

    def __init__(self, attention_mask: Tensor, heads: int, dtype: torch.dtype) -> None:
        is_real = attention_mask.flatten() != 0
        self.positions = is_real.nonzero()[:, 0]  # of each token among N * S, [M]
        # Index of the token at each position; at padding, the index of a token of the sentence.
        self.tokens = is_real.cumsum(0) - 1  # [N * S]
        self.length = attention_mask.size(1)
        self.mask = padding_mask(attention_mask, heads, dtype).flatten(0, 1)  # [N * H, 1, S]

    def pad(self, states: Tensor) -> Tensor:
        """Place each token's states at its position, [M, ...] to [N * S, ...], in mask's dtype."""
        return states.to(self.mask.dtype)[self.tokens]


class FastEncoderLayer:
    """An EncoderLayer over real tokens."""

    def __init__(self, layer: EncoderLayer, make_linear: MakeLinear) -> None:
        self.attention = FastAttention(layer.self_attn, True, make_linear)
        self.norm = FastAddNorm(layer.self_attn_layer_norm)
        self.feed_forward = FastFeedForward(layer, make_linear)

    def __call__(self, hidden_states: Tensor, layout: PaddedLayout) -> Tensor:
        """Run the layer, [M, D] to [M, D]."""
        padded = layout.pad(self.attention.project(self.norm.before(hidden_states)))
        query, key, value = self.attention.split_heads(padded, layout.length)  # [N, H, S, K] each
        key = key.transpose(2, 3).flatten(0, 1)
        attended, _ = attend(query, key, value.flatten(0, 1), layout.mask)
        output = self.attention.out(self.attention.join_heads(attended)[layout.positions])
        return self.feed_forward(self.norm.after(hidden_states, output))


class FastDecoderLayer:
    """A DecoderLayer for one token of each hypothesis."""

    def __init__(self, layer: DecoderLayer, make_linear: MakeLinear) -> None:
        self.self_attention = FastAttention(layer.self_attn, True, make_linear)
        self.self_norm = FastAddNorm(layer.self_attn_layer_norm)
        keys_and_values = [layer.encoder_attn.k_proj, layer.encoder_attn.v_proj]
        self.project_source = stacked_linear(keys_and_values, make_linear)
        self.source_attention = FastAttention(layer.encoder_attn, False, make_linear)
        self.source_norm = FastAddNorm(layer.encoder_attn_layer_norm)
        self.feed_forward = FastFeedForward(layer, make_linear)

    def __call__(
        self,
        hidden_states: Tensor,
        width: int,
        target: Entries,
        target_mask: Tensor,
        source: tuple[Tensor, Tensor],
        source_mask: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Run the layer, [N * k, D] to [N * k, D]; also return the attention, [N * H, k, S].

        target has T entries for each sentence; the layer writes the entries of the new tokens.
        source holds the source's keys, [N * H, K, S], and values, [N * H, S, K]. The masks are
        added to the scores, [N * H, k, T] and [N * H, k, S].
        """
        states = self.self_norm.before(hidden_states)
        parts = self.self_attention.split_heads(self.self_attention.project(states), width)
        target.newest.copy_(parts[1:])
        attended, _ = attend(parts[0], target.keys, target.values, target_mask)
        output = self.self_attention.out(self.self_attention.join_heads(attended))
        hidden_states = self.self_norm.after(hidden_states, output)

        states = self.source_norm.before(hidden_states)
        parts = self.source_attention.split_heads(self.source_attention.project(states), width)
        attended, weights = attend(parts[0], *source, source_mask)
        output = self.source_attention.out(self.source_attention.join_heads(attended))
        hidden_states = self.source_norm.after(hidden_states, output)

        return self.feed_forward(hidden_states), weights


@dataclass(frozen=True)
class EncodedSources:
    """The L layers' keys, [L, N, H, K, S], and values, [L, N, H, S, K], for a batch's sources.

    Each key is a column in memory too: a product with few queries reads columns faster than rows.
    mask, [N, H, 1, S], is added to scores.
    """

    keys: Tensor
    values: Tensor
    mask: Tensor

    def layers(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Keys, [N * H, K, S], and values, [N * H, S, K], of each layer."""
        return zip(self.keys.flatten(1, 2), self.values.flatten(1, 2), strict=True)

    def select(self, sentences: Tensor) -> "EncodedSources":
        """Return the sources at the given indices, [M]."""
        keys, values = (states.index_select(1, sentences) for states in (self.keys, self.values))
        return EncodedSources(keys, values, self.mask[sentences])


class FastModel:
    """A translation model for decoding; make_linear makes layers in the model's dtype or int8.

    Raises:
        ValueError: A projection is not a plain linear layer in memory.
    """

    def __init__(
        self, model: AiaynForConditionalGeneration, make_linear: MakeLinear = linear_function
    ) -> None:
        check_plain_layers(model)
        self.encoder, self.decoder = model.model.encoder, model.model.decoder
        encoder_layers = cast(list[EncoderLayer], list(self.encoder.layers))
        decoder_layers = cast(list[DecoderLayer], list(self.decoder.layers))
        self.encoder_heads = model.config.encoder_attention_heads
        self.encoder_layers = [FastEncoderLayer(layer, make_linear) for layer in encoder_layers]
        self.decoder_layers = [FastDecoderLayer(layer, make_linear) for layer in decoder_layers]
        self.make_linear = make_linear
        self.lm_head = model.lm_head
        self.whole_output = make_linear(model.lm_head.weight, model.lm_head.bias)
        self.dtype = model.dtype

    def encode(self, input_ids: Tensor, attention_mask: Tensor) -> EncodedSources:
        """Encode sources, [N, S] like their mask, and project the result for each decoder layer."""
        embedded = self.encoder.add_positions(self.encoder.look_up(input_ids, None), attention_mask)
        dtype = embedded.dtype  # of attention, and of its keys and values
        if embedded.device.type == "cpu":
            dtype = torch.promote_types(dtype, torch.float32)
        layout = PaddedLayout(attention_mask, self.encoder_heads, dtype)
        hidden_states = embedded.flatten(0, 1)[layout.positions]  # [M, D]
        for layer in self.encoder_layers:
            hidden_states = layer(hidden_states, layout)
        hidden_states = self.encoder.layer_norm(hidden_states)
        keys, values = [], []
        for decoder_layer in self.decoder_layers:
            padded = layout.pad(decoder_layer.project_source(hidden_states))  # [N * S, 2 * H * K]
            key, value = decoder_layer.source_attention.split_heads(padded, layout.length)
            keys.append(key.transpose(2, 3))
            values.append(value)
        mask = padding_mask(attention_mask, values[0].size(1), dtype)
        return EncodedSources(torch.stack(keys), torch.stack(values), mask)

    def target_positions(self, max_length: int, device: torch.device) -> Tensor:
        """Return the encodings of the first positions of a target, [max_length, D]."""
        encodings: Tensor = self.decoder.embed_positions(torch.arange(max_length, device=device))
        return encodings.to(self.dtype)

    def output_layer(self, shortlisted: Tensor | None) -> Linear:
        """Return the layer that computes the logits of the given ids, [C]; None: of all ids."""
        if shortlisted is None:
            return self.whole_output
        weight, bias = self.lm_head.weight, self.lm_head.bias
        return self.make_linear(weight[shortlisted], None if bias is None else bias[shortlisted])

    def step(
        self,
        tokens: Tensor,
        position: Tensor,
        targets: Sequence[Entries],
        target_mask: Tensor,
        sources: EncodedSources,
        output: Linear,
    ) -> tuple[Tensor, Tensor]:
        """Score the next tokens; return logits, [N, k, C], and the last attention, [N * H, k, S].

        tokens, [N, k], are the last ids; position, [D], is their encoding. targets has the entries
        of each layer; target_mask is broadcastable to [N * H, k, T]; output is an `output_layer`.
        """
        embedded = self.decoder.embed_tokens(tokens.flatten()) * self.decoder.embed_scale
        hidden_states = embedded + position  # [N * k, D]
        source_mask = sources.mask.flatten(0, 1)
        width = tokens.size(1)
        for layer, target, source in zip(
            self.decoder_layers, targets, sources.layers(), strict=True
        ):
            hidden_states, weights = layer(
                hidden_states, width, target, target_mask, source, source_mask
            )
        logits = output(self.decoder.layer_norm(hidden_states))
        return logits.float().view(*tokens.shape, -1), weights


def check_plain_layers(model: AiaynForConditionalGeneration) -> None:
    """Check that projections are plain linear layers in memory."""
    for name, module in model.named_modules():
        if name.rpartition(".")[2] not in PROJECTIONS:
            continue
        weight: Any = getattr(module, "weight", None)
        is_plain = isinstance(module, nn.Linear) and weight.is_floating_point()
        # torchao keeps the class of the layer, but replaces the class of its weight.
        if not is_plain or type(weight.data) is not Tensor or weight.is_meta:
            raise ValueError(
                f"Translator needs plain linear layers in memory, but {name} is a "
                f"{type(module).__module__}.{type(module).__name__} that is adapted, quantized or "
                "offloaded. Merge adapters first: Translator.from_pretrained merges an adapter's "
                "folder, and merge_and_unload() a PeftModel. For others use model.generate()."
            )
