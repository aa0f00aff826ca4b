"""A model's weights in the order in which the kernels read them."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ...saved.int8 import rounded_to_int8
from ..candidates import check_no_nan
from ..decoding_rules import EXCLUDED_LOGIT
from .instructions import BLOCK, COLUMNS, GROUP, INSTRUCTIONS, LANES, LARGEST_SUM
from .kernels import GELU, GELU_TANH, RELU, SILU, Model

ACTIVATIONS = {
    "relu": RELU,
    "silu": SILU,
    "swish": SILU,
    "gelu": GELU,
    "gelu_new": GELU_TANH,
    "gelu_pytorch_tanh": GELU_TANH,
}

LINE = 64  # bytes of a cache line

Matrix = tuple[np.ndarray, int, int]  # weights, inputs and outputs


def packed(weight: Tensor, bias: Tensor | None, int8: bool) -> Matrix:
    """Pack a linear layer, [out, in], for `tile`, padded with zeros to whole LANES and blocks."""
    count, size = weight.shape
    outputs, inputs = whole(count, BLOCK), whole(size, LANES)
    columns = torch.zeros(outputs, COLUMNS)
    if bias is not None:
        columns[:count, 2] = bias
    if int8:
        weight, scales = rounded_to_int8(weight)
        if INSTRUCTIONS.summed > 1:
            weight, scales = with_small_sums(weight, scales, INSTRUCTIONS.summed)
        columns[:count, 0], columns[:count, 1] = scales, weight.sum(1, dtype=torch.int32)
    padded = functional.pad(weight, (0, inputs - size, 0, outputs - count))
    rows = torch.cat([padded, columns.view(weight.dtype)], 1)
    blocks = rows.view(outputs // LANES, LANES, -1, GROUP if int8 else 1).transpose(1, 2)
    return blocks.flatten().numpy(), inputs, outputs


def with_small_sums(weight: Tensor, scales: Tensor, summed: int) -> tuple[Tensor, Tensor]:
    """Make integers, [out, in], smaller if sums of their products would not fit into 16 bits.

    `tile` adds the products of `summed` groups, in two sums for each output.
    """
    padded = functional.pad(weight, (0, -weight.size(1) % (summed * GROUP)))
    groups = padded.view(len(weight), -1, summed, 2, GROUP // 2)
    sums = [x.clamp(min=0).sum((2, 4), dtype=torch.int32) for x in (groups, -groups)]
    largest = torch.stack(sums).amax((0, 2, 3))
    most = LARGEST_SUM - summed * GROUP / 4  # rounding may add a half to each of the numbers
    factors = torch.where(largest > LARGEST_SUM, most / largest, 1.0)
    return (weight * factors[:, None]).round().to(torch.int8), scales / factors


def shortlisted(model: Model, ids: np.ndarray) -> Model:
    """Return a model whose output layer has only the given ids."""
    group = GROUP if model.codes is np.uint8 else 1
    missing = whole(len(ids), BLOCK) - len(ids)
    blocks = model.output_weights.reshape(-1, model.size // group + COLUMNS, LANES, group)
    rows = np.pad(blocks[ids // LANES, :, ids % LANES], ((0, missing), (0, 0), (0, 0)))
    weights = rows.reshape(-1, LANES, *rows.shape[1:]).transpose(0, 2, 1, 3)
    return model._replace(output_weights=joined([weights.ravel()]), output_ids=ids)


def whole(count: int, unit: int) -> int:
    """Round a count up to a multiple of a unit."""
    return -(-count // unit) * unit


def aligned(size: int, kind: Any = np.float32) -> np.ndarray:
    """Return zeros from the start of a cache line: vectors in two lines take longer to read."""
    size *= np.dtype(kind).itemsize
    memory = np.zeros(size + LINE, np.uint8)
    return memory[-memory.ctypes.data % LINE :][:size].view(kind)


def joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate flat arrays, from the beginning of a cache line."""
    return np.concatenate(arrays, out=aligned(sum(map(len, arrays)), arrays[0].dtype))


def rows_of(tensor: Tensor) -> np.ndarray:
    """Flatten a matrix, with each row padded with zeros to whole LANES."""
    rows = tensor.detach().float()
    missing = whole(tensor.size(1), LANES) - tensor.size(1)
    return (functional.pad(rows, (0, missing)) if missing else rows).flatten().numpy()


def whole_heads(tensor: Tensor, size: int) -> Tensor:
    """Pad each head, `size` rows of [H * K, ...], with zeros to whole LANES."""
    heads = tensor.view(-1, size, *tensor.shape[1:])
    missing = whole(size, LANES) - size
    return functional.pad(heads, (0, 0) * (tensor.dim() - 1) + (0, missing)).flatten(0, 1)


