"""A foreign model computed by torch's own layers, to compare with the imported model."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from ..configuration_aiayn import AiaynConfig
from .foreign_model import ForeignModel
from .weight_names import DECODER_NORMS, ENCODER_NORMS, PROJECTIONS


class SampleDeviationNorm(nn.LayerNorm):
    """The Annotated Transformer's layer norm, which divides by the sample's deviation."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalize states, [..., D]."""
        centred = input - input.mean(-1, keepdim=True)
        deviation = input.std(-1, keepdim=True) + math.sqrt(self.eps)
        return self.weight * centred / deviation + self.bias


class ReferenceEncoder(nn.Module):
    """The encoder as generate() calls it."""

    main_input_name = "input_ids"

    def __init__(self, stack: nn.Module, embed: nn.Module) -> None:
        super().__init__()
        self.stack, self.embed = stack, embed

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> BaseModelOutput:
        """Encode a source that is padded on the right, [B, S], to states, [B, S, D]."""
        states = self.stack(self.embed(input_ids), src_key_padding_mask=attention_mask == 0)
        return BaseModelOutput(last_hidden_state=states)


class ReferenceEmbedding(nn.Module):
    """One half's scaled token embeddings, [V, D], plus positions in the foreign layout, [n, D]."""

    def __init__(self, foreign: ForeignModel, half: str) -> None:
        super().__init__()
        config = foreign.config
        self.rows = nn.Parameter(foreign.taken.weights[f"model.{half}.embed_tokens.weight"])
        self.scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.positions = nn.Parameter(foreign.position_encodings(half))

    def forward(self, input_ids: Tensor) -> Tensor:
        """Embed ids, [B, T], to states, [B, T, D]."""
        return self.rows[input_ids] * self.scale + self.positions[: input_ids.size(1)]


class ReferenceModel(PreTrainedModel, GenerationMixin):
    """A foreign model computed by torch.nn's Transformer layers, without a cache."""

    config_class = AiaynConfig

    def __init__(self, foreign: ForeignModel) -> None:
        super().__init__(foreign.config)
        weights = foreign.taken.weights
        self.encoder = ReferenceEncoder(
            _torch_stack(foreign, "encoder"), ReferenceEmbedding(foreign, "encoder")
        )
        self.decoder = _torch_stack(foreign, "decoder")
        self.embed = ReferenceEmbedding(foreign, "decoder")
        rows = weights["lm_head.weight"]
        self.output = nn.Linear(rows.size(1), rows.size(0))
        self.output.weight = nn.Parameter(rows)
        self.output.bias = nn.Parameter(weights.get("lm_head.bias", torch.zeros(rows.size(0))))
        self.eval()

    def generate(self, *args: Any, **options: Any) -> Any:
        """Generate without a cache, because torch's layers have none."""
        return super().generate(*args, **options, use_cache=False)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        decoder_input_ids: Tensor,
        encoder_outputs: BaseModelOutput | None = None,
        **_: Any,
    ) -> Seq2SeqLMOutput:
        """Compute logits, [B, T, V], of targets, [B, T], from right-padded sources, [B, S]."""
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask)
        length = decoder_input_ids.size(1)
        states = self.decoder(
            self.embed(decoder_input_ids),
            encoder_outputs.last_hidden_state,
            tgt_mask=torch.ones(length, length, dtype=torch.bool).triu(1),
            memory_key_padding_mask=attention_mask == 0,
        )
        return Seq2SeqLMOutput(logits=self.output(states))


def _torch_stack(foreign: ForeignModel, half: str) -> nn.Module:
    """Build the torch layers of one half and fill in the foreign weights."""
    config = foreign.config
    activation = ACT2FN[config.activation_function]
    sizes: dict[str, Any] = {
        "d_model": config.d_model,
        "nhead": getattr(config, f"{half}_attention_heads"),
        "dim_feedforward": getattr(config, f"{half}_ffn_dim"),
        "dropout": 0.0,
        # torch's fused path would ignore SampleDeviationNorm. This function disables that path.
        "activation": lambda states: activation(states),
        "layer_norm_eps": config.layer_norm_eps,
        "batch_first": True,
        "norm_first": config.norm_first,
    }
    depth = getattr(config, f"{half}_layers")
    stack: nn.TransformerEncoder | nn.TransformerDecoder
    if half == "encoder":
        encoder_layer = nn.TransformerEncoderLayer(**sizes)
        stack = nn.TransformerEncoder(encoder_layer, depth, enable_nested_tensor=False)
    else:
        stack = nn.TransformerDecoder(nn.TransformerDecoderLayer(**sizes), depth)
    norms: Sequence[str] = ENCODER_NORMS if half == "encoder" else DECODER_NORMS
    for number, layer in enumerate(stack.layers):
        _fill_layer(layer, foreign, f"model.{half}.layers.{number}.", norms)
    if f"model.{half}.layer_norm.weight" in foreign.taken.weights:
        stack.norm = _norm_of(foreign, f"model.{half}.layer_norm")
    return stack


def _fill_layer(layer: nn.Module, foreign: ForeignModel, prefix: str, norms: Sequence[str]) -> None:
    weights = foreign.taken.weights

    def parameter(module: str, leaf: str) -> Tensor:
        weight = weights[f"{prefix}{module}.weight"]
        return weights.get(f"{prefix}{module}.{leaf}", torch.zeros(len(weight)))

    for leaf in ("weight", "bias"):
        for ours, theirs in (("self_attn", "self_attn"), ("encoder_attn", "multihead_attn")):
            if attention := getattr(layer, theirs, None):
                stacked = [parameter(f"{ours}.{part}", leaf) for part in PROJECTIONS[:3]]
                setattr(attention, f"in_proj_{leaf}", nn.Parameter(torch.cat(stacked)))
                setattr(attention.out_proj, leaf, nn.Parameter(parameter(f"{ours}.out_proj", leaf)))
        for ours, theirs in (("fc1", "linear1"), ("fc2", "linear2")):
            setattr(getattr(layer, theirs), leaf, nn.Parameter(parameter(ours, leaf)))
    for number, name in enumerate(norms, start=1):
        setattr(layer, f"norm{number}", _norm_of(foreign, prefix + name))


def _norm_of(foreign: ForeignModel, name: str) -> nn.Module:
    weight, bias = (foreign.taken.weights[f"{name}.{leaf}"] for leaf in ("weight", "bias"))
    kind = SampleDeviationNorm if foreign.has_sample_deviation else nn.LayerNorm
    norm = kind(len(weight), eps=foreign.config.layer_norm_eps)
    norm.weight, norm.bias = nn.Parameter(weight), nn.Parameter(bias)
    return norm
