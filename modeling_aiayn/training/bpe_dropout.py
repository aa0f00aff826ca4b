"""BPE-dropout: training texts whose words are segmented in another way in each epoch.

Provilkov et al. 2020, BPE-Dropout (arXiv:1910.13267). At each step of byte-pair encoding (section
5.1), each possible merge is skipped with a probability. Rare words then share pieces with frequent
ones, and a model sees more of its vocabulary in small data.

Departs from that paper: each distinct word has VARIANTS random segmentations, which are drawn once,
and each occurrence takes one of them at random. So an epoch costs next to nothing.
"""

import json
import math
import sys
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from .batches import Lengths, token_lengths

# Random segmentations of each word.
VARIANTS = 16
# Columns that the collator makes of ids.
MADE_OF_IDS = ("attention_mask", "token_type_ids", "decoder_input_ids")
# Sentences that are compared with the tokenizer's own ids.
COMPARED = 1000


class Segmenter:
    """Segments words by the merges of a BPE tokenizer, and skips merges at random.

    Args:
        tokenizer: A fast tokenizer with a BPE model.

    Raises:
        ValueError: The tokenizer is of another kind.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        model = json.loads(self._backend.to_str())["model"] if self._backend else {}
        if model.get("type") != "BPE":
            raise ValueError(
                f"bpe_dropout needs a BPE tokenizer, got {model.get('type', 'a slow tokenizer')}. "
                "Leave bpe_dropout out, or train with --vocabulary bpe."
            )
        self._ids: dict[str, int] = model["vocab"]
        self._unknown = self._ids.get(model["unk_token"], 0)
        self._ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}

    def words(self, text: str) -> list[str]:
        """The words of a text: pieces that no merge crosses."""
        normalizer, splitter = self._backend.normalizer, self._backend.pre_tokenizer
        text = text if normalizer is None else normalizer.normalize_str(text)
        return [text] if splitter is None else [word for word, _ in splitter.pre_tokenize_str(text)]

    def segment(self, word: str, dropout: float, generator: np.random.Generator) -> list[int]:
        """Algorithm 1 of the paper: the ids of a word, with each merge skipped by chance."""
        pieces = list(word)
        while len(pieces) > 1:
            skipped = generator.random(len(pieces) - 1) < dropout
            ranked = (
                (self._ranks[pair], place)
                for place, pair in enumerate(pairwise(pieces))
                if pair in self._ranks and not skipped[place]
            )
            best = min(ranked, default=None)
            if best is None:
                break
            place = best[1]
            pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
        return [index for piece in pieces for index in self._ids_of(piece)]

    def _ids_of(self, piece: str) -> list[int]:
        """The id of a piece; a character that is not in the vocabulary is written as its bytes."""
        if piece in self._ids:
            return [self._ids[piece]]
        return [self._ids.get(f"<0x{byte:02X}>", self._unknown) for byte in piece.encode()]


class _Texts:
    """The words of all texts of a column, and random segmentations of each word.

    Texts are cut to max_length tokens.
    """

    def __init__(
        self,
        texts: Iterable[str],
        tokenizer: PreTrainedTokenizerBase,
        dropout: float,
        generator: np.random.Generator,
        max_length: int,
    ) -> None:
        self.max_length = max_length
        segmenter = Segmenter(tokenizer)
        numbers: dict[str, int] = {}
        words, starts = [], [0]
        for text in texts:
            words += [numbers.setdefault(word, len(numbers)) for word in segmenter.words(text)]
            starts.append(len(words))
        self.words, self.starts = np.array(words, np.int64), np.array(starts, np.int64)
        self.eos = tokenizer.eos_token_id
        drawn = [
            segmenter.segment(word, dropout, generator)
            for word in tqdm(numbers, desc="BPE-dropout", unit="word")
            for _ in range(VARIANTS)
        ]
        self.segment_lengths = np.array([len(ids) for ids in drawn], np.int64)
        self.segment_starts = np.concatenate([[0], self.segment_lengths.cumsum()])
        self.ids = np.array([index for ids in drawn for index in ids], np.int32)

    def choice(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """A random segmentation for each word."""
        return self.words * VARIANTS + generator.integers(VARIANTS, size=len(self.words))

    def lengths(self, choice: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tokens of each text, `</s>` included."""
        ends = np.concatenate([[0], self.segment_lengths[choice].cumsum()])[self.starts]
        return (np.diff(ends) + 1).clip(max=self.max_length)

    def ids_of(self, choice: NDArray[np.int64], row: int) -> list[int]:
        """The ids of a text, `</s>` last."""
        chosen = choice[self.starts[row] : self.starts[row + 1]]
        starts, ends = self.segment_starts[chosen], self.segment_starts[chosen + 1]
        parts = (self.ids[start:end] for start, end in zip(starts, ends, strict=True))
        ids = np.concatenate([*parts, [self.eos]])
        if len(ids) > self.max_length:
            ids = np.append(ids[: self.max_length - 1], self.eos)
        return [*ids.tolist()]


