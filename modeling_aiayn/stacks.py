"""Figure 1's two stacks: embeddings and N layers."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from transformers import Cache, DynamicCache, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPastAndCrossAttentions
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention import MultiHeadAttention
from .configuration_aiayn import AiaynConfig
from .dropout import drop, is_transformed
from .inputs import (
    CACHE_NAME,
    check_ids,
    check_mask,
    check_source,
    count_positions,
    is_replayed,
    one_cache,
    source_mask,
)
from .layers import (
    DecoderLayer,
    EncoderLayer,
    LayerSizes,
    LearnedPositions,
    SinusoidalPositions,
    TransformerLayer,
)
from .pretrained import AiaynPreTrainedModel


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
        """Return token embeddings, [B, T, D]: the rows of input_ids, or inputs_embeds itself.

        Ids on a CPU are always checked. Checking makes an accelerator wait, so there ids are
        checked only outside training, at the first step of decoding (past_length 0).

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
        if is_transformed() or values.device.type == "meta":
            return False
        is_first = isinstance(past_length, int) and past_length == 0
        return values.device.type == "cpu" or (is_first and not self.training)

    def embed(self, *inputs: Any, **options: Any) -> Tensor:
        """Section 5.4: `add_positions`, then dropout, [B, T, D]; the arguments are the same."""
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
        """Check that a learned table has position_ids, or num_positions if ids cannot be read."""
        rows = self.embed_positions.max_length
        if rows is not None and position_ids.numel() and self._can_check(position_ids, past_length):
            num_positions = int(position_ids.max()) + 1
        if rows is not None and num_positions > rows:
            raise ValueError(
                f"The learned position table has max_position_embeddings={rows} positions, the "
                f"input needs {num_positions}. Shorten the input, or train a model with "
                "position_type='sinusoidal', which has no limit."
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
    # For output_hidden_states=[-1]. OutputRecorder of older transformers takes no such argument.
    _layer_recorder.num_hidden_layers_key = "decoder_layers"
    _can_record_outputs = {
        "hidden_states": _layer_recorder,
        "attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="encoder_attn"),
    }
    _missing_inputs_message = (
        "The decoder needs exactly one input: decoder_input_ids, labels or decoder_inputs_embeds; "
        "in a language model input_ids or inputs_embeds. With label smoothing in Seq2SeqTrainer, "
        "use DataCollatorForSeq2Seq(tokenizer, model=model). For the encoder alone, load "
        "AutoModelForTextEncoding."
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
            past_key_values: The name of cache before transformers 5.24. Pass only one of them.
            inputs_embeds: Rows of the embedding matrix instead of input_ids, [B, T, D].
            position_ids: Positions of the tokens, [B, T]. None: counted over real tokens.
            use_cache: Whether to return keys and values for later steps.
            cache: Cached keys and values of earlier steps.
            **kwargs: Arguments that transformers passes to every model.

        Returns:
            The decoder's output in last_hidden_state, [B, T, D], and the cache.
        """
        cache = one_cache(cache, past_key_values, kwargs)
        if self.has_source:
            check_source(encoder_hidden_states, encoder_attention_mask)
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
    shared = {name: vars(config)[name] for name in names}  # vars: head_dim may be None
    heads, width = getattr(config, f"{half}_attention_heads"), getattr(config, f"{half}_ffn_dim")
    return LayerSizes(num_heads=heads, ffn_dim=width, **shared)
