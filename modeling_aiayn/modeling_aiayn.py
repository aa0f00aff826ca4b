"""Section 3 as PreTrainedModels: the paper's Transformer behind Hugging Face's interface."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
)
from transformers import initialization as init
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, slice_logits_to_keep
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention import AttentionFunction, MultiHeadAttention, eager_attention_forward
from .configuration_aiayn import AiaynConfig
from .layers import (
    DecoderLayer,
    EncoderLayer,
    LayerSizes,
    LearnedPositions,
    SinusoidalPositions,
    TransformerLayer,
)

# What losses leave out, by the convention of torch and of transformers' collators.
IGNORED_LABEL = -100

# Section 6.1 lets an output be this much longer than its input.
MAX_TOKENS_BEYOND_SOURCE = 50


def label_smoothed_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    num_items_in_batch: Tensor | int | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Section 5.4: cross-entropy against targets of which a share is spread over the vocabulary.

    The sum over real target tokens is divided by their number in the whole optimiser step, so
    neither padding nor accumulation nor the number of processes changes the objective.

    Args:
        logits: Scores, [B, T, V].
        labels: Target ids, [B, T]; -100 where there is none.
        num_items_in_batch: Real target tokens in the whole step. None: those in labels.
        label_smoothing: Share spread evenly over all V entries.

    Returns:
        The loss in nats per token, []; 0 where there is no target token at all.
    """
    total = functional.cross_entropy(
        logits.flatten(0, 1).float(),
        labels.flatten().to(logits.device),
        ignore_index=IGNORED_LABEL,
        label_smoothing=label_smoothing,
        reduction="sum",
    )
    if num_items_in_batch is None:
        num_items_in_batch = (labels != IGNORED_LABEL).sum()
    if isinstance(num_items_in_batch, Tensor):
        return total / num_items_in_batch.to(total.device).clamp(min=1)
    return total / max(num_items_in_batch, 1)


def shift_right(labels: Tensor, start_token_id: int, pad_token_id: int) -> Tensor:
    """Figure 1, "outputs (shifted right)": what the decoder sees when it is to predict labels.

    Args:
        labels: Target ids, [B, T]; -100 where there is none. Left as they are.
        start_token_id: Id put before each target.
        pad_token_id: Id put in the place of -100.

    Returns:
        Decoder input ids, [B, T].
    """
    shifted = functional.pad(labels[:, :-1], (1, 0), value=start_token_id)
    return shifted.masked_fill(shifted == IGNORED_LABEL, pad_token_id)


def positions_of(attention_mask: Tensor | None, past_length: int | Tensor, like: Tensor) -> Tensor:
    """Positions counted over real tokens, so that padding on the left moves nothing.

    Args:
        attention_mask: 1 for real tokens, [B, past_length + T]; or None, or a ready 4D mask, where
            every token counts.
        past_length: Tokens that the cache holds.
        like: Embeddings of the tokens to place, [B, T, D].

    Returns:
        Position ids, [B, T] or [1, T].
    """
    length = like.size(1)
    if attention_mask is None or attention_mask.dim() != 2:
        return (torch.arange(length, device=like.device) + past_length)[None]  # [1, T]
    positions = attention_mask.cumsum(-1) - 1  # [B, past_length + T]
    return positions[:, -length:].clamp(min=0)  # [B, T]


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
        """Leave only eos to rows at their limit.

        Args:
            input_ids: Output so far, [B, T].
            scores: Scores of the next token, [B, V].

        Returns:
            Scores, [B, V].
        """
        at_limit = input_ids.size(1) + 1 >= self.max_lengths  # [B]
        ending = torch.full_like(scores, -math.inf)
        ending[:, self.eos_token_ids] = 0.0
        return torch.where(at_limit[:, None], ending, scores)


