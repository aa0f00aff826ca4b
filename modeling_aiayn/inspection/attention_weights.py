"""Attention weights of a text, or of a text and its translation."""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..losses import shift_right
from ..tokenization import clean_text, replace_surrogates
from ..translation import Translator
from ..translation.segments.token_words import NO_TOKENS, Tokens, merge_words, tokens_of_ids
from ..translation.torch_engine import showing_weights

logger = logging.getLogger(__name__)

# For each kind of attention: the texts of its rows and columns, and their titles.
LAYOUTS = {
    "encoder": ("source", "source", "source", "source attended to"),
    "decoder": ("target", "inputs", "target predicted", "target attended to"),
    "cross": ("target", "source", "target predicted", "source attended to"),
}
KINDS = tuple(LAYOUTS)


@dataclass(frozen=True)
class AttentionChoice:
    """A choice among a model's layers and heads, from 0. None is the mean of all."""

    layer: int | None = None
    head: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse "mean", a layer such as "2", or a layer and a head such as "2,0"."""
        match = re.fullmatch(r"mean|(\d+)(?:,(\d+))?", text)
        if match is None:
            raise ValueError(f"An attention must be mean, LAYER or LAYER,HEAD, got {text!r}.")
        return cls(*(None if index is None else int(index) for index in match.groups()))

    @property
    def flag(self) -> str:
        """The text that `parse` reads as this choice."""
        chosen = [str(index) for index in (self.layer, self.head) if index is not None]
        return ",".join(chosen) or "mean"

    def check(self, layers: int, heads: int) -> None:
        """Check that a model with these numbers of layers and heads has the chosen ones."""
        for name, index, size in (("layer", self.layer, layers), ("head", self.head, heads)):
            if index is not None and not 0 <= index < size:
                raise ValueError(f"{name} must be in [0, {size}), got {index}.")

    def of(self, weights: Tensor) -> Tensor:
        """Select or average weights, [layers, H, T, S], to one map, [T, S]."""
        self.check(*weights.shape[:2])
        layers, heads = (
            slice(None) if index is None else [index] for index in (self.layer, self.head)
        )
        return weights[layers][:, heads].mean((0, 1))

    def __str__(self) -> str:
        layer, head = ("mean" if index is None else index for index in (self.layer, self.head))
        return f"layer {layer}, head {head}"


@dataclass(frozen=True)
class AttentionView:
    """One kind of attention, [layers, H, T, S], with labels of its queries and of its keys."""

    weights: Tensor
    rows: list[str]
    columns: list[str]
    row_title: str
    column_title: str


@dataclass(frozen=True)
class AttentionMaps:
    """The attention weights of every layer and head in one pass over a text.

    A row of the decoder is labeled with the token that it predicts, not the token that it reads:
    step t reads `inputs[t]`, the target shifted right (`<s>` first), and predicts `target[t]`. So
    the rows of `decoder` and `cross` are `target`, and the columns of `decoder` are `inputs`.
    """

    source: Tokens = NO_TOKENS  # the encoder's S input tokens; empty without an encoder
    target: Tokens = NO_TOKENS  # the T tokens that the decoder predicts; empty without a decoder
    inputs: Tokens = NO_TOKENS  # the T tokens that the decoder reads
    encoder: Tensor | None = None  # self-attention of the encoder, [layers, H, S, S]
    decoder: Tensor | None = None  # self-attention of the decoder, [layers, H, T, T]
    cross: Tensor | None = None  # attention of the decoder over the source, [layers, H, T, S]

    @property
    def kinds(self) -> list[str]:
        """The kinds of attention of this model."""
        return [kind for kind in KINDS if getattr(self, kind) is not None]

    def view(self, kind: str | None = None) -> AttentionView:
        """Return one kind of attention; None is "cross" if the model has it, else its only kind."""
        kind = kind or self.kinds[-1]
        if kind not in self.kinds:
            raise ValueError(
                f"kind must be {' or '.join(self.kinds)} for this model, got {kind!r}."
            )
        rows, columns, *titles = LAYOUTS[kind]
        labels = (getattr(self, text).tokens for text in (rows, columns))
        return AttentionView(getattr(self, kind), *labels, *titles)

    def merged(self) -> "AttentionMaps":
        """Return attention between words instead of sub-words; each row still sums to 1.

        Tokens outside words, such as `</s>`, stay as they are.
        """
        fields: dict[str, Any] = {}
        for kind in self.kinds:
            rows, columns = (getattr(self, text) for text in LAYOUTS[kind][:2])
            fields[kind] = merge_words(getattr(self, kind), rows, columns)
        source, target, inputs = self.source.merged(), self.target.merged(), self.inputs.merged()
        return AttentionMaps(source, target, inputs, **fields)


def _stacked(weights: Sequence[Tensor] | None) -> Tensor | None:
    """Stack the weights of one text, [1, H, T, S] per layer, to [layers, H, T, S] in float32."""
    return torch.cat(list(weights)).float().cpu() if weights else None


@torch.no_grad()
def attention_maps(
    translator: Translator,
    source: str,
    target: str | Sequence[int] | None = None,
    **search_options: Any,
) -> AttentionMaps:
    """Compute a translator's attention for one sentence pair, by one teacher-forced pass.

    Args:
        translator: A model and its tokenizers; of an ensemble, the first model is used.
        source: A sentence. A long one is truncated as for translation.
        target: Its translation, as text or as ids. None: the best hypothesis of a search.
        **search_options: Options of that search, as for `SearchOptions`.

    Raises:
        ValueError: A search option is invalid.
    """
    model = translator.model
    source_ids = translator.encode(source)
    if target is None:
        (best, *_) = next(translator.stream([source], translator.search_options(**search_options)))
        # Use the ids: encoding the text may give others. For an empty source, there are none.
        target = best.token_ids or [translator.target_tokenizer.eos_token_id]
    target_ids = translator.encode_target(target) if isinstance(target, str) else list(target)
    labels = torch.tensor([target_ids], device=model.device)  # [1, T]
    start, pad = model.config.decoder_start_token_id, model.config.pad_token_id
    with showing_weights(model):
        output = model.base_model(
            input_ids=torch.tensor([source_ids], device=model.device),
            decoder_input_ids=shift_right(labels, start, pad),
            output_attentions=True,
            use_cache=False,
        )
    target_tokens = tokens_of_ids(translator.target_tokenizer, target_ids)
    start_token = translator.target_tokenizer.convert_ids_to_tokens(start)
    return AttentionMaps(
        source=tokens_of_ids(translator.source_tokenizer, source_ids),
        target=target_tokens,
        inputs=target_tokens.shifted_right(start_token),
        encoder=_stacked(output.encoder_attentions),
        decoder=_stacked(output.decoder_attentions),
        cross=_stacked(output.cross_attentions),
    )


@torch.no_grad()
def text_attention_maps(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    max_length: int | None = None,
) -> AttentionMaps:
    """Compute the self-attention of a classifier, an encoder or a language model for one text.

    A language model reads all tokens but the last and predicts all but the first, as in training.
    A text of more than max_length tokens, by default the model's max_position_embeddings, is
    truncated before its `</s>`.

    Raises:
        ValueError: The text has too few tokens.
    """
    is_decoder = hasattr(model.base_model, "decoder")
    max_length = max_length or model.config.max_position_embeddings
    if is_decoder:  # like `complete`: keep spaces, and read </s> as four characters
        ids = tokenizer(replace_surrogates(text), split_special_tokens=True).input_ids
    else:
        ids = tokenizer(clean_text(text)).input_ids
    if len(ids) > max_length:
        logger.warning("The text was truncated from %d to %d tokens.", len(ids), max_length)
        is_ended = ids[-1] == tokenizer.eos_token_id
        ids = [*ids[: max_length - 1], ids[-1] if is_ended else ids[max_length - 1]]
    if len(ids) < 1 + is_decoder:
        raise ValueError(
            f"The text must have at least {1 + is_decoder} tokens, got {len(ids)} in {text!r}."
        )
    tokens = tokens_of_ids(tokenizer, ids)
    options = {"use_cache": False} if is_decoder else {}
    inputs = torch.tensor([ids[:-1] if is_decoder else ids], device=model.device)  # [1, S]
    with showing_weights(model):
        output = model.base_model(inputs, output_attentions=True, **options)
    weights = _stacked(output.attentions)
    if is_decoder:
        return AttentionMaps(target=tokens[1:], inputs=tokens[:-1], decoder=weights)
    return AttentionMaps(source=tokens, encoder=weights)
