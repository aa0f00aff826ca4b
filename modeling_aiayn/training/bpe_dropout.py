"""BPE-dropout: training pairs whose words are segmented in another way in each epoch.

Provilkov et al. 2020, BPE-Dropout (arXiv:1910.13267). At each step of byte-pair encoding (section
5.1), each possible merge is skipped with a probability. Rare words then share pieces with frequent
ones, and a model sees more of its vocabulary in small data.

Departs from that paper: each distinct word has VARIANTS random segmentations, which are drawn once,
and each occurrence takes one of them at random. So an epoch costs next to nothing.
"""

import json
import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray
from tqdm.auto import tqdm
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from .batches import Lengths

# Random segmentations of each word.
VARIANTS = 16
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


class _Side:
    """The words of all sources or all targets, and random segmentations of each word."""

    def __init__(
        self,
        texts: Sequence[str],
        tokenizer: PreTrainedTokenizerBase,
        dropout: float,
        generator: np.random.Generator,
    ) -> None:
        segmenter = Segmenter(tokenizer)
        numbers: dict[str, int] = {}
        words, self.starts = [], np.zeros(len(texts) + 1, np.int64)
        for row, text in enumerate(texts):
            words += [numbers.setdefault(word, len(numbers)) for word in segmenter.words(text)]
            self.starts[row + 1] = len(words)
        self.words = np.array(words, np.int64)
        self.eos = tokenizer.eos_token_id
        drawn = []
        for word in tqdm(numbers, desc="BPE-dropout", unit="word"):
            drawn += [segmenter.segment(word, dropout, generator) for _ in range(VARIANTS)]
            drawn.append(segmenter.segment(word, 0.0, np.random.default_rng()))
        self.segment_lengths = np.array([len(ids) for ids in drawn], np.int64)
        self.segment_starts = np.concatenate([[0], self.segment_lengths.cumsum()])
        self.ids = np.array([index for ids in drawn for index in ids], np.int32)

    def choice(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """A random segmentation for each word."""
        return self.words * (VARIANTS + 1) + generator.integers(VARIANTS, size=len(self.words))

    def without_dropout(self) -> NDArray[np.int64]:
        """The tokenizer's own segmentation of each word, which is kept after the random ones."""
        return self.words * (VARIANTS + 1) + VARIANTS

    def lengths(self, choice: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tokens of each text, `</s>` included."""
        ends = np.concatenate([[0], self.segment_lengths[choice].cumsum()])[self.starts]
        return np.diff(ends) + 1

    def ids_of(self, choice: NDArray[np.int64], row: int) -> list[int]:
        """The ids of a text, `</s>` last."""
        chosen = choice[self.starts[row] : self.starts[row + 1]]
        starts, ends = self.segment_starts[chosen], self.segment_starts[chosen + 1]
        parts = (self.ids[start:end] for start, end in zip(starts, ends, strict=True))
        return [*np.concatenate([*parts, [self.eos]]).tolist()]


class ResegmentedPairs:
    """Training pairs for a DataLoader; index e * len(self) + i is pair i in epoch e.

    Args:
        pairs: Pairs with the columns "source", "target", "input_ids" and "labels".
        source_tokenizer: Tokenizer of the source.
        target_tokenizer: Tokenizer of the target.
        dropout: Probability of skipping a merge.
        seed: Seed of all segmentations.
        max_tokens: Most tokens of a pair. A pair that would have more keeps its own ids.
        max_length: Most tokens of a side, in the same way.

    Raises:
        ValueError: A tokenizer is of another kind, or segments words in a way of its own.
    """

    def __init__(
        self,
        pairs: Dataset,
        source_tokenizer: PreTrainedTokenizerBase,
        target_tokenizer: PreTrainedTokenizerBase,
        dropout: float,
        seed: int,
        max_tokens: float = math.inf,
        max_length: float = math.inf,
    ) -> None:
        self.seed = seed
        self.max_tokens, self.max_length = max_tokens, max_length
        generator = np.random.default_rng(seed)
        given = (("source", "input_ids", source_tokenizer), ("target", "labels", target_tokenizer))
        self._sides = []
        for column, ids, tokenizer in given:
            texts = list(pairs[column])
            check_segmentation(texts[:COMPARED], pairs[:COMPARED][ids], tokenizer)
            self._sides.append(_Side(texts, tokenizer, dropout, generator))
        self._kept: dict[int, list[NDArray[np.int64]]] = {}

    def __len__(self) -> int:
        return len(self._sides[0].starts) - 1

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        epoch, row = divmod(index, len(self))
        choices = self._choices(epoch)
        ids = [side.ids_of(each, row) for side, each in zip(self._sides, choices, strict=True)]
        return dict(zip(("input_ids", "labels"), ids, strict=True))

    def lengths(self, epoch: int) -> Lengths:
        """Source and target lengths of all pairs in an epoch, [pairs, 2]."""
        return self._lengths(self._choices(epoch))

    def _lengths(self, choices: list[NDArray[np.int64]]) -> Lengths:
        pairs = zip(self._sides, choices, strict=True)
        return np.stack([side.lengths(choice) for side, choice in pairs], axis=1)

    def _choices(self, epoch: int) -> list[NDArray[np.int64]]:
        """The segmentations of an epoch; those of the last two epochs are kept."""
        if epoch not in self._kept:
            generator = np.random.default_rng((self.seed, epoch))
            choices = [side.choice(generator) for side in self._sides]
            lengths = self._lengths(choices)
            is_too_long = lengths.sum(1) > self.max_tokens
            is_too_long |= lengths.max(1) > self.max_length
            for side, choice in zip(self._sides, choices, strict=True):
                words = np.repeat(is_too_long, np.diff(side.starts))
                choice[words] = side.without_dropout()[words]
            self._kept = dict([*self._kept.items(), (epoch, choices)][-2:])
        return self._kept[epoch]


def position_limit(config: PreTrainedConfig) -> float:
    """The most tokens of a side that a model has positions for."""
    is_learned = getattr(config, "position_type", "learned") == "learned"
    return getattr(config, "max_position_embeddings", math.inf) if is_learned else math.inf


def check_segmentation(
    texts: Iterable[str], ids: Iterable[list[int]], tokenizer: PreTrainedTokenizerBase
) -> None:
    """Check that `Segmenter` without dropout gives the tokenizer's own ids, with `</s>` last.

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
        if [*token_ids, tokenizer.eos_token_id] != expected:
            raise ValueError(
                "bpe_dropout needs a tokenizer that splits words by its merges alone and appends "
                f"{tokenizer.eos_token}, but {text!r} has other ids. Leave bpe_dropout out, or "
                "train a new vocabulary."
            )