class AiaynPreTrainedModel(PreTrainedModel):
    """What the library asks of each of our models, mostly as declarations."""

    config: AiaynConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["EncoderLayer", "DecoderLayer"]
    _skip_keys_device_placement = ["past_key_values"]
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True

    def get_correct_attn_implementation(
        self, requested_attention: str | None, is_init_check: bool = False
    ) -> str:
        """The hand-written attention unless another is asked for; the library would take sdpa."""
        return super().get_correct_attn_implementation(
            requested_attention or "eager", is_init_check
        )

    @property
    def attention_function(self) -> AttentionFunction:
        """The attention implementation that config names, looked up at each call."""
        return ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Xavier for every matrix but a tied embedding, which multiplies as output projection too.

        Its entries are of d_model^-0.5, of 1 when scaled, and learned positions are as large: much
        smaller ones are as good as absent. There is no buffer to rebuild: positions are computed.
        """
        is_embedding = isinstance(module, nn.Embedding)
        if isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif is_embedding and not self.config.tie_word_embeddings:
            init.xavier_uniform_(module.weight)
        elif is_embedding:
            is_unit = isinstance(module, LearnedPositions) and self.config.scale_embedding
            init.normal_(module.weight, std=1.0 if is_unit else self.config.d_model**-0.5)
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)


class AiaynStack(AiaynPreTrainedModel):
    """What encoder and decoder have in common: embeddings below the layers, a norm above them.

    Args:
        config: The model's configuration.
        vocab_size: Entries of this half's vocabulary.
        layers: This half's layers.
    """

    main_input_name = "input_ids"

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
        self.embed_scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.layers = nn.ModuleList(layers)
        final_norm = config.norm_first if config.final_norm is None else config.final_norm
        self.layer_norm = (
            nn.LayerNorm(config.d_model, eps=config.layer_norm_eps) if final_norm else nn.Identity()
        )
        self.gradient_checkpointing = False
        self.post_init()

    def embed(
        self, inputs_embeds: Tensor, attention_mask: Tensor | None, past_length: int | Tensor = 0
    ) -> Tensor:
        """Sections 3.4 and 3.5: scale token embeddings, add positions, drop out of the sum.

        Args:
            inputs_embeds: Rows of the embedding matrix, [B, T, D].
            attention_mask: 1 for real tokens, [B, past_length + T], or None.
            past_length: Tokens that the cache holds. A tensor (static caches) is not looked into,
                which would hold the device up at each step.

        Returns:
            States, [B, T, D].

        Raises:
            ValueError: The mask does not fit the tokens, or a learned table is too short for them.
        """
        batch_size, length = inputs_embeds.shape[:2]
        if isinstance(past_length, int):
            self._check_lengths(batch_size, past_length + length, attention_mask)
        positions = positions_of(attention_mask, past_length, like=inputs_embeds)
        encodings = self.embed_positions(positions).to(inputs_embeds.dtype)
        hidden_states = inputs_embeds * self.embed_scale + encodings
        return functional.dropout(hidden_states, self.config.dropout, self.training)

    def _check_lengths(self, batch_size: int, length: int, attention_mask: Tensor | None) -> None:
        shape = (batch_size, length)
        if (
            attention_mask is not None
            and attention_mask.dim() == 2
            and attention_mask.shape != shape
        ):
            raise ValueError(
                "The attention mask must have one entry per token, got a mask of shape "
                f"{tuple(attention_mask.shape)} for tokens of shape {shape}."
            )
        max_length = self.embed_positions.max_length
        if max_length is not None and length > max_length:
            raise ValueError(
                f"The learned position table has max_position_embeddings={max_length} positions, "
                f"got an input of {length} tokens. Shorten the input, or train a model with "
                "position_type='sinusoidal', which has no limit."
            )


class AiaynEncoder(AiaynStack):
    """Figure 1, left: N encoder layers over the embedded source.

    Args:
        config: The model's configuration.
    """

    _can_record_outputs = {
        "hidden_states": EncoderLayer,
        "attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="self_attn"),
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
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """Encode a source.

        Args:
            input_ids: Source ids, [B, S].
            attention_mask: 1 for real tokens, [B, S]. None: whatever is not pad.
            inputs_embeds: Rows of the embedding matrix in the place of input_ids, [B, S, D].
            **kwargs: What the library passes to every model.

        Returns:
            The encoder's output in last_hidden_state, [B, S, D].

        Raises:
            ValueError: Not exactly one of input_ids and inputs_embeds was given.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("The encoder needs either input_ids or inputs_embeds, and not both.")
        if inputs_embeds is None:
            attention_mask = source_mask(input_ids, attention_mask, self.config.pad_token_id)
            inputs_embeds = self.embed_tokens(input_ids)
        hidden_states = self.embed(inputs_embeds, attention_mask)
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
        config: The model's configuration.
    """

    _can_record_outputs = {
        "hidden_states": DecoderLayer,
        "attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="encoder_attn"),
    }

    def __init__(self, config: AiaynConfig) -> None:
        sizes = layer_sizes(config, "decoder")
        layers = [DecoderLayer(sizes, layer_idx) for layer_idx in range(config.decoder_layers)]
        super().__init__(config, config.decoder_vocab_size or config.vocab_size, layers)

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Decode a target, or its next tokens.

        Args:
            input_ids: Target ids that the cache does not hold yet, [B, T].
            attention_mask: 1 for real target tokens, those in the cache included, [B, past + T].
            encoder_hidden_states: The encoder's output, [B, S, D].
            encoder_attention_mask: 1 for real source tokens, [B, S].
            past_key_values: Keys and values of earlier steps.
            inputs_embeds: Rows of the embedding matrix in the place of input_ids, [B, T, D].
            use_cache: Whether to return keys and values for later steps.
            **kwargs: What the library passes to every model.

        Returns:
            The decoder's output in last_hidden_state, [B, T, D], and the cache.

        Raises:
            ValueError: Not exactly one of input_ids and inputs_embeds was given, or no
                encoder_hidden_states.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError(
                "The decoder needs decoder_input_ids or labels (or decoder_inputs_embeds in their "
                "place, not beside them). With label smoothing in a library Trainer, batch with "
                "DataCollatorForSeq2Seq(tokenizer, model=model)."
            )
        if encoder_hidden_states is None:
            raise ValueError("The decoder needs encoder_hidden_states, the encoder's output.")
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        if use_cache and past_key_values is None:
            past_key_values = EncoderDecoderCache(DynamicCache(), DynamicCache())
        self_cache = None if past_key_values is None else past_key_values.self_attention_cache
        past_length = 0 if self_cache is None else self_cache.get_seq_length()
        hidden_states = self.embed(inputs_embeds, attention_mask, past_length)
        causal_mask = create_causal_mask(
            config=self.config,
            inputs_embeds=hidden_states,
            attention_mask=attention_mask,
            past_key_values=self_cache,
        )
        cross_mask = create_bidirectional_mask(
            config=self.config,
            inputs_embeds=hidden_states,
            attention_mask=encoder_attention_mask,
            encoder_hidden_states=encoder_hidden_states,
        )
        for layer in self.layers:
            hidden_states = layer(
                hidden_states,
                encoder_hidden_states,
                causal_mask,
                cross_mask,
                past_key_values=past_key_values,
                attention_function=self.attention_function,
                **kwargs,
            )
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=self.layer_norm(hidden_states),
            past_key_values=past_key_values if use_cache else None,
        )


def layer_sizes(config: AiaynConfig, half: str) -> LayerSizes:
    """The numbers of a layer in one half, "encoder" or "decoder", of the model."""
    return LayerSizes(
        d_model=config.d_model,
        num_heads=getattr(config, f"{half}_attention_heads"),
        ffn_dim=getattr(config, f"{half}_ffn_dim"),
        head_dim=config.head_dim,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        activation_dropout=config.activation_dropout,
        activation_function=config.activation_function,
        norm_first=config.norm_first,
        layer_norm_eps=config.layer_norm_eps,
        attention_bias=config.attention_bias,
    )


def source_mask(
    input_ids: Tensor | None, attention_mask: Tensor | None, pad_token_id: int
) -> Tensor | None:
    """The mask that was given, else one that leaves pad out.

    Args:
        input_ids: Source ids, [B, S], or None where embeddings were given.
        attention_mask: 1 for real tokens, [B, S], or None.
        pad_token_id: Id of padding.

    Returns:
        1 for real tokens, [B, S], or None where nothing tells them.
    """
    if attention_mask is None and input_ids is not None:
        return (input_ids != pad_token_id).long()
    return attention_mask


class AiaynModel(AiaynPreTrainedModel):
    """Figure 1 without the output projection: encoder and decoder.

    Args:
        config: The model's configuration.
    """

    # The encoder's matrix is the one that is kept, so that heads on the encoder alone find theirs.
    _tied_weights_keys = {"decoder.embed_tokens.weight": "encoder.embed_tokens.weight"}

    def __init__(self, config: AiaynConfig) -> None:
        super().__init__(config)
        if config.decoder_vocab_size is not None:
            self._tied_weights_keys = {}
        self.encoder = AiaynEncoder(config)
        self.decoder = AiaynDecoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """The source embedding."""
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Put another source embedding in; a tied decoder follows with the next tie_weights."""
        self.encoder.embed_tokens = value

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqModelOutput:
        """Encode a source and decode a target.

        Args:
            input_ids: Source ids, [B, S].
            attention_mask: 1 for real source tokens, [B, S]. None: whatever is not pad.
            decoder_input_ids: Target ids, start token first, [B, T].
            decoder_attention_mask: 1 for real target tokens, [B, past + T].
            encoder_outputs: The encoder's output, if it is at hand: last_hidden_state, [B, S, D].
            past_key_values: Keys and values of earlier steps.
            inputs_embeds: Rows of the embedding matrix in the place of input_ids, [B, S, D].
            decoder_inputs_embeds: The same for decoder_input_ids, [B, T, D].
            use_cache: Whether to return keys and values for later steps.
            **kwargs: What the library passes to every model.

        Returns:
            The decoder's output in last_hidden_state, [B, T, D]; the encoder's beside it.
        """
        attention_mask = source_mask(input_ids, attention_mask, self.config.pad_token_id)
        if encoder_outputs is None:
            source = self.encoder(
                input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs
            )
        else:
            is_tuple = isinstance(encoder_outputs, tuple)
            source = BaseModelOutput(*encoder_outputs) if is_tuple else encoder_outputs
        decoder_outputs = self.decoder(
            decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=source.last_hidden_state,
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            past_key_values=decoder_outputs.past_key_values,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=source.last_hidden_state,
            encoder_hidden_states=source.hidden_states,
            encoder_attentions=source.attentions,
        )


