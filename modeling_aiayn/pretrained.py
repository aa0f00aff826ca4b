"""The base class of all models: how transformers loads, resizes, splits and initializes them."""

import copy
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .attention import AttentionFunction, eager_attention_forward
from .configuration_aiayn import AiaynConfig
from .layers import LearnedPositions


class AiaynPreTrainedModel(PreTrainedModel):
    """Base class of all models here. It tells transformers how to load, split and run them."""

    config: AiaynConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["EncoderLayer", "DecoderLayer"]
    _skip_keys_device_placement = ["past_key_values", "cache"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    # The stack whose embedding turns input_ids into vectors.
    _input_half = "encoder"

    def __init__(self, config: AiaynConfig, *args: Any, **kwargs: Any) -> None:
        # Validate again: from_pretrained(folder, dropout=1.5) sets fields after the first time.
        config.validate_architecture()
        # "eager", this package's own attention, is the default; transformers would choose "sdpa".
        config._attn_implementation = config._attn_implementation or "eager"
        super().__init__(config, *args, **kwargs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Give the class that FSDP2 makes for a sharded model the name of the original class.

        save_pretrained writes the name of a model's class, and copies the code of its module.
        """
        super().__init_subclass__(**kwargs)
        original = cls.__bases__[-1]
        if cls.__name__ == f"FSDP{original.__name__}":
            cls.__name__, cls.__module__ = original.__name__, original.__module__

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the embedding of input_ids."""
        stack: Any = getattr(self.base_model, self._input_half, self)
        return stack.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the embedding of input_ids, in both halves if they share it.

        Call tie_weights() to update a tied output projection.
        """
        is_shared = self.config.tie_word_embeddings and self.config.decoder_vocab_size is None
        stack: Any = getattr(self.base_model, self._input_half, self)
        for half in self._stacks() if is_shared else [stack]:
            half.embed_tokens = value

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize the vocabulary, as PreTrainedModel does; only the source's if there are two."""
        stacks, config = self._stacks(), self.config
        if config.decoder_vocab_size is not None and len(stacks) > 1:
            # Resize only the encoder: the output projection belongs to the target's vocabulary.
            embedding = stacks[0].resize_token_embeddings(*args, **kwargs)
        else:
            embedding = super().resize_token_embeddings(*args, **kwargs)
            for stack in stacks:
                if stack.embed_tokens.weight is not embedding.weight:  # not tied
                    stack.resize_token_embeddings(*args, **kwargs)
                stack.embed_tokens.num_embeddings = embedding.num_embeddings
        config.vocab_size = embedding.num_embeddings
        if config.decoder_vocab_size is not None and self._input_half == "decoder":
            config.decoder_vocab_size = config.vocab_size
        return embedding

    def resize_decoder_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize the target's own vocabulary; arguments as in `resize_token_embeddings`."""
        if self.config.decoder_vocab_size is None:
            raise ValueError("Source and target share a vocabulary. Call resize_token_embeddings.")
        self._input_half = "decoder"
        try:
            embedding = super().resize_token_embeddings(*args, **kwargs)
        finally:
            del self._input_half
        self.config.decoder_vocab_size = embedding.num_embeddings
        return embedding

    def _stacks(self) -> list[Any]:
        return [module for module in self.modules() if hasattr(module, "embed_tokens")]

    @property
    def attention_function(self) -> AttentionFunction:
        """The attention implementation that config names, looked up at each call."""
        return ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialize matrices by Xavier; if embeddings are tied, tables by a normal distribution.

        A tied embedding is also the output projection. Its entries have a standard deviation of
        d_model^-0.5, which scaling (section 3.4) makes 1. Learned positions get the same standard
        deviation as the scaled embeddings: much smaller values would have little effect.
        """
        is_embedding = isinstance(module, nn.Embedding)
        if isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif is_embedding and not self.config.tie_word_embeddings:
            init.xavier_uniform_(module.weight)
        elif is_embedding:
            is_position = isinstance(module, LearnedPositions)
            has_unit_std = is_position and self.config.scale_embedding
            init.normal_(module.weight, std=1.0 if has_unit_std else self.config.d_model**-0.5)
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)


def config_for_class(
    config: AiaynConfig, is_encoder_decoder: bool, vocab_size: int | None = None
) -> AiaynConfig:
    """Return config if it has these values, else a copy; generate() reads is_encoder_decoder."""
    vocab_size = vocab_size or config.vocab_size
    if (config.is_encoder_decoder, config.vocab_size) != (is_encoder_decoder, vocab_size):
        config = copy.deepcopy(config)
        config.is_encoder_decoder, config.vocab_size = is_encoder_decoder, vocab_size
    return config
