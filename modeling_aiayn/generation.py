"""Section 6.1 for the library's generate(): how long an output may be, and a watch on NaN."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, LogitsProcessor, LogitsProcessorList

# Section 6.1 lets an output be this much longer than its input.
MAX_TOKENS_BEYOND_SOURCE = 50


def beyond_source(generation_config: GenerationConfig) -> int:
    """How many tokens an output may be longer than its source."""
    return getattr(generation_config, "max_tokens_beyond_source", MAX_TOKENS_BEYOND_SOURCE)


class NonFiniteScores(LogitsProcessor):
    """Remembers whether a score was ever NaN, without holding the device up at each step."""

    def __init__(self) -> None:
        self.seen: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG002
        """Look at scores and hand them on.

        Args:
            input_ids: Output so far, [B, T].
            scores: Scores of the next token, [B, V].

        Returns:
            The same scores, [B, V].
        """
        is_nan = scores.isnan().any()
        self.seen = is_nan if self.seen is None else self.seen | is_nan
        return scores


def refuse_beyond_table(table: int | None, generation_config: GenerationConfig) -> None:
    """Refuse to generate more than learned positions have room for, before anything is.

    Args:
        table: Positions of the table; None: any number.
        generation_config: With its max_length.

    Raises:
        ValueError: max_length is more.
    """
    # One more than the table: the last token is predicted and never fed back.
    if table is not None and generation_config.max_length > table + 1:
        raise ValueError(
            f"The learned position table has max_position_embeddings={table} positions, got "
            f"max_length={generation_config.max_length}. Ask for at most {table + 1}."
        )


class FiniteGenerationMixin(GenerationMixin):
    """The library's generate(), which ends in an error where the scores were no numbers."""

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        """Refuse what the library would fail at in a thread, and give prompts back for outputs.

        Raises:
            ValueError: In any case.
        """
        raise ValueError(
            "Continuous batching (generate_batch, cache_implementation='paged') needs a paged "
            "cache, which these models do not have. Use generate(), or Translator."
        )

    def _default_new_tokens(
        self,
        generation_config: GenerationConfig,
        inputs_tensor: Tensor,  # noqa: ARG002
    ) -> int:
        """How many tokens to generate where nobody says: the library's 20."""
        return int(generation_config.max_length)

    def _prepare_generated_length(
        self,
        generation_config: GenerationConfig,
        has_default_max_length: bool,
        has_default_min_length: bool,
        model_input_name: str,
        input_ids_length: int,
        inputs_tensor: Tensor,
    ) -> GenerationConfig:
        """Without a length given, the model's default; only a learned table ends it before."""
        table = self.model.decoder.embed_positions.max_length
        if has_default_max_length and generation_config.max_new_tokens is None:
            new_tokens = self._default_new_tokens(generation_config, inputs_tensor)
            if table is not None and table + 1 > input_ids_length:
                new_tokens = min(new_tokens, table + 1 - input_ids_length)
            generation_config.max_new_tokens = new_tokens
        generation_config = super()._prepare_generated_length(
            generation_config,
            has_default_max_length,
            has_default_min_length,
            model_input_name,
            input_ids_length,
            inputs_tensor,
        )
        refuse_beyond_table(table, generation_config)
        return generation_config

    def generate(
        self,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: Sequence[LogitsProcessor] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Decode as every model of the library does.

        Args:
            inputs: As for GenerationMixin.generate.
            generation_config: As there.
            logits_processor: As there.
            *args: As there.
            **kwargs: As there.

        Returns:
            Ids, [B, T], or what return_dict_in_generate asks for.

        Raises:
            ValueError: The model computed scores that are no numbers.
        """
        watch = NonFiniteScores()
        processors = LogitsProcessorList([*(logits_processor or []), watch])
        output = super().generate(inputs, generation_config, processors, *args, **kwargs)
        if watch.seen is not None and watch.seen:
            raise ValueError(
                "The model computed non-finite scores (NaN). A weight is NaN or infinite, or the "
                f"numbers outgrew {self.dtype}: look at the weights, or load with dtype='float32'."
            )
        return output


class SourceRelativeLength(LogitsProcessor):
    """Section 6.1's limit for each sentence by itself: at its length only `</s>` is left.

    A limit for the batch would let a translation depend on the length of its neighbours.

    Args:
        max_lengths: Longest output of each row in tokens, start token counted, [B].
        eos_token_ids: Ids that end a sentence, [E].
    """

    def __init__(self, max_lengths: Tensor, eos_token_ids: Tensor) -> None:
        self.max_lengths = max_lengths
        self.eos_token_ids = eos_token_ids

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Leave only eos to rows at their limit, for what it costs.

        Args:
            input_ids: Output so far, [B, T].
            scores: Scores of the next token, [B, V].

        Returns:
            Scores, [B, V].
        """
        at_limit = input_ids.size(1) + 1 >= self.max_lengths  # [B]
        ends = scores[:, self.eos_token_ids]  # [B, E]
        # What others have ruled out, top_k for one, is all that is left.
        is_lost = ends.isneginf().all(-1, keepdim=True)
        ending = torch.full_like(scores, -math.inf)
        ending[:, self.eos_token_ids] = ends.masked_fill(is_lost, 0.0)
        return torch.where(at_limit[:, None], ending, scores)
