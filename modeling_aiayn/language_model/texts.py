"""Read a text, split it into training and held-out parts, and encode them."""

import logging
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast
from transformers.hf_argparser import HfArg

from ..data.lines import open_binary
from ..tokenization import SPECIAL_TOKENS, byte_tokenizer, train_character_tokenizer

logger = logging.getLogger(__name__)

Text = TypeVar("Text", bytes, str)


@dataclass
class LanguageDataArguments:
    """A text, its tokens, and how it is split."""

    train_file: str = HfArg(
        help="A text file, plain or .gz. Its end is held out for validation and test."
    )
    unit: str = HfArg(
        default="character", help="Token unit.", metadata={"choices": ["character", "byte"]}
    )
    context: int = HfArg(
        default=64, help="Number of previous tokens that a prediction may depend on."
    )
    validation_share: float = HfArg(default=0.1, help="Share of the text to validate on.")
    test_share: float = HfArg(
        default=0.0, help="Share of the text, after validation, to score the trained model on."
    )

    def __post_init__(self) -> None:
        if self.validation_share + self.test_share >= 1:
            raise ValueError(
                "validation_share and test_share must leave text to train on, got "
                f"{self.validation_share} and {self.test_share}. Their sum must be below 1."
            )


@dataclass(frozen=True)
class EncodedText:
    """A part of a text: an id for each character or byte, [N], and its length in UTF-8."""

    ids: Tensor
    size_in_bytes: int


def load_text(
    arguments: LanguageDataArguments,
) -> tuple[dict[str, EncodedText], PreTrainedTokenizerFast]:
    """Read a text and split it: the first part is "train", then "validation", then perhaps "test".

    The vocabulary of the tokenizer comes only from the training part.
    """
    with open_binary(arguments.train_file) as file:
        content = file.read()
    if arguments.unit == "byte":
        byte_parts = _split(content, arguments)
        return {name: _encode_bytes(part) for name, part in byte_parts.items()}, byte_tokenizer()
    parts = _split(_decode_text(content, arguments.train_file), arguments)
    tokenizer = train_character_tokenizer(parts["train"])
    encoded = {name: _encode_characters(part, tokenizer) for name, part in parts.items()}
    for name, part in encoded.items():
        unknown = int((part.ids == tokenizer.unk_token_id).sum())
        if unknown:
            logger.warning(
                "%s: %d of %d characters do not occur in the training text. Bits per character "
                "are underestimated, because all of them share one token. --unit byte avoids this.",
                *(name, unknown, len(part.ids)),
            )
    return encoded, tokenizer


def _decode_text(content: bytes, path: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: not UTF-8 (byte 0x{content[error.start]:02x} at position {error.start}). "
            "Convert it, or read it with --unit byte."
        ) from error


def _split(text: Text, arguments: LanguageDataArguments) -> dict[str, Text]:
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


def _encode_bytes(part: bytes) -> EncodedText:
    ids = np.frombuffer(part, np.uint8).astype(np.int32) + len(SPECIAL_TOKENS)
    return EncodedText(torch.from_numpy(ids), len(part))


def _encode_characters(part: str, tokenizer: PreTrainedTokenizerFast) -> EncodedText:
    """Encode like the tokenizer, which would need about 100 bytes of memory per character."""
    table = np.full(0x110000, tokenizer.unk_token_id, np.int32)
    for token, index in tokenizer.get_vocab().items():
        if len(token) == 1:
            table[ord(token)] = index
    points = np.frombuffer(part.encode("utf-32-le"), np.uint32)
    return EncodedText(torch.from_numpy(table[points]), len(part.encode()))
