"""Checks and defaults of a model's inputs: ids, masks, positions and caches."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from .configuration_aiayn import AiaynConfig
from .dropout import is_transformed

# Name of the cache in transformers' arguments and outputs; version 5.24 renamed it.
CACHE_NAME = (
    "cache" if hasattr(BaseModelOutputWithPastAndCrossAttentions, "cache") else "past_key_values"
)


def one_cache(
    cache: Cache | None, past_key_values: Cache | None, others: Mapping[str, Any]
) -> Cache | None:
    """Return the cache, by either name. If a model ignored it, generated texts would be wrong."""
    caches = [given for given in (cache, past_key_values) if given is not None]
    if past_key_values is not None and CACHE_NAME == "cache" and not is_transformed():
        text = "`past_key_values` is deprecated since transformers 5.24. Use `cache` instead."
        warnings.warn(text, FutureWarning, stacklevel=2)
    if len(caches) > 1 or any(isinstance(value, Cache) for value in others.values()):
        raise ValueError(
            "Pass one cache, as cache or as past_key_values. PEFT 0.21 passes both for prefix "
            "tuning: generate with transformers 5.23, or use LoRA."
        )
    return caches[0] if caches else None


def is_replayed(layer: nn.Module) -> bool:
    """Whether gradient checkpointing runs a layer again in the backward pass.

    The second run would add the same keys to a cache again. transformers removes the cache from
    the layer's arguments, but before 5.24 only if it is named past_key_values.
    """
    is_checkpointed = getattr(layer, "gradient_checkpointing", False)
    return bool(is_checkpointed and layer.training and torch.is_grad_enabled())


def count_positions(
    attention_mask: Tensor | None, past_length: int | Tensor, inputs_embeds: Tensor
) -> Tensor:
    """Count positions, [B, T] or [1, T], over real tokens; padding on the left does not count.

    Args:
        attention_mask: 1 for real tokens, [B, past_length + T], or longer for a static cache. None
            or a ready 4D mask: every token counts.
        past_length: Tokens in the cache.
        inputs_embeds: Embeddings of the new tokens, [B, T, D].
    """
    index = torch.arange(inputs_embeds.size(1), device=inputs_embeds.device) + past_length  # [T]
    if not isinstance(attention_mask, Tensor) or attention_mask.dim() != 2:
        return index[None]  # [1, T]
    positions = attention_mask.long().cumsum(-1) - 1  # [B, past_length + T]
    return positions[:, index].clamp(min=0)  # [B, T]


def source_mask(
    input_ids: Tensor | None, attention_mask: Tensor | None, config: AiaynConfig
) -> Tensor | None:
    """Return attention_mask, [B, S], if given, else a mask that hides the padding of input_ids.

    Without a mask, padding is not hidden if its id is also an end token, as in transformers.
    """
    if attention_mask is None and input_ids is not None and not config.pads_with_eos:
        return (input_ids != config.pad_token_id).long()  # [B, S]
    return attention_mask


def check_ids(input_ids: Tensor, vocab_size: int) -> None:
    """Check that every id has an embedding; an accelerator's own error would not name the id.

    Raises:
        ValueError: An id is below 0 or not below vocab_size.
    """
    is_invalid = (input_ids < 0) | (input_ids >= vocab_size)  # [...]
    if is_invalid.any():
        index = is_invalid.nonzero()[0].tolist()
        raise ValueError(
            f"Each input id must be in [0, {vocab_size}), got {input_ids[tuple(index)].item()} at "
            f"index {index}. Check that the tokenizer belongs to this model."
        )


def check_mask(mask: Tensor | None, shape: tuple[int, ...], name: str) -> None:
    """Check that a mask has a 0 or a 1 for each token or state.

    A 4D mask must be ready for attention: True where a query may attend, or floating-point numbers
    to add to scores.

    Raises:
        ValueError: The mask has another shape, dtype or values.
    """
    if not isinstance(mask, Tensor):  # None, or FlexAttention's block mask
        return
    if mask.dim() == 4 and not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise ValueError(
            "A 4D attention mask must be boolean, or hold floating-point numbers to add to the "
            f"scores, got {mask.dtype}. Pass mask.bool() if 1 means that a query may attend."
        )
    if mask.dim() == 4:
        return
    if mask.shape != shape:
        raise ValueError(
            f"The attention mask must have one entry per {name}, got a mask of shape "
            f"{tuple(mask.shape)} for {name}s of shape {shape}."
        )
    is_readable = mask.device.type == "cpu" and not is_transformed()
    if is_readable and not ((mask == 0) | (mask == 1)).all():
        raise ValueError(
            f"The attention mask must hold 1 for real {name}s and 0 for padding, got the values "
            f"{sorted(set(mask.flatten().tolist()))[:5]}."
        )


def check_source(
    encoder_hidden_states: Tensor | None, encoder_attention_mask: Tensor | None
) -> None:
    """Check that the encoder's output, [B, S, D], is given, and that its mask, [B, S], fits."""
    if encoder_hidden_states is None:
        raise ValueError("The decoder needs encoder_hidden_states, the encoder's output.")
    check_mask(encoder_attention_mask, tuple(encoder_hidden_states.shape[:2]), "state")
