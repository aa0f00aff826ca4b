"""The attention of the words of a translation to those of its source."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from ..inspection.alignment import maps_with_words
from ..inspection.token_words import Tokens
from ..translation import Translator
from .document import DocumentLines
from .formats import FORMATS
from .placement import units_of


def word_attention(translator: Translator, source: str, target: str) -> Tensor:
    """The mean of all layers' and heads' cross-attention, by words and signs, and sharpened.

    Returns shares of the source's words, [target words, source words]. They are squared, so that
    most of the attention counts for more, and add up to 1, or 0 if a word has no tokens, as in a
    truncated sentence. Of an ensemble, the first model is used.
    """
    words = [[text[slice(*span)] for span in units_of(text)] for text in (source, target)]
    maps = maps_with_words(translator, source, target, (words[0], words[1]))
    weights = maps.view("cross").weights.mean((0, 1))  # [T, S]
    rows, columns = _membership(maps.target), _membership(maps.source)
    shares = (rows @ weights.float() @ columns.T).square()
    return shares / shares.sum(-1, keepdim=True).clamp_min(torch.finfo(shares.dtype).tiny)


def _membership(tokens: Tokens) -> Tensor:
    """A matrix with 1 where a token is of a word, [words, tokens]."""
    matrix = torch.zeros(len(tokens.words), len(tokens))
    for token, word in enumerate(tokens.word_of):
        if word is not None:
            matrix[word, token] = 1.0
    return matrix


def document_lines(
    translator: Translator,
    lines: Iterable[str],
    format_name: str,
    language: str,
    prepare: Callable[[str], str],
) -> DocumentLines:
    """The sentences of a text that a translator will translate; prepare changes each for it."""
    FORMATS[format_name].check_packages()
    if FORMATS[format_name].has_markup:
        _ = translator.model  # exported models raise an error here

    def attention(source: str, target: str) -> Tensor:
        return word_attention(translator, prepare(source), target)

    return DocumentLines(lines, format_name, language, attention)
