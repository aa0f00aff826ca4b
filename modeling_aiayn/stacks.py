"""Figure 1's two stacks: embeddings, N layers, and the base class that transformers needs."""

import copy
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, EncoderDecoderCache, PreTrainedModel
from transformers import initialization as init
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPastAndCrossAttentions
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention import AttentionFunction, MultiHeadAttention, eager_attention_forward
from .configuration_aiayn import AiaynConfig
from .dropout import drop, is_transformed
from .generation import one_cache
from .layers import (
    DecoderLayer,
    EncoderLayer,
    LayerSizes,
    LearnedPositions,
    SinusoidalPositions,
    TransformerLayer,
)

# The library's name for a cache, in arguments and outputs: transformers 5.24 renamed it.
CACHE_NAME = (
    "cache" if hasattr(BaseModelOutputWithPastAndCrossAttentions, "cache") else "past_key_values"
)
# Attention implementations that return no weights. One that a user registers may return them.
WITHOUT_WEIGHTS = ("sdpa", "flash_attention", "flex_attention", "aiayn_", "kernels-community/")


class AiaynPreTrainedModel(PreTrainedModel):
    """Base class of all models here: declares to transformers how to load, split and run them."""

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
        # from_pretrained(folder, dropout=1.5) sets the field after the configuration was validated.
        config.validate_architecture()
        # The hand-written attention is the default; transformers would choose "sdpa".
        config._attn_implementation = config._attn_implementation or "eager"
        super().__init__(config, *args, **kwargs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Hide the class of torch that FSDP2 makes for a divided model.

        save_pretrained writes the name of a model's class, and the code of its module.
        """
        super().__init_subclass__(**kwargs)
        own = cls.__bases__[-1]
        if cls.__name__ == f"FSDP{own.__name__}":
            cls.__name__, cls.__module__ = own.__name__, own.__module__

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
        for each in self._stacks() if is_shared else [stack]:
            each.embed_tokens = value

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
        """Change the size of the target's own vocabulary. Arguments as for PreTrainedModel."""
        if self.config.decoder_vocab_size is None:
            raise ValueError("Source and target share a vocabulary. Call resize_token_embeddings.")
        self._input_half = "decoder"
        try:
            embedding = super().resize_token_embeddings(*args, **kwargs)
        finally:
            del self._input_half
        self.config.decoder_vocab_size = embedding.num_embeddings
        return embedding

    @property
    def dummy_inputs(self) -> dict[str, Tensor]:
        """Inputs of a forward pass, for tools that trace a model."""
        inputs = super().dummy_inputs
        if self.config.is_encoder_decoder and len(self._stacks()) > 1:
            inputs["decoder_input_ids"] = inputs["input_ids"]
        return inputs

    def _stacks(self) -> list["AiaynStack"]:
        return [module for module in self.modules() if isinstance(module, AiaynStack)]

    @property
    def attention_function(self) -> AttentionFunction:
        """The attention implementation that config names, looked up at each call."""
        return ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise matrices by Xavier, and with tied embeddings all tables by a normal.

        A tied embedding is also the output projection. Its entries have a standard deviation of
        d_model^-0.5, which scaling (section 3.4) makes 1. Learned positions then get the standard
        deviation of the scaled embeddings: much smaller positions would hardly count beside them.
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


class AiaynStack(AiaynPreTrainedModel):
    """Embeddings, layers and an optional final norm: the parts that encoder and decoder share."""

    main_input_name = "input_ids"
    _missing_inputs_message = "The encoder needs either input_ids or inputs_embeds, and not both."
    _fsdp_plan = {"layers.*": "free_full_weight"}

    def __init__(
        self, config: AiaynConfig, vocab_size: int, layers: Sequence[TransformerLayer]
    ) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(vocab_size, config.d_model)
        self.embed_positions: SinusoidalPositions | LearnedPositions
        if config.position_type == "learned":
            self.embed_positions = LearnedPositions(
                config.max_position_embeddings, config.d_model, config.position_offset
            )
        else:
            self.embed_positions = SinusoidalPositions(
                config.d_model, config.position_base, config.position_offset
            )
        self.dropout = config.dropout
        self.embed_scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.layers = nn.ModuleList(layers)
        final_norm = config.norm_first if config.final_norm is None else config.final_norm
        self.layer_norm = (
            nn.LayerNorm(config.d_model, eps=config.layer_norm_eps) if final_norm else nn.Identity()
        )
        for module in self.modules():
            if isinstance(module, MultiHeadAttention):
                module.config = config  # flash_attention_2 reads config._attn_implementation
        self.gradient_checkpointing = False
        self.post_init()

    def look_up(
        self,
        input_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        past_length: int | Tensor = 0,
    ) -> Tensor:
        """Return rows of the embedding matrix, [B, T, D]: those of input_ids, or inputs_embeds.

        Checking ids makes an accelerator wait. So they are always checked on a CPU, and elsewhere
        only outside training, before the first step of decoding (past_length 0).

        Raises:
            ValueError: Both or neither were given, or an id is outside the vocabulary.
        """
        if inputs_embeds is not None and input_ids is None:
            return inputs_embeds
        if input_ids is None or inputs_embeds is not None:
            raise ValueError(self._missing_inputs_message)
        # Not weight.size(0): an embedding of another class may have no matrix.
        size = getattr(self.embed_tokens, "num_embeddings", None)
        if size is not None and self._can_check(input_ids, past_length):
            check_ids(input_ids, size)
        return self.embed_tokens(input_ids)

    def _can_check(self, values: Tensor, past_length: int | Tensor) -> bool:
        """Return whether values can be checked without making an accelerator wait."""
        if is_transformed() or values.device.type == "meta":
            return False
        is_first = isinstance(past_length, int) and past_length == 0
        return values.device.type == "cpu" or (is_first and not self.training)

    def embed(self, *inputs: Any, **options: Any) -> Tensor:
        """Section 5.4: dropout of the result of `add_positions`, [B, T, D]; same arguments."""
        return drop(self.add_positions(*inputs, **options), self.dropout, self.training)

    def add_positions(
        self,
        inputs_embeds: Tensor,
        attention_mask: Tensor | None,
        past_length: int | Tensor = 0,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """Sections 3.4 and 3.5: scale token embeddings and add positions; returns [B, T, D].

        Args:
            inputs_embeds: Rows of the embedding matrix, [B, T, D].
            attention_mask: 1 for real tokens, [B, past_length + T], or None.
            past_length: Tokens in the cache. Lengths are not checked if this is a tensor (static
                caches), because reading it would make an accelerator wait at each step.
            position_ids: Positions, [B, T]. None: counted over real tokens. They are checked when
                input_ids are (see `look_up`).

        Raises:
            ValueError: The mask does not fit the tokens, or a learned table is too short.
        """
        batch_size, length = inputs_embeds.shape[:2]
        num_positions = 0
        if isinstance(past_length, int):
            length += past_length
            check_mask(attention_mask, (batch_size, length), "token")
            num_positions = length if position_ids is None else 0
        if position_ids is None:
            position_ids = count_positions(attention_mask, past_length, inputs_embeds)
        self._check_table(position_ids, past_length, num_positions)
        encodings = self.embed_positions(position_ids).to(inputs_embeds)
        return inputs_embeds * self.embed_scale + encodings  # [B, T, D]

    def _check_table(
        self, position_ids: Tensor, past_length: int | Tensor, num_positions: int
    ) -> None:
        """Check that a learned table has all positions, or num_positions if they cannot be read."""
        rows = self.embed_positions.max_length
        if rows is None:
            return
        lowest = 0
        if position_ids.numel() and self._can_check(position_ids, past_length):
            lowest, num_positions = int(position_ids.min()), int(position_ids.max()) + 1
        if num_positions > rows or lowest < 0:
            raise ValueError(
                f"The learned position table has max_position_embeddings={rows} positions, 0 to "
                f"{rows - 1}, got position {lowest if lowest < 0 else num_positions - 1}. Shorten "
                "the input, or train a model with position_type='sinusoidal', which has no limit."
            )

    def check_output_attentions(self, output_attentions: bool | None = None) -> None:
        """Check that the implementation computes attention weights if they are asked for.

        Raises:
            ValueError: Weights are asked for, and the implementation returns none.
        """
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        implementation = self.config._attn_implementation
        has_weights = not (implementation or "").startswith(WITHOUT_WEIGHTS)
        if output_attentions and not has_weights:
            raise ValueError(
                "output_attentions=True needs attn_implementation='eager', got "
                f"{implementation!r}, which computes no attention weights. Load the model with "
                "attn_implementation='eager', or call model.set_attn_implementation('eager')."
            )


class AiaynEncoder(AiaynStack):
    """Figure 1, left: N encoder layers over the embedded source."""

    _can_record_outputs = {
        "hidden_states": EncoderLayer,
        "attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="self_attn"),
    }
    _tp_plan = {
        "embed_tokens": "embedding_rowwise",
        "layers.*.self_attn.q_proj": "colwise",
        "layers.*.self_attn.k_proj": "colwise",
        "layers.*.self_attn.v_proj": "colwise",
        "layers.*.self_attn.out_proj": "rowwise",
        "layers.*.fc1": "colwise",
        "layers.*.fc2": "rowwise",
    }

    def __init__(self, config: AiaynConfig) -> None:
        sizes = layer_sizes(config, "encoder")
        layers = [EncoderLayer(sizes) for _ in range(config.encoder_layers)]
        super().__init__(config, config.vocab_size, layers)

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """Encode a source.

        Args:
            input_ids: Source ids, [B, S].
            attention_mask: 1 for real tokens, [B, S]. None: every token that is not padding.
            inputs_embeds: Rows of the embedding matrix instead of input_ids, [B, S, D].
            position_ids: Positions of the tokens, [B, S]. None: counted over real tokens.
            **kwargs: Arguments that transformers passes to every model.

        Returns:
            The encoder's output in last_hidden_state, [B, S, D].
        """
        self.check_output_attentions(kwargs.get("output_attentions"))
        attention_mask = source_mask(input_ids, attention_mask, self.config)
        embedded = self.look_up(input_ids, inputs_embeds)
        hidden_states = self.embed(embedded, attention_mask, position_ids=position_ids)
        mask = create_bidirectional_mask(
            config=self.config, inputs_embeds=hidden_states, attention_mask=attention_mask
        )
        for layer in self.layers:
            hidden_states = layer(
                hidden_states, mask, attention_function=self.attention_function, **kwargs
            )
        return BaseModelOutput(last_hidden_state=self.layer_norm(hidden_states))


class AiaynDecoder(AiaynStack):
    """Figure 1, right: N decoder layers over the embedded target so far.

    Args:
        config: The model's configuration. Layers attend to a source if is_encoder_decoder is set.
    """

    _layer_recorder = OutputRecorder(DecoderLayer)
    # output_hidden_states=[-1] needs the number of layers. Older constructors do not take the key.
    _layer_recorder.num_hidden_layers_key = "decoder_layers"
    _can_record_outputs = {
        "hidden_states": _layer_recorder,
        "attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="encoder_attn"),
    }
    _missing_inputs_message = (
        "The decoder needs exactly one input: decoder_input_ids, labels or decoder_inputs_embeds; "
        "in a language model input_ids or inputs_embeds. With label smoothing in Seq2SeqTrainer, "
        "use DataCollatorForSeq2Seq(tokenizer, model=model). To use only the encoder, load "
        "AutoModelForTextEncoding; its saved folder opens with AutoModel."
    )
    _tp_plan = AiaynEncoder._tp_plan | {
        name.replace("self_attn", "encoder_attn"): style
        for name, style in AiaynEncoder._tp_plan.items()
    }

    def __init__(self, config: AiaynConfig) -> None:
        sizes = layer_sizes(config, "decoder")
        has_source = config.is_encoder_decoder
        layers = [DecoderLayer(sizes, n, has_source) for n in range(config.decoder_layers)]
        super().__init__(config, config.decoder_vocab_size or config.vocab_size, layers)
        self.has_source = has_source
        if not has_source:
            self._tp_plan = {
                name: style for name, style in self._tp_plan.items() if "encoder_attn" not in name
            }

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        use_cache: bool | None = None,
        cache: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Decode a target, or its next tokens.

        Args:
            input_ids: Target ids that are not in the cache yet, [B, T].
            attention_mask: 1 for real target tokens, cached ones included, [B, past + T].
            encoder_hidden_states: The encoder's output, [B, S, D].
            encoder_attention_mask: 1 for real source tokens, [B, S].
            past_key_values: The cache, by its name before transformers 5.24. Pass only one.
            inputs_embeds: Rows of the embedding matrix instead of input_ids, [B, T, D].
            position_ids: Positions of the tokens, [B, T]. None: counted over real tokens.
            use_cache: Whether to return keys and values for later steps.
            cache: Cached keys and values of earlier steps.
            **kwargs: Arguments that transformers passes to every model.

        Returns:
            The decoder's output in last_hidden_state, [B, T, D], and the cache.
        """
        cache = one_cache(cache, past_key_values, kwargs)
        check_source = check_source_inputs if self.has_source else check_no_source
        check_source(encoder_hidden_states, encoder_attention_mask, cache)
        self.check_output_attentions(kwargs.get("output_attentions"))
        if use_cache and cache is None:
            cache = DynamicCache()
            if self.has_source:
                cache = EncoderDecoderCache(cache, DynamicCache())
        self_cache = getattr(cache, "self_attention_cache", cache)
        past_length = 0 if self_cache is None else self_cache.get_seq_length()
        inputs_embeds = self.look_up(input_ids, inputs_embeds, past_length)
        hidden_states = self.embed(inputs_embeds, attention_mask, past_length, position_ids)
        mask_arguments = {"config": self.config, "inputs_embeds": hidden_states}
        causal_mask = create_causal_mask(
            **mask_arguments,
            attention_mask=attention_mask,
            position_ids=position_ids,
            **{CACHE_NAME: self_cache},
        )
        cross_mask = None
        if self.has_source:
            cross_mask = create_bidirectional_mask(
                **mask_arguments,
                attention_mask=encoder_attention_mask,
                encoder_hidden_states=encoder_hidden_states,
            )
        for layer in self.layers:
            hidden_states = layer(
                hidden_states,
                encoder_hidden_states,
                causal_mask,
                cross_mask,
                cache=None if is_replayed(layer) else cache,
                attention_function=self.attention_function,
                **kwargs,
            )
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=self.layer_norm(hidden_states),
            **{CACHE_NAME: cache if use_cache else None},
        )


def layer_sizes(config: AiaynConfig, half: str) -> LayerSizes:
    """Return the layer sizes of one half of the model, "encoder" or "decoder"."""
    names = {field.name for field in dataclasses.fields(LayerSizes)} - {"num_heads", "ffn_dim"}
    shared = {name: getattr(config, name) for name in names}
    heads, width = getattr(config, f"{half}_attention_heads"), getattr(config, f"{half}_ffn_dim")
    return LayerSizes(num_heads=heads, ffn_dim=width, **shared)


def config_for_class(
    config: AiaynConfig, is_encoder_decoder: bool, vocab_size: int | None = None
) -> AiaynConfig:
    """Return config, or a copy with these values; generate() reads is_encoder_decoder."""
    vocab_size = vocab_size or config.vocab_size
    if (config.is_encoder_decoder, config.vocab_size) != (is_encoder_decoder, vocab_size):
        config = copy.deepcopy(config)
        config.is_encoder_decoder, config.vocab_size = is_encoder_decoder, vocab_size
    return config


def count_positions(
    attention_mask: Tensor | None, past_length: int | Tensor, inputs_embeds: Tensor
) -> Tensor:
    """Count positions, [B, T] or [1, T], over real tokens only: padding on the left shifts none.

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

    Without a mask, a padding id that also ends texts counts as a token, as in the library's models.
    """
    if attention_mask is None and input_ids is not None and not config.pads_with_eos:
        return (input_ids != config.pad_token_id).long()  # [B, S]
    return attention_mask


def check_ids(input_ids: Tensor, vocab_size: int) -> None:
    """Check that every id has a row in the embedding matrix; an accelerator would not name the id.

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
    if not isinstance(mask, Tensor):  # none, or the blocks of FlexAttention
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


def is_replayed(layer: nn.Module) -> bool:
    """Whether gradient checkpointing runs a layer once more in the backward pass.

    The second run would add the same keys to a cache again. transformers therefore removes the
    cache from the layer's arguments, but before 5.24 only under the name past_key_values.
    """
    is_checkpointed = getattr(layer, "gradient_checkpointing", False)
    return bool(is_checkpointed and layer.training and torch.is_grad_enabled())


def check_no_source(encoder_hidden_states: Tensor | None, *_: Any) -> None:
    """Check that a language model gets no encoder's output."""
    if encoder_hidden_states is not None:
        raise ValueError(
            "A language model has no attention over a source. Leave out encoder_hidden_states, or "
            "load AutoModelForSeq2SeqLM."
        )


def check_source_inputs(
    encoder_hidden_states: Tensor | None,
    encoder_attention_mask: Tensor | None,
    cache: Cache | None,
) -> None:
    """Check that the encoder's output, its mask and the cache fit a decoder with a source."""
    if encoder_hidden_states is None:
        raise ValueError("The decoder needs encoder_hidden_states, the encoder's output.")
    check_mask(encoder_attention_mask, tuple(encoder_hidden_states.shape[:2]), "state")
    if cache is not None and not isinstance(cache, EncoderDecoderCache):
        raise ValueError(
            "A decoder with a source needs an EncoderDecoderCache, got a "
            f"{type(cache).__name__}. Pass EncoderDecoderCache(cache, DynamicCache())."
        )
