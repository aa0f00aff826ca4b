"""Tables of other systems' parameter names, which are used to read their checkpoints."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..configuration_aiayn import AiaynConfig
from ..modeling_aiayn import AiaynForConditionalGeneration

# Our names within a layer, in the order in which other systems number theirs.
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
FEED_FORWARD = ("fc1", "fc2")
ENCODER_NORMS = ("self_attn_layer_norm", "final_layer_norm")
DECODER_NORMS = ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm")
# Hand-written layer norms often call their gain a_2 and their bias b_2.
NORM_LEAVES = {"weight": ("weight", "a_2"), "bias": ("bias", "b_2")}
IN_A_LAYER = re.compile(r"model\.(encoder|decoder)\.layers\.(\d+)\.(.+)")
ONE_THIRD = re.compile(r"(.+)\[([012])\]")

# A foreign name, or several if files differ, the preferred one first.
Names = str | tuple[str, ...]


@dataclass(frozen=True)
class NameTable:
    """Another system's names for our modules.

    A module's name covers its weight and its bias. `{leaf}` in a foreign name is replaced by
    "weight" or "bias". `name[0]`, `name[1]` and `name[2]` are the thirds of a tensor that stacks
    queries, keys and values. All systems call self-attention `self_attn`. Names within a layer are
    in the order of our own names. The defaults are our own names and prefixes.
    """

    outside: Mapping[str, Names]  # names outside the layers, by our names of modules or tensors
    encoder_layer: str = "model.encoder.layers.{n}."  # prefix of encoder layer {n}
    decoder_layer: str = "model.decoder.layers.{n}."
    cross_attention: str = "encoder_attn"
    projections: Sequence[Names] = PROJECTIONS
    feed_forward: Sequence[Names] = FEED_FORWARD
    encoder_norms: Sequence[Names] = ENCODER_NORMS
    decoder_norms: Sequence[Names] = DECODER_NORMS
    # Tensors of a checkpoint that the model does not need: a pattern of names, and the reason.
    left_out: Mapping[str, str] = field(default_factory=dict)
    # Patterns of our biases that the system can switch off. A checkpoint has all biases that match
    # one pattern, or none of them.
    optional_biases: tuple[str, ...] = ()
    # The likely mistake if a tensor has no place.
    hint: str = "It has another architecture, or more layers than its configuration says."

    def names_of(self, parameter: str) -> list[str]:
        """Return the other system's names of one of our parameters, the preferred one first."""
        prefix, names, within = "", self.outside, parameter
        if match := IN_A_LAYER.fullmatch(parameter):
            half, number, within = match.groups()
            names = self._names_within_layer(half)
            prefix = self._layer_prefix(half).format(n=number)
        if within in names:
            return [prefix + name for name in _as_tuple(names[within])]
        module, _, leaf = within.rpartition(".")
        leaves = NORM_LEAVES[leaf] if module.endswith("layer_norm") else (leaf,)
        return [
            prefix + (name if "{leaf}" in name else f"{name}.{{leaf}}").format(leaf=their_leaf)
            for name in _as_tuple(names.get(module, ()))
            for their_leaf in leaves
        ]

    def _names_within_layer(self, half: str) -> dict[str, Names]:
        ours: Sequence[str] = ENCODER_NORMS if half == "encoder" else DECODER_NORMS
        theirs = self.encoder_norms if half == "encoder" else self.decoder_norms
        attentions = {"self_attn": "self_attn", "encoder_attn": self.cross_attention}
        return {
            **dict(zip(ours, theirs, strict=True)),
            **dict(zip(FEED_FORWARD, self.feed_forward, strict=True)),
            **{
                f"{attention}.{projection}": tuple(f"{prefix}.{name}" for name in _as_tuple(names))
                for attention, prefix in attentions.items()
                for projection, names in zip(PROJECTIONS, self.projections, strict=True)
            },
        }

    def find(self, tensors: Mapping[str, Tensor], parameter: str) -> Tensor | None:
        """Return the checkpoint's tensor for one of our parameters, or None."""
        for name in self.names_of(parameter):
            stored, third = _stored_name(name)
            if stored in tensors:
                whole = tensors[stored]
                return whole if third is None else whole.chunk(3)[third]
        return None

    def get(self, tensors: Mapping[str, Tensor], parameter: str) -> Tensor:
        """Return the checkpoint's tensor for one of our parameters, or raise a ValueError."""
        tensor = self.find(tensors, parameter)
        if tensor is None:
            raise ValueError(f"{self.describe(parameter, tensors)} is missing.")
        return tensor

    def describe(self, parameter: str, tensors: Mapping[str, Tensor]) -> str:
        """Name a parameter in both systems, as the beginning of an error message."""
        names = [_stored_name(name)[0] for name in self.names_of(parameter)]
        present = [name for name in names if name in tensors]
        return f"The tensor {' or '.join(present[:1] or names)}, our {parameter},"

    def count_layers(self, tensors: Mapping[str, Tensor], half: str) -> int:
        """Count the layers of the "encoder" or "decoder" by the names in a checkpoint."""
        prefix = re.escape(self._layer_prefix(half)).replace(r"\{n\}", r"(\d+)")
        numbers = [int(match[1]) for name in tensors if (match := re.match(prefix, name))]
        return 1 + max(numbers, default=-1)

    def _layer_prefix(self, half: str) -> str:
        return self.encoder_layer if half == "encoder" else self.decoder_layer


