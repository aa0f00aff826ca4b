"""Section 6.1 in generate(): default lengths, the cache of beams, and an error for NaN scores."""

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    Cache,
    EncoderDecoderCache,
    GenerationConfig,
    GenerationMixin,
    LogitNormalization,
    LogitsProcessor,
    LogitsProcessorList,
)

# Section 6.1: an output may have this many more tokens than its input.
MAX_TOKENS_BEYOND_SOURCE = 50
DEFAULT_NEW_TOKENS = 20  # transformers' default; here, for models without a source
# Seq2SeqTrainer writes transformers' defaults, such as this, into a model's generation config.
TRAINER_MAX_LENGTH = 20
# Looks up a generation setting by name: an argument of generate(), or a configuration's field.
Setting = Callable[[str], Any]
Kwargs = dict[str, Any]
# Settings to add to the caller's settings, and processors that apply them.
SettingsAndLimits = tuple[Kwargs, list[LogitsProcessor]]


class NonFiniteScores(LogitsProcessor):
    """Records whether any score was NaN. It is read once, because reading makes a GPU wait."""

    def __init__(self) -> None:
        self.has_nan: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG002
        """Look at the scores of the next token, [B, V], and return them unchanged."""
        is_nan = scores.isnan().any()
        self.has_nan = is_nan if self.has_nan is None else self.has_nan | is_nan
        return scores

    def check(self, dtype: torch.dtype) -> None:
        """Raise a ValueError if a score was NaN. The message names the model's dtype."""
        if self.has_nan is not None and self.has_nan:
            raise ValueError(
                "The model computed non-finite scores (NaN): a weight is not finite, or values are "
                f"too large for {dtype}. Check the weights, or load with dtype='float32'."
            )


class SourceRelativeLength(LogitsProcessor):
    """Section 6.1's length limit for each sentence: at its limit, only `</s>` can follow.

    With one limit for the whole batch, a translation would depend on the other sentences' lengths.

    Args:
        max_lengths: Maximum length of each of N sentences in tokens, start token included, [N].
            The batch B of a call is N times the number of beams.
        eos_token_ids: The E ids that end a sentence, [E].
    """

    def __init__(self, max_lengths: Tensor, eos_token_ids: Tensor) -> None:
        self.max_lengths = max_lengths
        self.eos_token_ids = eos_token_ids

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Rule out every token except eos in rows at their limit. The score of eos stays.

        input_ids are the output so far, [B, T], where B is N times the beams; scores are [B, V].
        """
        beams = input_ids.size(0) // self.max_lengths.size(0)
        max_lengths = self.max_lengths.repeat_interleave(beams)  # [B]
        at_limit = input_ids.size(1) + 1 >= max_lengths  # [B]
        eos_scores = scores[:, self.eos_token_ids]  # [B, E]
        # Another processor (suppress_tokens, for example) may have ruled out eos as well.
        is_ruled_out = eos_scores.isneginf().all(-1, keepdim=True)  # [B, 1]
        only_eos = torch.full_like(scores, -math.inf)  # [B, V]
        only_eos[:, self.eos_token_ids] = eos_scores.masked_fill(is_ruled_out, 0.0)
        return torch.where(at_limit[:, None], only_eos, scores)  # [B, V]


class AiaynGenerationMixin(GenerationMixin):
    """generate() of transformers with default lengths, and with an error if the scores are NaN."""

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        """Reject continuous batching, which would fail in a thread and return only the prompts."""
        raise ValueError(
            "Continuous batching (generate_batch, cache_implementation='paged') needs a paged "
            "cache, which these models do not have. Use generate(), or Translator."
        )

    def generate(
        self,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: Sequence[LogitsProcessor] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Generate as `GenerationMixin.generate` does; see its arguments and output.

        If no length is given, max_tokens_beyond_source (an argument, or a field of the generation
        config) limits how much longer than its source a translation is. A language model adds 20
        tokens. A learned position table limits both. Seq2SeqTrainer's own max_length is removed.

        Raises:
            ValueError: A score is NaN, a learned position table is too short, or
                forced_bos_token_id is a list.
        """
        if has_trainer_length(self.generation_config):
            self.generation_config.max_length = None
        given = dict(kwargs)

        def get_setting(name: str) -> Any:
            if name in given:
                return given[name]
            value = getattr(generation_config, name, None)
            return getattr(self.generation_config, name, None) if value is None else value

        if isinstance(get_setting("forced_bos_token_id"), list | Tensor):
            raise ValueError("forced_bos_token_id must be one id. Call it for each language.")
        kwargs |= self._hide_padding(inputs, kwargs)
        kwargs.pop("max_tokens_beyond_source", None)
        nan_check = NonFiniteScores()
        processors = [*(logits_processor or []), nan_check]
        if get_setting("max_length") is None and get_setting("max_new_tokens") is None:
            settings, limits = self._default_length(find_input(inputs, kwargs), kwargs, get_setting)
            processors += limits
            if generation_config is None:
                kwargs |= settings
            else:  # transformers warns if both have settings
                generation_config = copy.deepcopy(generation_config)
                generation_config.update(**settings)
        try:
            output = super().generate(
                inputs, generation_config, LogitsProcessorList(processors), *args, **kwargs
            )
        except RuntimeError:  # torch.multinomial raises it for NaN
            nan_check.check(self.dtype)
            raise
        nan_check.check(self.dtype)
        return output

    def _hide_padding(self, inputs: Tensor | None, kwargs: Kwargs) -> Kwargs:  # noqa: ARG002
        return {}

    def _default_length(
        self,
        prompt: Tensor | None,
        kwargs: Kwargs,  # noqa: ARG002
        get_setting: Setting,
    ) -> SettingsAndLimits:
        prefix = 1 if prompt is None else prompt.size(1)  # 1: transformers starts from bos
        new_tokens = max(DEFAULT_NEW_TOKENS, minimum_new_tokens(prefix, get_setting))
        return {"max_new_tokens": self._within_positions(new_tokens, prefix)}, []

    def _within_positions(self, new_tokens: int, prefix: int) -> int:
        """Limit new_tokens to the positions that a learned table has left after the prefix."""
        positions = self.model.decoder.embed_positions.max_length
        # One more than the table has: the last token is predicted, but needs no position.
        if positions is None or positions + 1 <= prefix:
            return new_tokens
        return min(new_tokens, positions + 1 - prefix)


