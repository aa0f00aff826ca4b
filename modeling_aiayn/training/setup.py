"""Build a run's vocabularies from its training text, and a model that fits them."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, IterableDataset
from datasets.fingerprint import Hasher
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase
from transformers.hf_argparser import HfArg

from ..configuration_aiayn import AiaynConfig
from ..data.cache import RowLog, code_sha256
from ..data.corpus import BATCH_SIZE
from ..data.parsing import check_config_fields, parse_mapping
from ..modeling_aiayn import AiaynForConditionalGeneration
from ..saved.languages import TAG_SETTING
from ..saved.whole_files import write_file
from ..tokenization import (
    language_tags,
    source_token,
    train_tokenizer,
    vocabulary_sha256,
    wrap_tokenizer,
)

# Section 6.1 decodes with "a beam size of 4"; a saved model's generate() does the same.
NUM_BEAMS = 4
PRESET_HELP = "Model size: base or big (Table 3), or tiny (Wu et al. 2021)."


@dataclass
class PresetArguments:
    """Model size: a preset of AiaynConfig, and fields that replace its values."""

    preset: str = HfArg(default="tiny", help=PRESET_HELP)
    config_overrides: str | None = HfArg(
        default=None,
        help="Fields of AiaynConfig as YAML, as in '{d_model: 256, dropout: 0.2}'. They "
        "replace the overrides of a recipe.",
    )


@dataclass
class ModelArguments(PresetArguments):
    """Model size and vocabulary of a translation model."""

    preset: str = HfArg(default="base", help=PRESET_HELP)
    vocabulary: str = HfArg(
        default="bpe",
        help="bpe: one byte-pair vocabulary for both languages (section 5.1). word: "
        "lower-cased words, one vocabulary for each language. token: the "
        "same for texts that are tokenized already, with spaces between the tokens.",
    )
    vocab_size: int = HfArg(default=10_000, help="Size of the bpe vocabulary.")
    lowercase: bool = HfArg(
        default=False,
        help="Lower-case all text in a bpe or token vocabulary, as the word vocabulary "
        "does. Then compare the score bleu_lowercase.",
    )
    length_penalty: float = HfArg(
        default=1.0,
        help="Length penalty that is saved for generate(), which divides scores by length "
        "** length_penalty. The scores at the end use the defaults of aiayn translate.",
    )
    vocabulary_sample: int = HfArg(
        default=10_000_000,
        help="Sentences that a vocabulary is trained on: at most this many, drawn at random.",
    )
    min_frequency: int = HfArg(
        default=2,
        help="For word and token: words or tokens that occur fewer times than this become <unk>.",
    )


def read_overrides(model: PresetArguments) -> dict[str, Any]:
    """Read config_overrides."""
    overrides = parse_mapping("config_overrides", model.config_overrides)
    check_config_fields(overrides, "config_overrides")
    return overrides


def build_config(model: PresetArguments, **derived: Any) -> AiaynConfig:
    """Build the configuration from preset, config_overrides, and fields that follow from the data.

    Raises:
        TypeError: config_overrides sets a derived field.
        ValueError: There is no such preset, or config_overrides is invalid.
    """
    return AiaynConfig.from_preset(model.preset, **derived, **read_overrides(model))


def sampled_texts(
    pairs: Dataset | IterableDataset, sides: Sequence[str], limit: int
) -> Iterator[str]:
    """Yield at most limit texts of the sides: a random sample, or the beginning of a stream."""
    count = limit // len(sides)
    if isinstance(pairs, IterableDataset):
        pairs = pairs.take(count)
    elif len(pairs) > count:
        chosen = np.random.default_rng(0).choice(len(pairs), count, replace=False)
        pairs = pairs.select(np.sort(chosen))
    log = RowLog("Step 3 of 4: training the vocabulary")
    for side in sides:
        for batch in pairs.select_columns(side).iter(BATCH_SIZE):
            yield from batch[side]
            log.add(len(batch[side]))


def save_table_length(config: AiaynConfig, *tokenizers: PreTrainedTokenizerBase) -> None:
    """Save a learned position table's length in tokenizers: truncation=True then cuts to it."""
    if config.position_type == "learned":
        for tokenizer in tokenizers:
            tokenizer.model_max_length = config.max_position_embeddings


class NewModel:
    """A model to train from scratch, with vocabularies built from the training text.

    tokens are added to the vocabulary, which source and target must then share.
    """

    def __init__(self, arguments: ModelArguments, tokens: Sequence[str] = ()) -> None:
        if tokens and arguments.vocabulary != "bpe":
            raise ValueError(f"corpora needs vocabulary=bpe, got {arguments.vocabulary}.")
        self.config = build_config(arguments)
        self._arguments = arguments
        self._tokens = tokens

    def tokenizers(self, train: Dataset) -> tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]:
        """Train tokenizers of source and target, one object if shared, on the training pairs."""
        if self._arguments.vocabulary == "bpe":
            shared = self._vocabulary(train, "source", "target")
            if self._tokens:
                shared.add_tokens([*map(source_token, self._tokens)])
            if language_tags(shared):
                shared.init_kwargs[TAG_SETTING] = "target"
            return shared, shared
        return self._vocabulary(train, "source"), self._vocabulary(train, "target")

    def _vocabulary(self, train: Dataset, *sides: str) -> PreTrainedTokenizerBase:
        """Train a tokenizer on sides of the pairs, or load it from the cache of the pairs."""
        model, cached = self._arguments, None
        options = (model.vocabulary, model.vocab_size, model.min_frequency, model.lowercase)
        sample = (train, sides, model.vocabulary_sample)
        if getattr(train, "cache_files", None):  # neither in memory nor a stream
            key = json.dumps([train._fingerprint, *sample[1:], *options, code_sha256()])
            folder = Path(train.cache_files[0]["filename"]).parent
            cached = folder / f"vocabulary-{Hasher.hash(key)}.json"
            if cached.is_file():
                return wrap_tokenizer(Tokenizer.from_file(str(cached)))
        tokenizer = train_tokenizer(sampled_texts(*sample), *options)
        if cached is not None:
            write_file(cached, tokenizer.backend_tokenizer.to_str())
        return tokenizer

    def build(
        self, source_tokenizer: PreTrainedTokenizerBase, target_tokenizer: PreTrainedTokenizerBase
    ) -> AiaynForConditionalGeneration:
        """Build the model with random weights; its generate() searches with 4 beams."""
        tokenizers = (source_tokenizer, target_tokenizer)
        is_shared = target_tokenizer is source_tokenizer
        config = build_config(
            self._arguments,
            vocab_size=len(source_tokenizer),
            decoder_vocab_size=None if is_shared else len(target_tokenizer),
            vocabulary_sha256=[vocabulary_sha256(tokenizer) for tokenizer in tokenizers],
        )
        save_table_length(config, *tokenizers)
        model = AiaynForConditionalGeneration(config)
        model.generation_config.num_beams = NUM_BEAMS
        model.generation_config.length_penalty = self._arguments.length_penalty
        return model
