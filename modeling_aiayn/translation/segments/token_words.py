"""The words that the tokens of a text belong to."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ...tokenization import decode_lines, hidden_ids


@dataclass(frozen=True)
class Tokens:
    """The tokens of a text, as the vocabulary spells them, and its words."""

    tokens: list[str]
    word_of: list[int | None]  # None for a token outside words, such as `</s>`
    words: list[str]

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, part: slice) -> "Tokens":
        """Return some of the tokens, with all of the words."""
        return Tokens(self.tokens[part], self.word_of[part], self.words)

    def shifted_right(self, start_token: str) -> "Tokens":
        """Return a start token and all tokens but the last, as the decoder reads them."""
        return Tokens([start_token, *self.tokens[:-1]], [None, *self.word_of[:-1]], self.words)

    @property
    def groups(self) -> list[list[int]]:
        """Return the token indices of each word; a token outside words is a separate group."""
        groups: dict[tuple[int | None, int], list[int]] = {}
        for index, word in enumerate(self.word_of):
            groups.setdefault((word, index if word is None else 0), []).append(index)
        return list(groups.values())

    @property
    def membership(self) -> Tensor:
        """Make a matrix with 1 where a token is in a group, [groups, S]."""
        matrix = torch.zeros(len(self.groups), len(self.tokens))
        for row, group in enumerate(self.groups):
            matrix[row, group] = 1.0
        return matrix

    def merged(self) -> "Tokens":
        """Return the same text with one token for each word."""
        firsts = [(self.tokens[first], self.word_of[first]) for first, *_ in self.groups]
        names = [token if word is None else self.words[word] for token, word in firsts]
        return Tokens(names, [word for _, word in firsts], self.words)


NO_TOKENS = Tokens([], [], [])


def merge_words(weights: Tensor, rows: Tokens, columns: Tokens) -> Tensor:
    """Merge attention between tokens, [..., T, S], to attention between words.

    The columns of a word are added and its rows averaged, so each row still sums to 1.
    """
    averaging = rows.membership / rows.membership.sum(-1, keepdim=True)
    return averaging @ weights @ columns.membership.T


def _decoded_prefixes(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """Decode the first id, the first two ids, and so on."""
    return decode_lines(tokenizer, (ids[: end + 1] for end in range(len(ids))))


def tokens_of_ids(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> Tokens:
    """Find the words of ids that a model generated, without their original text.

    Words are separated by spaces in the decoded text. A token belongs to the last word of the text
    decoded up to it; a token that is only a space belongs to the next word. Start, end, padding and
    language tags belong to no word.
    """
    silent = hidden_ids(tokenizer)
    prefixes = _decoded_prefixes(tokenizer, ids)
    words = prefixes[-1].split() if prefixes else []
    number = len(words) - 1
    word_of: list[int | None] = [None] * len(ids)
    # From right to left, because a later token can join two words: "Hund ." becomes "Hund.".
    for index in reversed(range(len(ids))):
        if ids[index] not in silent:
            text = prefixes[index]
            is_space = text[-1:].isspace() or not text
            number = min(number, len(text.split()) - (0 if is_space else 1))
            word_of[index] = number if 0 <= number < len(words) else None
    return Tokens(tokenizer.convert_ids_to_tokens(list(ids)), word_of, words)


def words_of_tokens(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    words: Sequence[str],
    ids: Sequence[int] | None = None,
) -> list[int | None]:
    """Find the index of each token's word; None for `</s>`, tags and tokens outside the words.

    A token that is only a space belongs to the next word, as in `tokens_of_ids`; with a slow
    tokenizer, such as an imported model's, it has no word. Words must be in the text's order;
    letter case does not matter. ids are the ids of the text, perhaps truncated.

    Raises:
        ValueError: The text does not contain the words in this order.
    """
    word_at: list[int | None] = [None] * (len(text) + 1)
    position = 0
    for number, word in enumerate(words):
        match = re.compile(re.escape(word), re.IGNORECASE).search(text, position)
        if match is None:
            raise ValueError(
                f"The text must contain all words in their order, but {word!r} is not in "
                f"{text!r} after the words before it."
            )
        start, position = match.span()
        word_at[start:position] = [number] * (position - start)
    hidden = hidden_ids(tokenizer)
    ids = tokenizer(text).input_ids if ids is None else ids
    inner = [token for token in ids if token not in hidden]
    places = _places_by_offsets(tokenizer, text, inner, hidden)
    if places is None:
        places = _places_by_decoding(tokenizer, text, inner)
    numbers = [None if place is None else word_at[place] for place in places]
    for index in reversed(range(len(places) - 1)):
        place = places[index]
        if place is not None and text[place : place + 1].isspace():
            numbers[index] = numbers[index + 1]
    following = iter(numbers)
    return [None if token in hidden else next(following) for token in ids]


def _places_by_offsets(
    tokenizer: PreTrainedTokenizerBase, text: str, ids: list[int], hidden: set[int | None]
) -> list[int | None] | None:
    """Find the position of each token's last character in the text; None without offsets.

    Special tokens in the text may have been encoded as ordinary text.
    """
    options = {"return_offsets_mapping": True, "add_special_tokens": False}
    for is_text in (True, False) if tokenizer.is_fast else ():
        encoded = tokenizer(text, split_special_tokens=is_text, **options)
        pairs = zip(encoded.input_ids, encoded["offset_mapping"], strict=True)
        known = [(token, span) for token, span in pairs if token not in hidden][: len(ids)]
        if [token for token, _ in known] == ids:
            return [max(end - 1, start) for _, (start, end) in known]
    return None


def _places_by_decoding(
    tokenizer: PreTrainedTokenizerBase, text: str, ids: list[int]
) -> list[int | None]:
    """Find the positions by matching decoded tokens with the text; None for tokens without text."""
    if not ids:
        return []
    prefixes = _decoded_prefixes(tokenizer, ids)
    # The matcher takes quadratic time, so drop text that was truncated.
    text = text[: 2 * len(prefixes[-1]) + 100]
    matcher = SequenceMatcher(None, prefixes[-1], text, autojunk=False)
    place_of = {
        block.a + offset: block.b + offset
        for block in matcher.get_matching_blocks()
        for offset in range(block.size)
    }
    places: list[int | None] = []
    end, last = 0, -1
    for prefix in prefixes:
        before, end = end, max(end, len(prefix.rstrip()))
        if end == before:
            places.append(None)
            continue
        # An unknown token does not match the text. It gets the next character that is not a space.
        following = (place for place in range(last + 1, len(text)) if not text[place].isspace())
        last = place_of.get(end - 1, next(following, last))
        places.append(last)
    return places
