"""A text as ids, cut into what is trained on and what is held out."""

import logging
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from ..corpus import read_bytes
from ..tokenization import SPECIAL_TOKENS, byte_tokenizer, train_character_tokenizer
from .arguments import LanguageDataArguments

logger = logging.getLogger(__name__)

Text = TypeVar("Text", bytes, str)


@dataclass(frozen=True)
class EncodedText:
    """A part of a text.

    Args:
        ids: An id for each character or byte, [N].
        size_in_bytes: How long the part is in UTF-8.
    """

    ids: Tensor
    size_in_bytes: int


def load_text(
    arguments: LanguageDataArguments,
) -> tuple[dict[str, EncodedText], PreTrainedTokenizerFast]:
    """Read a text and cut it: the first part is trained on, then validation, then test.

    Args:
        arguments: Which text, in which units, and how much of it is held out.

    Returns:
        "train", "validation" and, if a share is for it, "test"; and the tokenizer, which knows no
        more than the training part.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not UTF-8 and is to be read as characters, or a part is too short for one
            window.
    """
    content = read_bytes(arguments.train_file)
    if arguments.unit == "byte":
        of_bytes = _cut(content, arguments)
        return {name: _of_bytes(part) for name, part in of_bytes.items()}, byte_tokenizer()
    parts = _cut(_decoded(content, arguments.train_file), arguments)
    tokenizer = train_character_tokenizer(parts["train"])
    encoded = {name: _of_characters(part, tokenizer) for name, part in parts.items()}
    for name, part in encoded.items():
        unknown = int((part.ids == tokenizer.unk_token_id).sum())
        if unknown:
            logger.warning(
                "%s: %d of %d characters are not in the training text, and are one and the same to "
                "the model: bits are too few by what tells them apart. --unit byte knows all.",
                name,
                unknown,
                len(part.ids),
            )
    return encoded, tokenizer


def _decoded(content: bytes, path: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: not UTF-8 (byte 0x{content[error.start]:02x} at position {error.start}). "
            "Convert it, or read it with --unit byte."
        ) from error


def _cut(text: Text, arguments: LanguageDataArguments) -> dict[str, Text]:
    validation = round(len(text) * (1 - arguments.validation_share - arguments.test_share))
    test = round(len(text) * (1 - arguments.test_share))
    parts = {"train": text[:validation], "validation": text[validation:test]}
    if arguments.test_share:
        parts["test"] = text[test:]
    for name, part in parts.items():
        if len(part) <= arguments.context:
            raise ValueError(
                f"{arguments.train_file}: {name} must be longer than context={arguments.context}, "
                f"got {len(part)} {arguments.unit}s."
            )
    return parts


def _of_bytes(part: bytes) -> EncodedText:
    ids = np.frombuffer(part, np.uint8).astype(np.int32) + len(SPECIAL_TOKENS)
    return EncodedText(torch.from_numpy(ids), len(part))


def _of_characters(part: str, tokenizer: PreTrainedTokenizerFast) -> EncodedText:
    """As the tokenizer does it, which would take a hundred bytes of memory for each character."""
    table = np.full(0x110000, tokenizer.unk_token_id, np.int32)
    for token, index in tokenizer.get_vocab().items():
        if len(token) == 1:
            table[ord(token)] = index
    points = np.frombuffer(part.encode("utf-32-le"), np.uint32)
    return EncodedText(torch.from_numpy(table[points]), len(part.encode()))
