"""Read texts ahead in pools, and group them into batches of similar length."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, zip_longest
from typing import Any, NamedTuple, TypeVar

BATCH_SIZE = 256
# Source tokens, padding included.
MAX_TOKENS_PER_BATCH = 4096
# Sentences of a stream that are read ahead, to sort them by length.
POOL_SIZE = 1024

Item = TypeVar("Item")


class SourceText(NamedTuple):
    """A text to translate; its number is its index among all texts."""

    number: int
    text: str
    prefix: str = ""
    languages: tuple[str, str] | None = None  # source and target, for a multilingual model


def check_several(texts: Iterable[object] | None) -> None:
    """Check that texts are not a single text, which would be read as one text per character."""
    if isinstance(texts, str | bytes):
        raise ValueError(
            f"Texts must be a list or another iterable of str, got a {type(texts).__name__}. Put "
            "a single text into a list."
        )


def source_texts(
    texts: Iterable[str],
    prefixes: Iterable[str] | None = None,
    first_number: int = 0,
) -> Iterator[SourceText]:
    """Yield each text with its number, counted from first_number, and its prefix."""
    rows: Iterable[Any] = zip(texts) if prefixes is None else zip_longest(texts, prefixes)
    for number, row in enumerate(rows, start=first_number):
        if None in row:
            raise ValueError(
                f"Texts and prefixes must have the same number of lines: line {number + 1} is "
                "missing in one of them. Leave a line empty for a text without prefix."
            )
        yield SourceText(number, *row)


def read_pools(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield items in lists of `size`, the last perhaps shorter; only one list is in memory."""
    iterator = iter(items)
    while pool := list(islice(iterator, max(1, size))):
        yield pool


def batches_by_length(
    lengths: Sequence[int], batch_size: int, max_tokens_per_batch: int
) -> list[list[int]]:
    """Group sentences into batches, longest first; return indices of each batch's sentences.

    max_tokens_per_batch includes padding. A longer sentence is a batch by itself.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        last = batches[-1] if batches else []
        fits = last and (len(last) + 1) * lengths[last[0]] <= max_tokens_per_batch
        if fits and len(last) < batch_size:
            last.append(index)
        else:
            batches.append([index])
    return batches


def search_in_batches(
    search: Callable[[Sequence[Any], Any], list[Any]],
    sentences: Sequence[Any],
    options: Any,
    batch_size: int,
    max_tokens_per_batch: int,
) -> Iterator[tuple[list[int], list[Any]]]:
    """Search for sentences batch by batch; yield the indices of a batch and its hypotheses."""
    lengths = [len(sentence.input_ids) for sentence in sentences]
    for batch in batches_by_length(lengths, batch_size, max_tokens_per_batch):
        yield batch, search([sentences[index] for index in batch], options)