def _as_tuple(names: Names) -> tuple[str, ...]:
    return names if isinstance(names, tuple) else (names,)


def _stored_name(name: str) -> tuple[str, int | None]:
    """Split `name[1]` into the stored tensor's name and the number of the third."""
    match = ONE_THIRD.fullmatch(name)
    return (match[1], int(match[2])) if match else (name, None)


def sizes_of(table: NameTable, tensors: Mapping[str, Tensor]) -> dict[str, int | bool]:
    """Infer the numbers of layers, widths of feed-forward layers, and which biases exist."""
    fields: dict[str, int | bool] = {"attention_bias": False}
    for half in ("encoder", "decoder"):
        layer = f"model.{half}.layers.0"
        fields[f"{half}_layers"] = table.count_layers(tensors, half)
        fields[f"{half}_ffn_dim"] = table.get(tensors, f"{layer}.fc1.weight").size(0)
        for projection in ("q_proj", "out_proj"):
            bias = table.find(tensors, f"{layer}.self_attn.{projection}.bias")
            fields["attention_bias"] |= bias is not None
    fields["lm_head_bias"] = table.find(tensors, "lm_head.bias") is not None
    return fields


@dataclass(frozen=True)
class TakenWeights:
    """A checkpoint's tensors under our names, in the checkpoint's types and layout."""

    weights: dict[str, Tensor]
    left_out: dict[str, str]  # tensors that our model does not need, with the reasons
    absent_biases: list[str]  # biases that the other system does not have; they are 0 here


def take_weights(
    table: NameTable, tensors: Mapping[str, Tensor], config: AiaynConfig
) -> TakenWeights:
    """Rename all tensors of a checkpoint to our names, and check their shapes and values.

    Each parameter needs a tensor; each other tensor needs a reason to be left out.
    """
    with torch.device("meta"):
        parameters = AiaynForConditionalGeneration(config).state_dict()
    absent = _absent_biases(table, tensors, parameters)
    weights = {}
    for name, parameter in parameters.items():
        shape = tuple(parameter.shape)
        tensor = torch.zeros(shape) if name in absent else table.get(tensors, name)
        if tuple(tensor.shape) != shape:
            raise ValueError(
                f"{table.describe(name, tensors)} must have shape {shape}, got "
                f"{tuple(tensor.shape)}."
            )
        if not tensor.isfinite().all():
            raise ValueError(f"{table.describe(name, tensors)} is not finite (NaN or infinity).")
        weights[name] = tensor.detach()
    used = {_stored_name(name)[0] for parameter in weights for name in table.names_of(parameter)}
    left_out = _left_out_tensors(table, set(tensors) - used)
    return TakenWeights(weights, left_out, [name for name in weights if name in absent])


def _absent_biases(
    table: NameTable, tensors: Mapping[str, Tensor], parameters: Iterable[str]
) -> set[str]:
    """Find the optional biases that the checkpoint was trained without."""
    absent: set[str] = set()
    for pattern in table.optional_biases:
        alike = {name for name in parameters if re.fullmatch(pattern, name)}
        if all(table.find(tensors, name) is None for name in alike):
            absent |= alike
    return absent


def _left_out_tensors(table: NameTable, names: set[str]) -> dict[str, str]:
    left_out = {
        name: why
        for name in sorted(names)
        for pattern, why in table.left_out.items()
        if re.fullmatch(pattern, name)
    }
    if unknown := sorted(names - left_out.keys()):
        raise ValueError(f"The tensor {unknown[0]} has no place in this model. {table.hint}")
    return left_out