def _projections(attention: Any, names: str, int8: bool) -> Matrix:
    """Pack projections of a layer, such as "q k v", as one matrix."""
    linears = [attention.get_submodule(f"{name}_proj") for name in names.split()]
    weights, biases = (
        [whole_heads(getattr(linear, kind), attention.head_dim) for linear in linears]
        if getattr(linears[0], kind) is not None
        else []
        for kind in ("weight", "bias")
    )
    return packed(torch.cat(weights), torch.cat(biases) if biases else None, int8)


def _output(attention: Any, int8: bool) -> Matrix:
    weight = whole_heads(attention.out_proj.weight.T.contiguous(), attention.head_dim).T
    return packed(weight, attention.out_proj.bias, int8)


def _matrices(model: Any, int8: bool, excluded: Sequence[int]) -> Iterator[Matrix]:
    """Yield the packed matrices in the order of their numbers."""
    for stack in (model.model.encoder, model.model.decoder):
        is_decoder = stack is model.model.decoder
        for layer in stack.layers:
            yield _projections(layer.self_attn, "q k v", int8)
            yield _output(layer.self_attn, int8)
            if is_decoder:
                yield _projections(layer.encoder_attn, "q", int8)
                yield _output(layer.encoder_attn, int8)
            yield packed(layer.fc1.weight, layer.fc1.bias, int8)
            missing = whole(layer.fc1.out_features, BLOCK) - layer.fc1.out_features
            yield packed(functional.pad(layer.fc2.weight, (0, missing)), layer.fc2.bias, int8)
            if is_decoder:
                yield _projections(layer.encoder_attn, "k v", int8)
    bias = torch.zeros(model.lm_head.out_features)
    bias = bias if model.lm_head.bias is None else model.lm_head.bias.clone()
    bias[list(excluded)] -= EXCLUDED_LOGIT
    yield packed(model.lm_head.weight, bias, int8)


def _norms(model: Any) -> Iterator[Any]:
    """Yield the norms in the order of their numbers."""
    for stack in (model.model.encoder, model.model.decoder):
        for layer in stack.layers:
            yield layer.self_attn_layer_norm
            if stack is model.model.decoder:
                yield layer.encoder_attn_layer_norm
            yield layer.final_layer_norm
        has_final = isinstance(stack.layer_norm, nn.LayerNorm)
        yield stack.layer_norm if has_final else stack.layers[0].final_layer_norm  # else unused


@torch.no_grad()
def packed_model(model: Any, int8: bool, excluded: Sequence[int]) -> Model:
    """Pack a model in int8 or float32, without positions; excluded ids get no probability.

    Raises:
        ValueError: A weight is not finite.
    """
    *matrices, output = _matrices(model, int8, excluded)
    weights, inputs, outputs = zip(*matrices, strict=True)
    check_no_nan(0 * float(weight.sum()) for weight in model.parameters())  # infinite becomes NaN
    encoder, decoder, config = model.model.encoder, model.model.decoder, model.config
    inner, outer = encoder.layers[0].self_attn, decoder.layers[0].self_attn
    norms = [each for norm in _norms(model) for each in (norm.weight, norm.bias)]
    return Model(
        weights=joined(weights),
        weights_at=np.cumsum([0, *map(len, weights)])[:-1],
        inputs=np.array(inputs),
        outputs=np.array(outputs),
        output_weights=joined([output[0]]),
        output_ids=np.arange(model.lm_head.out_features),
        norms=rows_of(torch.stack(norms)),
        epsilon=np.float32(config.layer_norm_eps),
        source_embeddings=rows_of(encoder.embed_tokens.weight),
        target_embeddings=rows_of(decoder.embed_tokens.weight),
        source_positions=np.zeros(0, np.float32),
        target_positions=np.zeros(0, np.float32),
        source_scale=np.float32(encoder.embed_scale),
        target_scale=np.float32(decoder.embed_scale),
        width=config.d_model,
        size=whole(config.d_model, LANES),
        encoder_layers=len(encoder.layers),
        decoder_layers=len(decoder.layers),
        encoder_heads=inner.q_proj.out_features // inner.head_dim,
        decoder_heads=outer.q_proj.out_features // outer.head_dim,
        encoder_head_size=whole(inner.head_dim, LANES),
        decoder_head_size=whole(outer.head_dim, LANES),
        encoder_scale=np.float32(inner.head_dim**-0.5),
        decoder_scale=np.float32(outer.head_dim**-0.5),
        norm_first=config.norm_first,
        final_norms=isinstance(encoder.layer_norm, nn.LayerNorm),
        activation=ACTIVATIONS[config.activation_function],
    )
