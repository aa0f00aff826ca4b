"""Which tensor of a foreign checkpoint is which of ours: tables, and how they are read."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..configuration_aiayn import AiaynConfig
from ..modeling_aiayn import AiaynForConditionalGeneration

# What norms call their own in the files of those who wrote them by hand.
NORM_LEAVES = {"weight": ("weight", "a_2"), "bias": ("bias", "b_2")}
IN_A_LAYER = re.compile(r"model\.(encoder|decoder)\.layers\.(\d+)\.(.+)")


@dataclass(frozen=True)
class Third:
    """One of three tensors that are kept on top of each other, as queries, keys and values are.

    Args:
        name: The name of the whole.
        number: Which third, from 0.
    """

    name: str
    number: int


# What something is called elsewhere; several names, where files differ, in the order of preference.
Names = str | Third | tuple[str | Third, ...]


@dataclass(frozen=True)
class NameTable:
    """What another system calls our modules.

    A name stands for a module, and its weight and bias follow; one of a single tensor ends in
    `.weight` or `.bias` on our side. In a `Third`, `{leaf}` is where weight or bias goes.

    Args:
        around: Names of what is around the layers.
        encoder: Names within a layer of the encoder.
        decoder: The same for the decoder.
        encoder_layer: What an encoder's layer {n} is called.
        decoder_layer: The same for the decoder.
        left_out: What a checkpoint holds and a model does not need, as patterns, and why.
        optional_biases: Patterns of our biases that the system may be told to have none of; all
            that fit one are there, or none.
    """

    around: Mapping[str, Names]
    encoder: Mapping[str, Names]
    decoder: Mapping[str, Names]
    encoder_layer: str
    decoder_layer: str
    left_out: Mapping[str, str] = field(default_factory=dict)
    optional_biases: tuple[str, ...] = ()

    def names_of(self, parameter: str) -> list[str | Third]:
        """What one of our parameters may be called there.

        Args:
            parameter: Its name in `AiaynForConditionalGeneration`.

        Returns:
            Names in the order of preference; none where the other system has no such thing.
        """
        prefix, names, within = "", self.around, parameter
        if match := IN_A_LAYER.fullmatch(parameter):
            half, number, within = match.groups()
            names = self.encoder if half == "encoder" else self.decoder
            layer = self.encoder_layer if half == "encoder" else self.decoder_layer
            prefix = layer.format(n=number)
        if within in names:
            return [_prefixed(prefix, each) for each in _as_tuple(names[within])]
        module, _, leaf = within.rpartition(".")
        leaves = NORM_LEAVES[leaf] if module.endswith("layer_norm") else (leaf,)
        return [
            _prefixed(prefix, _with_leaf(each, theirs))
            for each in _as_tuple(names.get(module, ()))
            for theirs in leaves
        ]

    def find(self, tensors: Mapping[str, Tensor], parameter: str) -> Tensor | None:
        """The tensor that is one of our parameters, or None where there is none.

        Args:
            tensors: A checkpoint's.
            parameter: Our name.

        Returns:
            The tensor.
        """
        for name in self.names_of(parameter):
            whole = tensors.get(name.name if isinstance(name, Third) else name)
            if whole is not None:
                return _part(name, whole)
        return None

    def need(self, tensors: Mapping[str, Tensor], parameter: str) -> Tensor:
        """The tensor that is one of our parameters.

        Args:
            tensors: A checkpoint's.
            parameter: Our name.

        Returns:
            The tensor.

        Raises:
            ValueError: There is none.
        """
        found = self.find(tensors, parameter)
        if found is None:
            raise ValueError(f"{self.described(parameter, tensors)} is missing.")
        return found

    def described(self, parameter: str, tensors: Mapping[str, Tensor]) -> str:
        """One of our parameters by the name that it has there, or may have.

        Args:
            parameter: Our name.
            tensors: A checkpoint's.

        Returns:
            The beginning of a sentence.
        """
        names = self.names_of(parameter)
        wholes = [name.name if isinstance(name, Third) else name for name in names]
        there = [name for name in wholes if name in tensors]
        return f"The tensor {' or '.join(there[:1] or wholes)}, our {parameter},"

    def count_layers(self, tensors: Mapping[str, Tensor], half: str) -> int:
        """How many layers a half has, by what there is of them.

        Args:
            tensors: A checkpoint's.
            half: "encoder" or "decoder".

        Returns:
            The number.
        """
        layer = self.encoder_layer if half == "encoder" else self.decoder_layer
        pattern = re.compile(re.escape(layer).replace(r"\{n\}", r"(\d+)"))
        found = [int(match[1]) for match in map(pattern.match, tensors) if match]
        return 1 + max(found, default=-1)


def _as_tuple(names: Names) -> tuple[str | Third, ...]:
    return names if isinstance(names, tuple) else (names,)


def _with_leaf(name: str | Third, leaf: str) -> str | Third:
    if isinstance(name, Third):
        return Third(name.name.format(leaf=leaf), name.number)
    return f"{name}.{leaf}"


def _prefixed(prefix: str, name: str | Third) -> str | Third:
    return Third(prefix + name.name, name.number) if isinstance(name, Third) else prefix + name


def _part(name: str | Third, whole: Tensor) -> Tensor:
    if not isinstance(name, Third):
        return whole
    if whole.size(0) % 3:
        raise ValueError(
            f"{name.name} must hold queries, keys and values, three of a size, got shape "
            f"{tuple(whole.shape)}."
        )
    return whole.chunk(3)[name.number]


def sizes_of(table: NameTable, tensors: Mapping[str, Tensor]) -> dict[str, int | bool]:
    """What a checkpoint's shapes tell of the model, where no configuration does.

    Args:
        table: What the other system calls its tensors.
        tensors: The checkpoint's.

    Returns:
        Fields of `AiaynConfig`: layers and widths of both halves, and which biases there are.

    Raises:
        ValueError: A half has no layer, or one that is no matrix.
    """
    fields: dict[str, int | bool] = {"lm_head_bias": False, "attention_bias": False}
    for half in ("encoder", "decoder"):
        layer = f"model.{half}.layers.0"
        fields[f"{half}_layers"] = table.count_layers(tensors, half)
        inner = table.need(tensors, f"{layer}.fc1.weight")
        if inner.dim() != 2:
            name = table.described(f"{layer}.fc1.weight", tensors)
            raise ValueError(f"{name} must be a matrix, got shape {tuple(inner.shape)}.")
        fields[f"{half}_ffn_dim"] = inner.size(0)
        for projection in ("q_proj", "out_proj"):
            bias = table.find(tensors, f"{layer}.self_attn.{projection}.bias")
            fields["attention_bias"] |= bias is not None
    fields["lm_head_bias"] = table.find(tensors, "lm_head.bias") is not None
    return fields


def refuse_missing_heads(fields: Mapping[str, object]) -> None:
    """Refuse to guess the one number that no shape tells.

    Args:
        fields: What is known of the configuration.

    Raises:
        ValueError: A half's heads are not.
    """
    for name in ("encoder_attention_heads", "decoder_attention_heads"):
        if name not in fields:
            raise ValueError(f"No tensor tells {name}: give it in config.")


@dataclass(frozen=True)
class TakenWeights:
    """What a checkpoint gave.

    Args:
        weights: Tensors under our names.
        left_out: Tensors that a model does not need, each with the reason.
        absent_biases: Biases of ours that the other system does not have; they are 0.
    """

    weights: dict[str, Tensor]
    left_out: dict[str, str]
    absent_biases: list[str]


def take_weights(
    table: NameTable, tensors: Mapping[str, Tensor], config: AiaynConfig
) -> TakenWeights:
    """All of a checkpoint's tensors under our names: none is missing, and none is overlooked.

    Args:
        table: What the other system calls them.
        tensors: The checkpoint's.
        config: The model that they are to fill.

    Returns:
        Every parameter of such a model, in float32, and what became of the rest.

    Raises:
        ValueError: One is missing, has another shape, is not finite, or has no place; the message
            has its name in the other system.
    """
    with torch.device("meta"):
        shapes = {
            name: tuple(parameter.shape)
            for name, parameter in AiaynForConditionalGeneration(config).state_dict().items()
        }
    weights: dict[str, Tensor] = {}
    absent: list[str] = []
    for parameter, shape in shapes.items():
        found = table.find(tensors, parameter)
        if found is None and _is_bias_nobody_has(table, tensors, parameter, list(shapes)):
            absent.append(parameter)
            found = torch.zeros(shape)
        if found is None:
            found = table.need(tensors, parameter)
        if tuple(found.shape) != shape:
            raise ValueError(
                f"{table.described(parameter, tensors)} must have shape {shape}, got "
                f"{tuple(found.shape)}."
            )
        if not found.isfinite().all():
            raise ValueError(
                f"{table.described(parameter, tensors)} is not finite (NaN or infinity)."
            )
        weights[parameter] = found.detach().float()
    used = {
        name.name if isinstance(name, Third) else name
        for parameter in shapes
        for name in table.names_of(parameter)
    }
    return TakenWeights(weights, _left_out(table, set(tensors) - used), absent)


def _is_bias_nobody_has(
    table: NameTable, tensors: Mapping[str, Tensor], parameter: str, parameters: list[str]
) -> bool:
    """Whether it is the system's way to have none of this kind of bias: then nothing is lost."""
    for pattern in table.optional_biases:
        if re.fullmatch(pattern, parameter):
            alike = [name for name in parameters if re.fullmatch(pattern, name)]
            return all(table.find(tensors, name) is None for name in alike)
    return False


def _left_out(table: NameTable, names: set[str]) -> dict[str, str]:
    reasons = {}
    for name in sorted(names):
        matching = [why for pattern, why in table.left_out.items() if re.fullmatch(pattern, name)]
        if not matching:
            raise ValueError(
                f"The tensor {name} has no place in this model: it is of another architecture, or "
                "of more layers than its configuration says."
            )
        reasons[name] = matching[0]
    return reasons
