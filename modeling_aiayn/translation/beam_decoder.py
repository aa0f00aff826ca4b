"""One model's decoder over the hypotheses of many sentences, a token at a time."""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from ..layers import DecoderLayer
from ..modeling_aiayn import AiaynForConditionalGeneration
from .hypothesis_tree import HypothesisTree
from .packing import linear_function
from .source_encoder import SourceEncoder, padding_mask
from .step_layer import StepLayer

# Layers that decoding knows by their weights alone.
PROJECTIONS = {"q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2", "lm_head"}
# Graphs that torch.compile may make of a layer: twice the 10 that one, two and more sentences asked
# for together by one, two, four and five beams.
GRAPHS = 20


def refuse_other_layers(model: AiaynForConditionalGeneration) -> None:
    """Refuse a model whose projections are more than weights, or which is not in one place.

    Raises:
        ValueError: One is an adapter's or a quantised one, or the model lies on several devices.
    """
    for name, module in model.named_modules():
        is_plain = isinstance(module, nn.Linear) and module.weight.is_floating_point()
        if name.rpartition(".")[2] in PROJECTIONS and not is_plain:
            raise ValueError(
                f"Decoding reads the weights of linear layers, and {name} is more than that, got "
                f"{type(module).__module__}.{type(module).__name__}. Translator.from_pretrained "
                "merges an adapter's folder, as merge_and_unload() does a PeftModel; or use "
                "model.generate()."
            )
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(devices) > 1:
        raise ValueError(
            f"A model to decode with must be on one device, got parts on {', '.join(devices)}: "
            "give device in the place of device_map."
        )


class StepModel:
    """A translation model made ready for decoding.

    What is done to the model's weights later may not reach it.

    Args:
        model: The model.
        compile: Whether torch.compile rewrites the layers.

    Raises:
        ValueError: A projection is more than its weight, or the model is on several devices.
    """

    def __init__(self, model: AiaynForConditionalGeneration, compile: bool = False) -> None:
        refuse_other_layers(model)
        self.decoder = model.model.decoder
        self.dtype = model.dtype
        self.source_encoder = SourceEncoder(model)
        decoder_layers = cast(list[DecoderLayer], list(self.decoder.layers))
        layers = [StepLayer(layer, is_packed=not compile) for layer in decoder_layers]
        self.layers: list[Callable[..., tuple[Tensor, Tensor]]] = [*layers]
        if compile:
            # A graph for each way in which sizes are 1; layers share them.
            self.layers = [
                # torch's overloads leave the limit out.
                torch.compile(layer.__call__, dynamic=True, recompile_limit=GRAPHS)  # type: ignore[call-overload]
                for layer in layers
            ]
        self.lm_head = linear_function(model.lm_head.weight, model.lm_head.bias)


class BeamDecoder:
    """Decodes a batch: the hypotheses of a sentence stand where positions do in training.

    So a source's keys and values are there once for all of its hypotheses, and self-attention reads
    from a `HypothesisTree` in which nothing is moved.

    Args:
        model: The model.
        input_ids: Sources, [N, S].
        attention_mask: 1 for real source tokens, [N, S].
        width: Hypotheses of each source at most.
        max_length: Longest translation in tokens.
    """

    def __init__(
        self,
        model: StepModel,
        input_ids: Tensor,
        attention_mask: Tensor,
        width: int,
        max_length: int,
    ) -> None:
        self.model = model
        self.sources = model.source_encoder(input_ids, attention_mask)
        keys, values = self.sources[0]
        self.source_mask = padding_mask(attention_mask, keys.size(1), keys.dtype)  # [N, H, 1, S]
        self.tree = HypothesisTree(len(model.layers), width, values)
        positions = model.decoder.embed_positions(torch.arange(max_length, device=keys.device))
        self.positions = positions.to(model.dtype)  # [max_length, D]
        self.length = 0
        self._weights = torch.empty(0)  # of the last layer in the last step, [N * H, k, S]

    def step(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Score every entry of the vocabulary as the next token of each hypothesis.

        Args:
            tokens: The token that each hypothesis ends in, [N, k].
            parents: Which hypothesis of the step before each goes on from, [N, k].

        Returns:
            Logits in float32, [N, k, V].
        """
        self.tree.grow(parents)
        decoder, mask = self.model.decoder, self.tree.mask()
        source_mask = self.source_mask.flatten(0, 1)
        embedded = decoder.embed_tokens(tokens.flatten()) * decoder.embed_scale  # [N * k, D]
        hidden_states = embedded + self.positions[self.length]
        for layer, target, source in zip(
            self.model.layers, self.tree.storage, self.sources, strict=True
        ):
            keys_values = (each.flatten(0, 1) for each in source)
            given = (tokens.size(1), target, self.tree.size, mask, *keys_values, source_mask)
            hidden_states, self._weights = layer(hidden_states, *given)
        self.length += 1
        logits: Tensor = self.model.lm_head(decoder.layer_norm(hidden_states))
        return logits.float().view(*tokens.shape, -1)

    def source_attention(self) -> Tensor:
        """Where the last step looked: the mean over the last layer's heads, [N, k, S]."""
        return self._weights.view(*self.source_mask.shape[:2], *self._weights.shape[1:]).mean(1)

    def keep(self, sentences: Tensor) -> None:
        """Go on with some of the sentences.

        Args:
            sentences: Their indices, [M].
        """
        self.tree.keep(sentences)
        self.sources = [(keys[sentences], values[sentences]) for keys, values in self.sources]
        self.source_mask = self.source_mask[sentences]
