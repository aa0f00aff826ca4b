"""Which words the tokens of a text are parts of."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..tokenization import decode_lines


@dataclass(frozen=True)
class Tokens:
    """Tokens in their order, and the words that they are parts of.

    Args:
        tokens: The tokens, S of them, as the vocabulary writes them.
        word_of: For each token, which of words it is a part of; None: of none, as `</s>` is.
        words: The words.
    """

    tokens: list[str]
    word_of: list[int | None]
    words: list[str]

    def __getitem__(self, part: slice) -> "Tokens":
        """Some of the tokens, with all of the words."""
        return Tokens(self.tokens[part], self.word_of[part], self.words)

    @property
    def groups(self) -> list[list[int]]:
        """Numbers of the tokens of each word, in the order of the text; others are by themselves.

        A word of which no token is here has no group.
        """
        groups: dict[tuple[int | None, int], list[int]] = {}
        for index, word in enumerate(self.word_of):
            groups.setdefault((word, index if word is None else 0), []).append(index)
        return list(groups.values())

    @property
    def membership(self) -> Tensor:
        """1 where a token is in a group, [groups, S]."""
        groups = self.groups
        matrix = torch.zeros(len(groups), len(self.tokens))
        for row, group in enumerate(groups):
            matrix[row, group] = 1.0
        return matrix

    def merged(self) -> "Tokens":
        """The words, each a token of its own."""
        names, numbers = [], []
        for first, *_ in self.groups:
            word = self.word_of[first]
            names.append(self.tokens[first] if word is None else self.words[word])
            numbers.append(word)
        return Tokens(names, numbers, self.words)


def merge_words(weights: Tensor, rows: Tokens, columns: Tokens) -> Tensor:
    """Attention between words: columns of a word are added up, rows of a word averaged.

    Each row sums to 1 as before.

    Args:
        weights: Attention between tokens, [..., T, S].
        rows: The tokens that look, T.
        columns: The tokens that are looked at, S.

    Returns:
        Attention between words, [..., groups of rows, groups of columns].
    """
    averaging = rows.membership / rows.membership.sum(-1, keepdim=True)
    return averaging @ weights @ columns.membership.T


def tokens_of_ids(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> Tokens:
    """Tokens and words of ids, which no text need give: a model has written them.

    A word is what stands between blanks in the decoded text. A token is in the word with which the
    text decoded up to it ends; one that is nothing but a blank is in the word after it. Start, end
    and padding are in none.

    Args:
        tokenizer: Any tokenizer.
        ids: The ids.

    Returns:
        The tokens.
    """
    silent = {tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id}
    beginnings = decode_lines(tokenizer, (ids[: end + 1] for end in range(len(ids))))
    words = beginnings[-1].split() if beginnings else []
    number = len(words) - 1
    word_of: list[int | None] = [None] * len(ids)
    # From the right: what closes up to the word before it ("Hund ." to "Hund.") says so only late.
    for index in reversed(range(len(ids))):
        if ids[index] not in silent:
            text = beginnings[index]
            is_blank = text[-1:].isspace() or not text
            number = min(number, len(text.split()) - (0 if is_blank else 1))
            word_of[index] = number if 0 <= number < len(words) else None
    return Tokens(tokenizer.convert_ids_to_tokens(list(ids)), word_of, words)
