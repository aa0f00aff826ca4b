"""What the model looks at: the attention weights of a text, or of a text and its translation."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..losses import shift_right
from ..tokenization import clean_text
from ..translation import Translator
from ..translation.options import SearchOptions
from .token_words import Tokens, merge_words, tokens_of_ids

logger = logging.getLogger(__name__)

KINDS = ("encoder", "decoder", "cross")


@dataclass(frozen=True)
class AttentionView:
    """One kind of attention, with what its rows and columns are.

    Args:
        kind: "encoder", "decoder" or "cross".
        weights: Weights, [layers, H, T, S]; each row sums to 1.
        rows: Names of the T that look.
        columns: Names of the S that are looked at.
        row_title: What a row is.
        column_title: What a column is.
    """

    kind: str
    weights: Tensor
    rows: list[str]
    columns: list[str]
    row_title: str
    column_title: str


@dataclass(frozen=True)
class AttentionMaps:
    """The weights of every layer and head in one pass over a text.

    A row of the decoder is named by what it predicts, not by what it reads: step t reads `inputs`
    t, which is the target one token earlier (`<s>` first), and predicts `target` t. So rows of
    `decoder` and `cross` are `target`, and columns of `decoder` are `inputs`.

    Args:
        source: What the encoder reads, S tokens; None without an encoder.
        target: What the decoder predicts, T tokens; None without a decoder.
        inputs: What the decoder reads, T tokens; None without a decoder.
        encoder: Self-attention of the encoder, [layers, H, S, S]; None without one.
        decoder: Self-attention of the decoder, [layers, H, T, T]; None without one.
        cross: Attention of the decoder over the source, [layers, H, T, S]; None without one.
    """

    source: Tokens | None = None
    target: Tokens | None = None
    inputs: Tokens | None = None
    encoder: Tensor | None = None
    decoder: Tensor | None = None
    cross: Tensor | None = None

    @property
    def source_tokens(self) -> list[str]:
        """What the encoder reads, S tokens."""
        return self.source.tokens if self.source else []

    @property
    def target_tokens(self) -> list[str]:
        """What the decoder predicts, T tokens."""
        return self.target.tokens if self.target else []

    @property
    def input_tokens(self) -> list[str]:
        """What the decoder reads, T tokens."""
        return self.inputs.tokens if self.inputs else []

    @property
    def kinds(self) -> list[str]:
        """The kinds of attention that there are."""
        return [kind for kind in KINDS if getattr(self, kind) is not None]

    def view(self, kind: str | None = None) -> AttentionView:
        """One kind of attention.

        Args:
            kind: "encoder", "decoder" or "cross". None: over the source where there is one, else
                the only one there is.

        Returns:
            Its weights and labels.

        Raises:
            ValueError: The model has no such attention.
        """
        kind = kind or self.kinds[-1]
        if kind not in self.kinds:
            raise ValueError(f"kind must be {' or '.join(self.kinds)} here, got {kind!r}.")
        rows, row_title = (
            (self.source_tokens, "source")
            if kind == "encoder"
            else (self.target_tokens, "target predicted")
        )
        columns, column_title = (
            (self.input_tokens, "target looked at")
            if kind == "decoder"
            else (self.source_tokens, "source looked at")
        )
        return AttentionView(kind, getattr(self, kind), rows, columns, row_title, column_title)

    def merged(self) -> "AttentionMaps":
        """Attention between words in the place of sub-words.

        Columns of one word are added up and its rows averaged, so that rows still sum to 1. What is
        in no word, as `</s>`, stays as it is.

        Returns:
            Maps whose tokens are words.
        """

        def merge(
            weights: Tensor | None, rows: Tokens | None, columns: Tokens | None
        ) -> Tensor | None:
            if weights is None or rows is None or columns is None:
                return None
            return merge_words(weights, rows, columns)

        return AttentionMaps(
            source=self.source and self.source.merged(),
            target=self.target and self.target.merged(),
            inputs=self.inputs and self.inputs.merged(),
            encoder=merge(self.encoder, self.source, self.source),
            decoder=merge(self.decoder, self.target, self.inputs),
            cross=merge(self.cross, self.target, self.source),
        )


@contextmanager
def showing_weights(model: PreTrainedModel) -> Iterator[None]:
    """Within it the model computes weights, and drops nothing; after it all is as it was.

    Args:
        model: Any of our models, in training or not, with any attention implementation.
    """
    implementation = model.config._attn_implementation
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        # Other implementations have no weights to show.
        model.set_attn_implementation("eager")
        yield
    finally:
        model.set_attn_implementation(implementation)
        for module, mode in modes:
            module.training = mode


def _stacked(weights: Sequence[Tensor] | None) -> Tensor | None:
    """Weights of one text, [1, H, T, S] by layers, as [layers, H, T, S] in float32."""
    return torch.cat(list(weights)).float().cpu() if weights else None


def _target_ids(
    translator: Translator,
    source: str,
    target: str | Sequence[int] | None,
    search_options: dict[str, Any],
) -> list[int]:
    """Ids of the target, or of the winning beam: its text might be cut into other tokens."""
    if target is None:
        best = next(translator.stream([source], SearchOptions(**search_options)))[0]
        # An empty source has an empty translation, without a token.
        return list(best.token_ids) or [translator.target_tokenizer.eos_token_id]
    if search_options:
        raise ValueError(f"There is no search with a target: {', '.join(search_options)}.")
    if not isinstance(target, str):
        return list(target)
    ids: list[int] = translator.target_tokenizer(clean_text(target)).input_ids
    return ids


@torch.no_grad()
def attention_maps(
    translator: Translator,
    source: str,
    target: str | Sequence[int] | None = None,
    **search_options: Any,
) -> AttentionMaps:
    """Where a translator looks while it says a translation, by one teacher-forced pass.

    Args:
        translator: A model and its tokenizers, left as they were. Of several models that vote the
            first is looked into.
        source: A sentence; like any that is translated it is cut where it is too long.
        target: A translation of it, as text or as ids. None: the translator's own, the tokens of
            the winning beam themselves.
        **search_options: How to search for it; as for `SearchOptions`.

    Returns:
        Self-attention of encoder and decoder, and attention over the source.

    Raises:
        ValueError: There are search options beside a target, or one is none.
    """
    model = translator.model
    source_ids = translator.encode(source)
    target_ids = _target_ids(translator, source, target, search_options)
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
        inputs=Tokens(
            [start_token, *target_tokens.tokens[:-1]],
            [None, *target_tokens.word_of[:-1]],
            target_tokens.words,
        ),
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
    """Where a classifier, an encoder or a language model looks in a text.

    A language model reads all tokens but the last and predicts all but the first, as in training.

    Args:
        model: A model of one half, left as it was.
        tokenizer: Its tokenizer.
        text: The text.
        max_length: Tokens that are looked at, at most; the end of a longer text is cut off
            before its `</s>`. None: as many as the model was trained on.

    Returns:
        Self-attention: `encoder` of a classifier or encoder, `decoder` of a language model.

    Raises:
        ValueError: The model has two halves, or a language model's text fewer than two tokens.
    """
    is_decoder, is_encoder = (hasattr(model.base_model, half) for half in ("decoder", "encoder"))
    if is_decoder == is_encoder:
        raise ValueError(
            "text_attention_maps takes a model of one half, a classifier, an encoder or a language "
            f"model, got {type(model).__name__}. For a translator there is attention_maps."
        )
    max_length = max_length or model.config.max_position_embeddings
    ids = tokenizer(clean_text(text)).input_ids
    if len(ids) > max_length:
        logger.warning("The text: cut from %d to %d tokens.", len(ids), max_length)
        is_ended = ids[-1] == tokenizer.eos_token_id
        ids = [*ids[: max_length - 1], ids[-1] if is_ended else ids[max_length - 1]]
    if len(ids) < 1 + is_decoder:
        raise ValueError(f"There must be a token to look at, got {len(ids)} in {text!r}.")
    tokens = tokens_of_ids(tokenizer, ids)
    read = ids[:-1] if is_decoder else ids
    options = {"use_cache": False} if is_decoder else {}
    with showing_weights(model):
        output = model.base_model(
            torch.tensor([read], device=model.device), output_attentions=True, **options
        )
    weights = _stacked(output.attentions)
    if is_decoder:
        return AttentionMaps(target=tokens[1:], inputs=tokens[:-1], decoder=weights)
    return AttentionMaps(source=tokens, encoder=weights)
