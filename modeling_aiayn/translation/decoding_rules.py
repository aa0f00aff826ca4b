"""The rules of a model's generation config, which every engine and exporter follows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from torch import Tensor
from transformers import GenerationConfig

from ..generation import MAX_TOKENS_BEYOND_SOURCE
from .hypotheses import SourceSentence
from .options import SearchOptions

# Subtracted from the logits of ids that are excluded from the softmax. The value is finite even in
# float16, so that a prefix may still contain such an id.
EXCLUDED_LOGIT = 1e4
# Settings of generate() that Translator does not support, and the values that disable them.
NEUTRAL: dict[str, float | None] = {
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_new_tokens": 0,
    "guidance_scale": 1,
    "begin_suppress_tokens": None,
    "sequence_bias": None,
    "exponential_decay_length_penalty": None,
    "watermarking_config": None,
    "stop_strings": None,
}


@dataclass(frozen=True)
class DecodingRules:
    """How a model's translations end, how long they may be, and which ids they never contain."""

    eos_token_ids: frozenset[int]
    suppressed_token_ids: tuple[int, ...]  # never generated; a prefix may contain them
    excluded_from_softmax: tuple[int, ...]  # they get no probability; other ids share it
    max_tokens_beyond_source: int
    target_positions: int | None = None  # length of a learned position table; None: unlimited
    forced_bos_token_id: int | None = None  # first id of translations, unless a language is given

    @classmethod
    def from_generation_config(
        cls,
        generation_config: GenerationConfig,
        vocab_size: int,
        target_positions: int | None = None,
    ) -> Self:
        """Read the rules of a model whose target vocabulary has vocab_size entries.

        With renormalize_logits, which OPUS-MT uses, the softmax excludes suppressed ids too.
        """
        _check_supported(generation_config)
        suppressed = _suppressed_token_ids(generation_config)
        end = generation_config.eos_token_id
        ends = end if isinstance(end, list) else [end]
        if not ends or not all(token in range(vocab_size) for token in ends):
            raise ValueError(
                f"eos_token_id must be in [0, {vocab_size}), got {end!r}. Set it in "
                "generation_config.json to the id of the token that ends a translation."
            )
        return cls(
            eos_token_ids=frozenset(ends),
            suppressed_token_ids=suppressed,
            excluded_from_softmax=suppressed if generation_config.renormalize_logits else (),
            max_tokens_beyond_source=getattr(
                generation_config, "max_tokens_beyond_source", MAX_TOKENS_BEYOND_SOURCE
            ),
            target_positions=target_positions,
            forced_bos_token_id=generation_config.forced_bos_token_id,
        )

    @property
    def single_eos_token_id(self) -> int:
        """The only eos_token_id, for CTranslate2. Several raise a ValueError."""
        if len(self.eos_token_ids) != 1:
            raise ValueError(
                "CTranslate2 needs exactly one eos_token_id, got "
                f"{sorted(self.eos_token_ids)}. Set one in the generation config."
            )
        return next(iter(self.eos_token_ids))

    def max_length(self, sentence: SourceSentence, options: SearchOptions) -> int:
        """Return the maximum number of tokens of a translation, `</s>` included.

        There is always room for the prefix and `</s>`, unless a position table is shorter.
        """
        offset = options.max_length_offset
        offset = self.max_tokens_beyond_source if offset is None else offset
        limit = int(options.max_length_factor * len(sentence.input_ids)) + offset
        limit = max(limit, len(sentence.prefix) + 1)
        return min(limit, self.target_positions or limit)

    def exclude_from_softmax(
        self, logits: Tensor, columns: Mapping[int, int] | None = None
    ) -> None:
        """Lower the logits, [..., V], of excluded ids in place, or the output layer's biases.

        columns maps ids to columns of the logits; None: each id is its own column.
        """
        ids = list(self.excluded_from_softmax)
        if columns is not None:
            ids = [columns[token] for token in ids if token in columns]
        if ids:
            logits[..., ids] -= EXCLUDED_LOGIT


def _check_supported(generation_config: GenerationConfig) -> None:
    # Imported models use their own settings: see `search_defaults`.
    is_imported = getattr(generation_config, "length_normalization", None) is not None
    neutral = NEUTRAL | ({"early_stopping": False} if is_imported else {"no_repeat_ngram_size": 0})
    for name, neutral_value in neutral.items():
        value = getattr(generation_config, name, None)
        if value not in (None, neutral_value):
            raise ValueError(
                f"The generation config says {name}={value!r}, which Translator does not support. "
                "Use model.generate(), or remove it from the generation config."
            )


def _suppressed_token_ids(generation_config: GenerationConfig) -> tuple[int, ...]:
    words = generation_config.bad_words_ids or []
    if any(len(word) != 1 for word in words):
        raise ValueError(
            f"bad_words_ids must have one id each in Translator, got {words}. Use "
            "model.generate(), or remove it from the generation config."
        )
    suppressed = generation_config.suppress_tokens or []
    return tuple(sorted({*suppressed, *(word[0] for word in words)}))
