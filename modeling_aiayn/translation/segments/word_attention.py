"""The attention of the words of a translation to those of its source."""

from typing import Any

import torch
from torch import Tensor

from ...tokenization import clean_text
from .placement import units_of
from .token_words import words_of_tokens


def word_attention(translator: Any, source: str, target: str) -> Tensor:
    """The mean of all layers' and heads' cross-attention, by words and signs, and sharpened.

    Returns shares of the source's words, [target words, source words]. They are squared, so that
    most of the attention counts for more, and add up to 1, or 0 if a word has no tokens, as in a
    truncated sentence. translator is a Translator: of an ensemble, the first model is used, and of
    CTranslate2 the last layer.
    """
    source_words, target_words = (
        [text[slice(*span)] for span in units_of(text)] for text in (source, target)
    )
    source_words = [translator.source_text(word) for word in source_words]
    source, target = translator.source_text(source), clean_text(target)
    source_ids, target_ids = translator.encode(source), translator.encode_target(target)
    weights = translator.engine.attention(source_ids, target_ids)  # [T, S]
    rows, columns = (
        _membership(words_of_tokens(tokenizer, text, words, ids), len(words))
        for tokenizer, text, words, ids in (
            (translator.target_tokenizer, target, target_words, target_ids),
            (translator.source_tokenizer, source, source_words, source_ids),
        )
    )
    shares = (rows @ weights @ columns.T).square()
    return shares / shares.sum(-1, keepdim=True).clamp_min(torch.finfo(shares.dtype).tiny)


def _membership(word_of: list[int | None], words: int) -> Tensor:
    """A matrix with 1 where a token is of a word, [words, tokens]."""
    matrix = torch.zeros(words, len(word_of))
    for token, word in enumerate(word_of):
        if word is not None:
            matrix[word, token] = 1.0
    return matrix