class AiaynEncoderModel(AiaynPreTrainedModel):
    """The encoder alone, under the names that it has in the whole model.

    Args:
        config: The model's configuration.
    """

    def __init__(self, config: AiaynConfig) -> None:
        super().__init__(config)
        self.encoder = AiaynEncoder(config)
        self.post_init()

    # A checkpoint of the whole model has a decoder and a head, which is no cause for a report.
    _keys_to_ignore_on_load_unexpected = [r"^(model\.)?decoder\.", r"^lm_head\."]

    def get_input_embeddings(self) -> nn.Embedding:
        """The source embedding."""
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Put another source embedding in."""
        self.encoder.embed_tokens = value

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """Encode a source; arguments and output as `AiaynEncoder.forward`."""
        return self.encoder(
            input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs
        )


class AiaynForConditionalGeneration(AiaynPreTrainedModel, GenerationMixin):
    """Figure 1 whole: the Transformer with its output projection, for translation.

    Args:
        config: The model's configuration.
    """

    _tied_weights_keys = {"lm_head.weight": "model.encoder.embed_tokens.weight"}

    def __init__(self, config: AiaynConfig) -> None:
        super().__init__(config)
        if config.decoder_vocab_size is not None:
            self._tied_weights_keys = {"lm_head.weight": "model.decoder.embed_tokens.weight"}
        vocab_size = config.decoder_vocab_size or config.vocab_size
        self.model = AiaynModel(config)
        self.lm_head = nn.Linear(config.d_model, vocab_size, bias=config.lm_head_bias)
        self.generation_config = GenerationConfig(
            bos_token_id=config.bos_token_id,
            pad_token_id=config.pad_token_id,
            eos_token_id=config.eos_token_id,
            decoder_start_token_id=config.decoder_start_token_id,
            max_tokens_beyond_source=MAX_TOKENS_BEYOND_SOURCE,
        )
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """The source embedding."""
        return self.model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Put another source embedding in."""
        self.model.set_input_embeddings(value)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Decoder input ids for labels, [B, T] both; the library's collators call this."""
        return shift_right(labels, self.config.decoder_start_token_id, self.config.pad_token_id)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        smoothing: float = 0.0,
        num_items_in_batch: Tensor | int | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqLMOutput:
        """Score every entry of the vocabulary as the next target token.

        Args:
            input_ids: Source ids, [B, S].
            attention_mask: 1 for real source tokens, [B, S]. None: whatever is not pad.
            decoder_input_ids: Target ids, start token first, [B, T]. None: labels, shifted right.
            decoder_attention_mask: 1 for real target tokens, [B, past + T].
            encoder_outputs: The encoder's output, if it is at hand: last_hidden_state, [B, S, D].
            past_key_values: Keys and values of earlier steps.
            inputs_embeds: Rows of the embedding matrix in the place of input_ids, [B, S, D].
            decoder_inputs_embeds: The same for decoder_input_ids, [B, T, D].
            labels: Target ids to predict, [B, T]; -100 where there is none.
            smoothing: Share of each target spread over the vocabulary (section 5.4). Its name has
                no "label" in it: the library's Trainer takes such arguments for labels.
            num_items_in_batch: Real target tokens in the whole optimiser step; the Trainer counts
                them. None: those in labels.
            use_cache: Whether to return keys and values for later steps.
            logits_to_keep: How many of the last positions to score, or which; 0: all.
            **kwargs: What the library passes to every model.

        Returns:
            Logits, [B, T, V]; with labels also the loss in nats per target token, [].
        """
        if labels is not None and decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        logits = self.lm_head(slice_logits_to_keep(outputs.last_hidden_state, logits_to_keep))
        loss = None
        if labels is not None:
            loss = label_smoothed_cross_entropy(logits, labels, num_items_in_batch, smoothing)
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            decoder_hidden_states=outputs.decoder_hidden_states,
            decoder_attentions=outputs.decoder_attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            encoder_attentions=outputs.encoder_attentions,
        )

    def _maybe_prepare_encoder_kwargs_for_generation(
        self,
        inputs_tensor: Tensor,
        model_kwargs: dict[str, Any],
        model_input_name: str | None,
        generation_config: GenerationConfig,
    ) -> dict[str, Any]:
        """Keep the mask that the encoder infers: decoding steps no longer see the source ids."""
        if model_input_name == "input_ids":
            mask = source_mask(
                inputs_tensor, model_kwargs.get("attention_mask"), self.config.pad_token_id
            )
            model_kwargs = model_kwargs | {"attention_mask": mask}
        return super()._maybe_prepare_encoder_kwargs_for_generation(
            inputs_tensor, model_kwargs, model_input_name, generation_config
        )

    def _prepare_generated_length(
        self,
        generation_config: GenerationConfig,
        has_default_max_length: bool,
        has_default_min_length: bool,
        model_input_name: str,
        input_ids_length: int,
        inputs_tensor: Tensor,
    ) -> GenerationConfig:
        """Without a length given, go 50 tokens further than the longest source (section 6.1)."""
        table = self.model.decoder.embed_positions.max_length
        if has_default_max_length and generation_config.max_new_tokens is None:
            generation_config._is_source_relative = True
            generation_config.max_new_tokens = inputs_tensor.size(1) + beyond_source(
                generation_config
            )
            if table is not None:
                generation_config.max_new_tokens = min(
                    generation_config.max_new_tokens, table + 1 - input_ids_length
                )
        generation_config = super()._prepare_generated_length(
            generation_config,
            has_default_max_length,
            has_default_min_length,
            model_input_name,
            input_ids_length,
            inputs_tensor,
        )
        # One more than the table: the last token is predicted and never fed back.
        if table is not None and generation_config.max_length > table + 1:
            raise ValueError(
                f"The learned position table has max_position_embeddings={table} positions, got "
                f"max_length={generation_config.max_length}. Ask for at most {table + 1}."
            )
        return generation_config

    def _get_logits_processor(
        self,
        generation_config: GenerationConfig,
        input_ids_seq_length: int,
        encoder_input_ids: Tensor,
        model_kwargs: dict[str, Any],
        **kwargs: Any,
    ) -> LogitsProcessorList:
        """Hold each sentence to its own limit where the batch's was taken from the sources."""
        processors = super()._get_logits_processor(
            generation_config=generation_config,
            input_ids_seq_length=input_ids_seq_length,
            encoder_input_ids=encoder_input_ids,
            model_kwargs=model_kwargs,
            **kwargs,
        )
        mask = model_kwargs.get("attention_mask")
        if getattr(generation_config, "_is_source_relative", False) and mask is not None:
            lengths = input_ids_seq_length + mask.sum(-1) + beyond_source(generation_config)
            lengths = lengths.clamp(max=generation_config.max_length)
            processors.append(SourceRelativeLength(lengths, generation_config._eos_token_tensor))
        return processors


def beyond_source(generation_config: GenerationConfig) -> int:
    """How many tokens an output may be longer than its source."""
    return getattr(generation_config, "max_tokens_beyond_source", MAX_TOKENS_BEYOND_SOURCE)
