"""A classifier and its vocabulary, to be trained by AiaynTrainer."""

from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerBase,
)

from ..configuration_aiayn import AiaynConfig
from ..modeling_aiayn import AiaynForSequenceClassification
from ..tokenization import train_bpe_tokenizer, train_word_tokenizer, vocabulary_sha256
from ..training.setup import parse_mapping
from .arguments import ClassifierArguments


def build_classifier(
    arguments: ClassifierArguments, train: Dataset, max_length: int
) -> tuple[AiaynForSequenceClassification, PreTrainedTokenizerBase]:
    """A fresh classifier with a vocabulary of the training texts, or one on another's encoder.

    Args:
        arguments: Which model.
        train: Training texts, with "text" and "label".
        max_length: Tokens of the longest text.

    Returns:
        The model and its tokenizer.

    Raises:
        OSError: The folder to start from is damaged.
        ValueError: config_overrides is no YAML mapping, or the numbers do not fit, or the encoder
            to start from lacks a weight.
    """
    names = train.features["label"].names
    classes = {
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
        "num_labels": len(names),
    }
    overrides = parse_mapping("config_overrides", arguments.config_overrides)
    for name in (*classes, "vocab_size", "vocabulary_sha256"):
        if name in overrides:
            raise ValueError(f"config_overrides: {name} is read off the training texts.")
    if arguments.start_from is not None:
        return _started_from(arguments.start_from, max_length, **classes, **overrides)
    texts = train["text"]
    if arguments.vocabulary == "word":
        tokenizer = train_word_tokenizer(texts, arguments.min_frequency)
    else:
        tokenizer = train_bpe_tokenizer(texts, arguments.vocab_size)
    config = AiaynConfig.from_preset(
        arguments.preset,
        vocab_size=len(tokenizer),
        vocabulary_sha256=[vocabulary_sha256(tokenizer)],
        **{"max_position_embeddings": max_length, **classes, **overrides},
    )
    return AiaynForSequenceClassification(config), tokenizer


def _started_from(
    folder: str, max_length: int, **fields: Any
) -> tuple[AiaynForSequenceClassification, PreTrainedTokenizerBase]:
    """A classifier on the encoder of a folder's model, all of which is there, in float32."""
    options = {"local_files_only": True, "trust_remote_code": False}
    tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    theirs = AutoConfig.from_pretrained(folder, **options)
    model, loading_info = AutoModelForSequenceClassification.from_pretrained(
        folder,
        config=AiaynConfig.from_dict(theirs.to_dict() | fields),
        dtype=torch.float32,
        output_loading_info=True,
        **options,
    )
    missing = sorted(
        name for name in loading_info["missing_keys"] if not name.startswith("classifier.")
    )
    if missing:
        raise ValueError(f"{folder} has no {missing[0]}: its encoder is of other sizes.")
    table = model.model.encoder.embed_positions.max_length
    if table is not None and max_length > table:
        raise ValueError(
            f"{folder} has learned positions for {table} tokens, got max_length={max_length}."
        )
    if table is None and "max_position_embeddings" not in fields:
        model.config.max_position_embeddings = max_length
    return model, tokenizer