class _Epoch(NamedTuple):
    """The segmentations of an epoch.

    choices has those of each column's words. is_kept, [examples], says which examples keep their
    own ids. lengths are [examples, columns], in tokens.
    """

    choices: list[NDArray[np.int64]]
    is_kept: NDArray[np.bool_]
    lengths: Lengths


class ResegmentedExamples:
    """Training examples for a DataLoader; index e * len(self) + i is example i in epoch e.

    Texts are cut to the length of the longest one in the data, because the data may have been cut
    to it. A pair is not cut: one that would become too long keeps its own ids in that epoch.

    Args:
        examples: Encoded examples, with their texts. Columns that the collator makes
            again from the new ids, such as attention_mask, are dropped.
        columns: Each column of ids, with the column of its texts and their tokenizer.
        dropout: Probability of skipping a merge.
        seed: Seed of all segmentations.
        max_tokens: Most tokens of a pair, source plus target.
        max_length: Most tokens of each side of a pair.

    Raises:
        ValueError: There are no texts, or a tokenizer is not BPE, or its ids are not those of its
            merges; see `check_segmentation`.
    """

    def __init__(
        self,
        examples: Dataset,
        columns: dict[str, tuple[str, PreTrainedTokenizerBase]],
        dropout: float,
        seed: int,
        max_tokens: float = math.inf,
        max_length: float = math.inf,
    ) -> None:
        self.seed, self.max_tokens, self.max_length = seed, max_tokens, max_length
        self._own_lengths = token_lengths(examples, tuple(columns))
        longest = int(self._own_lengths.max()) if len(columns) == 1 else sys.maxsize
        generator = np.random.default_rng(seed)
        self._texts = {}
        for column, (text_column, tokenizer) in columns.items():
            texts = _column(examples, text_column)
            check_segmentation(texts[:COMPARED], examples[:COMPARED][column], tokenizer)
            self._texts[column] = _Texts(texts, tokenizer, dropout, generator, longest)
        replaced = {*MADE_OF_IDS, *(name for name, _ in columns.values())}
        self._examples = examples.remove_columns(
            [name for name in examples.column_names if name in replaced]
        )
        self._epochs: dict[int, _Epoch] = {}

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        number, row = divmod(index, len(self))
        epoch, example = self._epoch(number), self._examples[row]
        if not epoch.is_kept[row]:
            choices = zip(self._texts.items(), epoch.choices, strict=True)
            example |= {name: texts.ids_of(choice, row) for (name, texts), choice in choices}
        return example

    def lengths(self, epoch: int) -> Lengths:
        """The lengths of all examples in an epoch, in tokens, [examples, columns]."""
        return self._epoch(epoch).lengths

    def _epoch(self, number: int) -> _Epoch:
        """The segmentations of an epoch; those of the last two epochs are kept."""
        if number not in self._epochs:
            generator = np.random.default_rng((self.seed, number))
            choices = [texts.choice(generator) for texts in self._texts.values()]
            columns = zip(self._texts.values(), choices, strict=True)
            lengths = np.stack([texts.lengths(choice) for texts, choice in columns], axis=1)
            is_kept = (lengths.sum(1) > self.max_tokens) | (lengths.max(1) > self.max_length)
            lengths = np.where(is_kept[:, None], self._own_lengths, lengths)
            epoch = _Epoch(choices, is_kept, lengths)
            self._epochs = dict([*self._epochs.items(), (number, epoch)][-2:])
        return self._epochs[number]


def _column(examples: Dataset, name: str) -> list[str]:
    """The texts of a column."""
    columns = getattr(examples, "column_names", None)
    if columns is None or name not in columns:
        raise ValueError(
            f"bpe_dropout needs the texts of the training data in the column {name!r}, got "
            f"{type(examples).__name__ if columns is None else columns}. Keep the texts when you "
            "encode them, or leave bpe_dropout out."
        )
    return list(examples[name])


def check_segmentation(
    texts: Iterable[str], ids: Iterable[list[int]], tokenizer: PreTrainedTokenizerBase
) -> None:
    """Check that `Segmenter` without dropout gives the tokenizer's own ids, with `</s>` last.

    The ids of a text may be cut before `</s>`.

    Raises:
        ValueError: The ids differ, because the tokenizer has added tokens or another template.
    """
    added = sorted(tokenizer.get_added_vocab().keys() - {*tokenizer.all_special_tokens})
    if added:
        raise ValueError(
            "bpe_dropout would split the tokens that were added to the vocabulary: "
            f"{', '.join(added)}. Leave bpe_dropout out."
        )
    segmenter, generator = Segmenter(tokenizer), np.random.default_rng()
    for text, expected in zip(texts, ids, strict=True):
        words = segmenter.words(text)
        token_ids = [each for word in words for each in segmenter.segment(word, 0.0, generator)]
        if [*token_ids[: len(expected) - 1], tokenizer.eos_token_id] != expected:
            raise ValueError(
                "bpe_dropout needs a tokenizer that splits words by its merges alone and appends "
                f"{tokenizer.eos_token}, but {text!r} has other ids. Leave bpe_dropout out, or "
                "train a new vocabulary."
            )
