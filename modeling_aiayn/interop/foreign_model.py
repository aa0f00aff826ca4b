"""What an importer reads of another system: a model's numbers and weights, in its own layout."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..configuration_aiayn import AiaynConfig
from ..modeling_aiayn import AiaynForConditionalGeneration
from .layout import Sinusoids, fold_sample_deviation, recognise_sinusoids, reorder_residual
from .weight_names import NameTable, TakenWeights, take_weights

# What the embeddings, and what is called positions, say of a model.
DERIVED = (
    *("vocab_size", "decoder_vocab_size", "d_model", "tie_word_embeddings"),
    *("position_type", "position_base", "position_offset", "max_position_embeddings"),
)


@dataclass(frozen=True)
class ForeignModel:
    """A model of another system.

    Args:
        system: The system's name.
        config: Our configuration of it.
        taken: Its weights under our names, laid out as in the source.
        sinusoids: How its sinusoids are laid out; None where positions are learned.
        positions: Its sinusoids from the first token's on, [n, D]; None where positions are
            learned.
        has_sample_deviation: Whether it normalises by the sample's standard deviation.
        dtype: What its weights are kept in.
        generation_config: How it decodes. None: as ours does.
        source_tokenizer: Its tokenizer of the source, where it has one.
        target_tokenizer: Its tokenizer of the target, where that is another.
        peer: The model in its own class, where that is at hand.
    """

    system: str
    config: AiaynConfig
    taken: TakenWeights
    sinusoids: Sinusoids | None
    positions: Tensor | None = field(default=None, repr=False)
    has_sample_deviation: bool = False
    dtype: torch.dtype = torch.float32
    generation_config: GenerationConfig | None = None
    source_tokenizer: PreTrainedTokenizerBase | None = None
    target_tokenizer: PreTrainedTokenizerBase | None = None
    peer: PreTrainedModel | None = field(default=None, repr=False)

    def positions_of(self, half: str) -> Tensor:
        """The encodings that a half adds, from the first token's on, in the foreign layout.

        Args:
            half: "encoder" or "decoder".

        Returns:
            Encodings, [n, D].
        """
        if self.positions is not None:
            return self.positions
        table = self.taken.weights[f"model.{half}.embed_positions.weight"]
        return table[self.config.position_offset :]


def refuse_derived(fields: Mapping[str, Any]) -> None:
    """Refuse fields that the tensors tell.

    Args:
        fields: What somebody says of the model.

    Raises:
        ValueError: There is one.
    """
    for name in DERIVED:
        if name in fields:
            raise ValueError(f"{name} is read off the tensors: do not give it.")


def read_foreign(
    system: str,
    table: NameTable,
    tensors: Mapping[str, Tensor],
    fields: Mapping[str, Any],
    positions: Tensor | None,
    **more: Any,
) -> ForeignModel:
    """A foreign model from its tensors, and what its configuration says of it.

    Vocabularies, what is tied, and how positions are laid out, its tensors tell.

    Args:
        system: The system's name.
        table: What it calls its tensors.
        tensors: All of them.
        fields: Fields of our configuration.
        positions: Its sinusoids from the first token's on, [n, D]. None: its tables are learned.
        **more: Other fields of `ForeignModel`.

    Returns:
        The model.

    Raises:
        ValueError: A tensor is missing, has another shape or no place, or the positions are no
            sinusoids.
    """
    sinusoids = None
    fields = {**fields, **_vocabulary_fields(table, tensors)}
    if positions is not None and (positions.dim() != 2 or positions.size(1) != fields["d_model"]):
        raise ValueError(
            f"{system}: positions must be a table as wide as the embeddings, {fields['d_model']}, "
            f"got shape {tuple(positions.shape)}."
        )
    if fields.get("eos_token_id", 0) is None:
        raise ValueError(f"{system}: eos_token_id must be a token's: sentences end in it.")
    if positions is None:
        fields["position_type"] = "learned"
    else:
        sinusoids = recognise_sinusoids(positions)
        if sinusoids is None:
            raise ValueError(
                f"{system}: the positions are no sinusoids that this model has, of base 10000 or "
                "10000^(D / (D - 2)), interleaved or in halves."
            )
        fields |= {"position_base": sinusoids.base, "position_offset": sinusoids.offset}
    config = AiaynConfig(**fields)
    taken = take_weights(table, tensors, config)
    return ForeignModel(system, config, taken, sinusoids, positions, **more)


def _vocabulary_fields(table: NameTable, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The vocabularies' sizes, and which of the three matrices are one, by their entries."""
    source, target, output = (
        table.need(tensors, f"{module}.weight")
        for module in ("model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head")
    )
    for module, matrix in (("encoder", source), ("decoder", target)):
        if matrix.dim() != 2:
            name = table.described(f"model.{module}.embed_tokens.weight", tensors)
            raise ValueError(f"{name} must be a matrix, got shape {tuple(matrix.shape)}.")
    is_shared = torch.equal(source, target)
    return {
        "vocab_size": source.size(0),
        "decoder_vocab_size": None if is_shared else target.size(0),
        "d_model": source.size(-1),
        "tie_word_embeddings": torch.equal(target, output),
    }


def convert(foreign: ForeignModel) -> AiaynForConditionalGeneration:
    """The foreign model as ours, in float32.

    Args:
        foreign: The model.

    Returns:
        Ours, in evaluation mode.
    """
    weights = foreign.taken.weights
    if foreign.has_sample_deviation:
        weights = fold_sample_deviation(weights)
    if foreign.sinusoids is not None:
        weights = reorder_residual(weights, foreign.sinusoids.order)
    model = AiaynForConditionalGeneration(foreign.config)
    model.load_state_dict(weights)
    if foreign.generation_config is not None:
        model.generation_config = foreign.generation_config
    return model.eval()
