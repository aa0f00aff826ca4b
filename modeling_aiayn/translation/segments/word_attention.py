"""The attention of the words of a translation to the words of its source."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...tokenization import clean_text
from ..pools import BATCH_SIZE, batches_by_length
from .placement import units_of
from .token_words import words_of_tokens

# Limits memory: all attention of a batch, [heads, T, S] of each sentence and layer, is stored.
MAX_TOKENS = 1024


def word_attention(translator: Any, source: str, target: str) -> Tensor:
    """Compute the attention of one pair: see `word_attentions`."""
    return word_attentions(translator, [(source, target)])[0]


def word_attentions(translator: Any, pairs: Sequence[tuple[str, str]]) -> list[Tensor]:
    """Average the cross-attention of all layers and heads, merge tokens to words, and sharpen it.

    Returns the share of each source word, [target words, source words]. Shares are squared, which
    emphasizes large ones, and normalized: a row sums to 1, or to 0 if a word has no tokens, as in a
    truncated sentence. translator is a Translator. An ensemble uses its first model, and
    CTranslate2 its last layer.
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
    """Make a matrix with 1 where a token belongs to a word, [words, tokens]."""
    cleaned, words, place = clean(text), [], 0
    for span in units_of(text):
        word = clean(text[slice(*span)])
        start = cleaned.find(word, place)
        if start < 0:  # cleaning the whole text joined its accents to letters
            words.append("")
            continue
        words.append(word)
        place = start + len(word)
    word_of = words_of_tokens(tokenizer, cleaned, words, ids)
    tokens = [[float(word == number) for word in word_of] for number in range(len(words))]
    for number in reversed(range(len(words) - 1)):  # else use the next word's tokens
        tokens[number] = tokens[number] if any(tokens[number]) else tokens[number + 1]
    return torch.tensor(tokens).view(len(words), len(word_of))