class TranslationGenerationMixin(AiaynGenerationMixin):
    """generate() of a model with a source: section 6.1's length limit, and a cache for beams."""

    def _hide_padding(self, inputs: Tensor | None, kwargs: Kwargs) -> Kwargs:
        source = find_input(inputs, kwargs)
        is_masked = kwargs.get("attention_mask") is not None
        if source is None or is_masked or kwargs.get("inputs_embeds") is not None:
            return {}
        mask = torch.ones(source.shape[:2], dtype=torch.long, device=source.device)  # [B, S]
        if source.dim() == 2 and not self.config.pads_with_eos:
            mask *= source != self.config.pad_token_id
        return {"attention_mask": mask}  # decoding steps do not see the source ids

    def _default_length(
        self, prompt: Tensor | None, kwargs: Kwargs, get_setting: Setting
    ) -> SettingsAndLimits:
        prefix = prefix_length(kwargs.get("decoder_input_ids"), get_setting)
        max_beyond = get_setting("max_tokens_beyond_source")
        max_beyond = MAX_TOKENS_BEYOND_SOURCE if max_beyond is None else max_beyond
        length = 1 if prompt is None else prompt.size(1)
        least = minimum_new_tokens(prefix, get_setting)
        new_tokens = self._within_positions(max(length + max_beyond, least), prefix)
        settings: Kwargs = {"max_new_tokens": new_tokens}
        limits: list[LogitsProcessor] = []
        is_real, eos = kwargs.get("attention_mask"), get_setting("eos_token_id")
        ends = [] if eos is None else torch.as_tensor(eos).reshape(-1).tolist()
        ends = [token_id for token_id in ends if token_id >= 0]  # -1 means no end token
        if is_real is not None and ends:
            # When sampling, transformers normalizes last, after its filters, and draws from that.
            if get_setting("renormalize_logits") and not get_setting("do_sample"):
                # Normalize before the limit: after it, eos would have a probability of 1.
                limits.append(LogitNormalization())
                settings["renormalize_logits"] = False
            lengths = (is_real.sum(-1) + max_beyond).clamp(min=least)  # [N]
            lengths = prefix + lengths.clamp(max=new_tokens)  # [N]
            limits.append(SourceRelativeLength(lengths, torch.tensor(ends, device=is_real.device)))
        return settings, limits

    def prepare_inputs_for_generation(
        self, *args: Any, decoder_attention_mask: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Prepare one step's inputs, with positions that skip padding in the target.

        They are counted here: with a static cache, transformers' later mask does not show padding.
        """
        mask = decoder_attention_mask
        if mask is not None and mask.dim() == 2:
            kwargs["decoder_position_ids"] = (mask.long().cumsum(-1) - 1).clamp(min=0)
        return super().prepare_inputs_for_generation(*args, decoder_attention_mask=mask, **kwargs)

    @staticmethod
    def _reorder_cache(cache: EncoderDecoderCache, beam_idx: Tensor) -> Cache:
        """Reorder only self-attention's keys and values: all beams of a sentence share a source."""
        cache.self_attention_cache.reorder_cache(beam_idx)
        return cache


def find_input(inputs: Tensor | None, kwargs: Kwargs) -> Tensor | None:
    """Return the input of generate(): ids, [B, S], embeddings or encoder output, [B, S, D]."""
    encoded = kwargs.get("encoder_outputs")
    embeds, ids = kwargs.get("inputs_embeds"), kwargs.get("input_ids")
    # transformers rejects anything else.
    for given in (inputs, embeds, ids, encoded and encoded[0]):
        if isinstance(given, Tensor) and given.dim() > 1:
            return given
    return None


def has_trainer_length(generation_config: GenerationConfig) -> bool:
    """Whether max_length is the default that Seq2SeqTrainer writes, with all other defaults."""
    is_trainers = generation_config.encoder_repetition_penalty is not None  # users rarely set it
    return is_trainers and generation_config.max_length == TRAINER_MAX_LENGTH


def minimum_new_tokens(prefix: int, get_setting: Setting) -> int:
    """Minimum number of tokens after the prefix, by min_new_tokens and min_length."""
    least, least_in_all = get_setting("min_new_tokens"), get_setting("min_length")
    return max(least or 0, (least_in_all or 0) - prefix)


def prefix_length(decoder_input_ids: Tensor | None, get_setting: Setting) -> int:
    """Return the length of the target's prefix. transformers adds a start token if it has none."""
    start = get_setting("decoder_start_token_id")
    start = get_setting("bos_token_id") if start is None else start
    if decoder_input_ids is None or start is None:
        return 1
    has_start = decoder_input_ids[:, 0] == torch.as_tensor(start, device=decoder_input_ids.device)
    return decoder_input_ids.size(1) + int(not has_start.any())
