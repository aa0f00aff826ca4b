"""The attention of the words of a translation to those of its source."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...tokenization import clean_text
from ..pools import BATCH_SIZE, batches_by_length
from .placement import units_of
from .token_words import words_of_tokens

# All attention of a batch is in memory: [heads, T, S] of each sentence and layer.
MAX_TOKENS = 1024


def word_attention(translator: Any, source: str, target: str) -> Tensor:
    """The attention of one pair, as `word_attentions` computes it."""
    return word_attentions(translator, [(source, target)])[0]


def word_attentions(translator: Any, pairs: Sequence[tuple[str, str]]) -> list[Tensor]:
    """The mean of all layers' and heads' cross-attention, by words and signs, and sharpened.

    Returns shares of the source's words, [target words, source words]. They are squared, so that
    most of the attention counts for more, and add up to 1, or 0 if a word has no tokens, as in a
    truncated sentence. translator is a Translator: of an ensemble, the first model is used, and of
    CTranslate2 the last layer.
    """
    sources = [translator.encode(source) for source, _ in pairs]
    targets = [translator.encode_target(target) for _, target in pairs]
    lengths = [max(len(a), len(b)) for a, b in zip(sources, targets, strict=True)]
    found: dict[int, Tensor] = {}
    for batch in batches_by_length(lengths, BATCH_SIZE, MAX_TOKENS):
        ids = [sources[index] for index in batch], [targets[index] for index in batch]
        for index, weights in zip(batch, translator.engine.attention(*ids), strict=True):
            source, target = pairs[index]
            columns = _membership(
                translator.source_tokenizer, source, sources[index], translator.source_text
            )
            rows = _membership(translator.target_tokenizer, target, targets[index], clean_text)
            shares = (rows @ weights @ columns.T).square()
            total = shares.sum(-1, keepdim=True).clamp_min(torch.finfo(shares.dtype).tiny)
            found[index] = shares / total
    return [found[index] for index in range(len(pairs))]


def _membership(
    tokenizer: Any, text: str, ids: Sequence[int], clean: Callable[[str], str]
) -> Tensor:
    """A matrix with 1 where a token is of a word or sign, [words, tokens]."""
    words = [clean(text[slice(*span)]) for span in units_of(text)]
    word_of = words_of_tokens(tokenizer, clean(text), words, ids)
    tokens = [[float(word == number) for word in word_of] for number in range(len(words))]
    for number in reversed(range(len(words) - 1)):  # the last word of a token has it
        tokens[number] = tokens[number] if any(tokens[number]) else tokens[number + 1]
    return torch.tensor(tokens).view(len(words), len(word_of))
