"""What a run trains: vocabularies from its training text, and a model that fits them."""

from typing import Any

import yaml
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from ..configuration_aiayn import AiaynConfig
from ..modeling_aiayn import AiaynForConditionalGeneration
from ..tokenization import train_bpe_tokenizer, train_word_tokenizer, vocabulary_sha256
from .arguments import ModelArguments

# Section 6.1 decodes with "a beam size of 4"; a saved model's generate() does the same.
NUM_BEAMS = 4


def parse_mapping(flag: str, text: str | None) -> dict[str, Any]:
    """Parse the YAML mapping that a flag holds.

    Args:
        flag: The flag's name.
        text: What was given.

    Returns:
        The mapping; an empty one where nothing was given.

    Raises:
        ValueError: It is none.
    """
    try:
        found = yaml.safe_load(text or "{}")
    except yaml.YAMLError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"{flag} must be a YAML mapping, as in '{{a: 1, b: 2}}', got {text!r}.")
    return found


def build_tokenizers(
    model: ModelArguments, train: Dataset
) -> tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]:
    """Train the vocabulary that model names on the training text and nothing else.

    Args:
        model: Which model to train.
        train: Training pairs.

    Returns:
        Tokenizers of source and target; one and the same where the vocabulary is shared.

    Raises:
        ValueError: There is no such vocabulary, or its numbers do not fit the text.
    """
    source, target = list(train["source"]), list(train["target"])
    if model.vocabulary == "bpe":
        shared = train_bpe_tokenizer(source + target, model.vocab_size, model.lowercase)
        return shared, shared
    if model.vocabulary == "word":
        return (
            train_word_tokenizer(source, model.min_frequency),
            train_word_tokenizer(target, model.min_frequency),
        )
    raise ValueError(f"vocabulary must be bpe or word, got {model.vocabulary!r}.")


def build_config(model: ModelArguments, **fields: Any) -> AiaynConfig:
    """The configuration of the preset and overrides that model names.

    Args:
        model: Which model to train.
        **fields: Fields that the data decides.

    Returns:
        The configuration.

    Raises:
        ValueError: config_overrides is no YAML mapping, or there is no such preset.
    """
    overrides = parse_mapping("config_overrides", model.config_overrides)
    return AiaynConfig.from_preset(model.preset, **fields, **overrides)


def build_model(
    model: ModelArguments,
    source_tokenizer: PreTrainedTokenizerBase,
    target_tokenizer: PreTrainedTokenizerBase,
) -> AiaynForConditionalGeneration:
    """A fresh model of the preset and overrides that model names.

    Args:
        model: Which model to train.
        source_tokenizer: Tokenizer of the source.
        target_tokenizer: Tokenizer of the target.

    Returns:
        The model, set to translate with four beams.

    Raises:
        ValueError: config_overrides is no YAML mapping, or there is no such preset.
    """
    is_shared = target_tokenizer is source_tokenizer
    config = build_config(
        model,
        vocab_size=len(source_tokenizer),
        decoder_vocab_size=None if is_shared else len(target_tokenizer),
        vocabulary_sha256=[
            vocabulary_sha256(source_tokenizer),
            vocabulary_sha256(target_tokenizer),
        ],
    )
    translation_model = AiaynForConditionalGeneration(config)
    translation_model.generation_config.num_beams = NUM_BEAMS
    translation_model.generation_config.length_penalty = model.length_penalty
    return translation_model
