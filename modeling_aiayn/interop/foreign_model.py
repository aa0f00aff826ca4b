"""The form in which importers return a model of another system, and its conversion to ours."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.hf_argparser import HfArg

from ..configuration_aiayn import AiaynConfig
from ..data.parsing import check_config_fields, parse_mapping
from ..modeling_aiayn import AiaynForConditionalGeneration
from .layout import Sinusoids, fold_sample_deviation, recognise_sinusoids, reorder_residual
from .weight_names import NameTable, TakenWeights, sizes_of, take_weights

# torch.nn.LayerNorm's default, which most systems keep.
LAYER_NORM_EPS = 1e-5


@dataclass(frozen=True)
class ForeignModel:
    """A model of another system."""

    system: str
    config: AiaynConfig  # the same model's configuration in our fields
    taken: TakenWeights  # its weights under our names, in the system's own layout
    sinusoids: Sinusoids | None  # the layout of its sinusoids; None with learned positions
    dtype: torch.dtype  # of its stored weights
    # Whether layer norms divide by the sample standard deviation (n - 1) instead of the root of the
    # variance.
    has_sample_deviation: bool = False
    generation_config: GenerationConfig | None = None  # its decoding options; None: our defaults
    source_tokenizer: PreTrainedTokenizerBase | None = None
    target_tokenizer: PreTrainedTokenizerBase | None = None  # if there is a second one
    # The model in the other system's own class, if that can be run here.
    peer: PreTrainedModel | None = field(default=None, repr=False)
    # Fields of config that neither a tensor nor the user gave. Only outputs of the original can
    # confirm them.
    assumed_fields: tuple[str, ...] = ()
    repo_id: str | None = None  # on the Hub, if it was loaded from there

    @property
    def vocabulary_sizes(self) -> tuple[int, int]:
        """The number of embeddings of the source and of the target."""
        return self.config.vocab_size, self.config.decoder_vocab_size or self.config.vocab_size

    def position_encodings(self, half: str) -> Tensor:
        """Return one half's encodings in the foreign layout, first token first, [n, D]."""
        if self.sinusoids is not None:
            return self.sinusoids.table()
        table = self.taken.weights[f"model.{half}.embed_positions.weight"]
        return table[self.config.position_offset :]


@dataclass(frozen=True)
class ConfigOptions:
    """Fields that a plain state dict does not contain."""

    config: dict[str, Any] | str | None = HfArg(
        default=None,
        help="Fields of AiaynConfig that cannot be inferred from the weights, as YAML: "
        "'{encoder_attention_heads: 8, decoder_attention_heads: 8}'. Both are required.",
    )

    def fields(self) -> dict[str, Any]:
        """Return the fields; check that all are known, and that both numbers of heads are given."""
        fields = mapping_in("config", self.config)
        check_config_fields(fields, "config")
        for name in ("encoder_attention_heads", "decoder_attention_heads"):
            if name not in fields:
                raise ValueError(f"{name} cannot be inferred from the weights. Pass it in config.")
        return fields


def mapping_in(flag: str, given: dict[str, Any] | str | None) -> dict[str, Any]:
    """Return an option as a mapping, parsed from YAML if a user typed it."""
    return given if isinstance(given, dict) else parse_mapping(flag, given)


def read_foreign(
    system: str,
    table: NameTable,
    tensors: Mapping[str, Tensor],
    fields: Mapping[str, Any],
    positions: Tensor | None,
    **more: Any,
) -> ForeignModel:
    """Build a foreign model from its tensors and the fields of its configuration.

    Vocabulary sizes, tied matrices and the layout of positions are inferred from the tensors. So
    are numbers of layers, widths, biases and the type of the weights if they are not given.
    `positions` are the sinusoids, first token first, [n, D]; None if positions are learned. `more`
    are other fields of `ForeignModel`.
    """
    names = ("model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head")
    source, target, output = (table.get(tensors, f"{name}.weight") for name in names)
    fields = {
        **sizes_of(table, tensors),
        **fields,
        "vocab_size": source.size(0),
        "decoder_vocab_size": None if torch.equal(source, target) else target.size(0),
        "d_model": source.size(-1),
        "tie_word_embeddings": torch.equal(target, output),
    }
    sinusoids = None
    if positions is None:
        fields["position_type"] = "learned"
    else:
        sinusoids = recognise_sinusoids(positions)
        if sinusoids is None or len(sinusoids.order) != fields["d_model"]:
            raise ValueError(
                f"{system}: the table of positions must be as wide as the embeddings, and hold "
                "sinusoids of base 10000 or 10000^(D / (D - 2)), interleaved or in two halves. "
                "This model cannot compute others."
            )
        fields |= {"position_base": sinusoids.base, "position_offset": sinusoids.offset}
    config = AiaynConfig(**fields)
    taken = take_weights(table, tensors, config)
    more.setdefault("dtype", max(tensors.values(), key=Tensor.numel).dtype)
    return ForeignModel(system, config, taken, sinusoids, **more)


def convert(foreign: ForeignModel) -> AiaynForConditionalGeneration:
    """Convert a foreign model to ours, in the type of its weights and in evaluation mode."""
    weights, dtype = foreign.taken.weights, foreign.dtype
    if foreign.has_sample_deviation:  # a smaller type would round the new gains
        weights, dtype = fold_sample_deviation(weights), torch.float32
    with torch.device("meta"):  # the memory is filled once, tensor by tensor
        model = AiaynForConditionalGeneration(foreign.config).to(dtype)
    model.to_empty(device="cpu")
    model.tie_weights()
    for name, parameter in model.named_parameters():
        weight = weights[name]
        if foreign.sinusoids is not None:
            weight = reorder_residual({name: weight}, foreign.sinusoids.order)[name]
        parameter.data.copy_(weight)
    if foreign.generation_config is not None:
        model.generation_config = foreign.generation_config
    return model.eval()
