"""Figure 1 as models of transformers: encoder, decoder, both together, and the heads on them."""

import dataclasses
from typing import Any

from torch import Tensor, nn
from transformers import Cache, EncoderDecoderCache, GenerationConfig, PreTrainedModel
from transformers.core_model_loading import WeightRenaming
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    CausalLMOutputWithPast,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
    SequenceClassifierOutput,
)
from transformers.modeling_utils import LoadStateDictConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple

# Older versions of transformers load only the files that this one imports directly.
from .attention import eager_attention_forward  # noqa: F401
from .chunked_loss import score_tokens
from .configuration_aiayn import AiaynConfig
from .dropout import drop
from .generation import MAX_TOKENS_BEYOND_SOURCE, AiaynGenerationMixin, TranslationGenerationMixin
from .inputs import CACHE_NAME, source_mask
from .layers import pool_states
from .losses import (
    check_labels,
    classification_loss,
    infer_problem_type,
    pop_label_smoothing_factor,
    shift_left,
    shift_right,
)
from .pretrained import AiaynPreTrainedModel, config_for_class
from .stacks import AiaynDecoder, AiaynEncoder


def _check_serves_targets(mask: Any) -> None:
    if isinstance(mask, Tensor) and mask.dim() == 4 and mask.size(2) != 1:
        raise ValueError(
            "attention_mask has a row for each source token, and targets would read the same rows, "
            f"got the shape {tuple(mask.shape)}. Pass it to model.get_encoder(), and its "
            "output as encoder_outputs, with an attention_mask of one row."
        )


class AiaynModel(AiaynPreTrainedModel):
    """Figure 1 without the output projection: encoder and decoder."""

    # Checkpoints store the encoder's matrix, so that models with only an encoder find it.
    _tied_weights_keys = {"decoder.embed_tokens.weight": "encoder.embed_tokens.weight"}

    def __init__(self, config: AiaynConfig) -> None:
        super().__init__(config_for_class(config, True))
        self.loss_type = "ForMaskedLM"  # labels are not shifted: a trainer must count all of them
        if config.decoder_vocab_size is not None:
            self._tied_weights_keys = {}
        self.encoder = AiaynEncoder(self.config)
        self.decoder = AiaynDecoder(self.config)
        self.post_init()

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
        decoder_position_ids: Tensor | None = None,
        use_cache: bool | None = None,
        cache: EncoderDecoderCache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqModelOutput:
        """Encode a source and decode a target.

        Args:
            input_ids: Source ids, [B, S].
            attention_mask: 1 for real source tokens, [B, S]. None: every token that is not padding.
            decoder_input_ids: Target ids, start token first, [B, T].
            decoder_attention_mask: 1 for real target tokens, [B, past + T].
            encoder_outputs: The encoder's output if already computed, last_hidden_state [B, S, D].
            past_key_values: The name of cache before transformers 5.24. Pass only one of them.
            inputs_embeds: Rows of the embedding matrix instead of input_ids, [B, S, D].
            decoder_inputs_embeds: The same for decoder_input_ids, [B, T, D].
            decoder_position_ids: Positions of the target, [B, T]. None: counted over real tokens.
            use_cache: Whether to return keys and values for later steps.
            cache: Cached keys and values of earlier steps.
            **kwargs: Arguments that transformers passes to every model.

        Returns:
            The decoder's output in last_hidden_state, [B, T, D]; the encoder's in
            encoder_last_hidden_state, [B, S, D].
        """
        attention_mask = source_mask(input_ids, attention_mask, self.config)
        if encoder_outputs is None:
            _check_serves_targets(attention_mask)
            encoder_output = self.encoder(
                input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs
            )
        else:
            is_tuple = isinstance(encoder_outputs, (tuple, list))
            encoder_output = BaseModelOutput(*encoder_outputs) if is_tuple else encoder_outputs
        decoder_outputs = self.decoder(
            decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoder_output.last_hidden_state,
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            cache=cache,
            inputs_embeds=decoder_inputs_embeds,
            position_ids=decoder_position_ids,
            use_cache=use_cache,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            **{CACHE_NAME: getattr(decoder_outputs, CACHE_NAME)},
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_output.last_hidden_state,
            encoder_hidden_states=encoder_output.hidden_states,
            encoder_attentions=encoder_output.attentions,
        )


class AiaynEncoderModel(AiaynPreTrainedModel):
    """The encoder alone, with the parameter names of the whole model."""

    # This model ignores these weights of a whole model's checkpoint, without a warning.
    _keys_to_ignore_on_load_unexpected = [r"^(model\.)?decoder\.", r"^(lm_head|classifier)\."]

    def __init__(self, config: AiaynConfig) -> None:
        super().__init__(config_for_class(config, False))
        self.encoder = AiaynEncoder(self.config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """Encode a source. Arguments and output are those of `AiaynEncoder.forward`."""
        return self.encoder(
            input_ids,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            position_ids=position_ids,
            **kwargs,
        )


class AiaynDecoderModel(AiaynPreTrainedModel):
    """The decoder alone, without a source, with the parameter names of the whole model."""

    _input_half = "decoder"

    def __init__(self, config: AiaynConfig) -> None:
        super().__init__(config_for_class(config, False, config.decoder_vocab_size))
        self.decoder = AiaynDecoder(self.config)
        self.post_init()

    def forward(
        self, *args: Any, **kwargs: Any
    ) -> BaseModelOutputWithPastAndCrossAttentions | tuple[Tensor, ...]:
        """Decode a text. Arguments and output are those of `AiaynDecoder.forward`."""
        return self.decoder(*args, **kwargs)


class AiaynForConditionalGeneration(AiaynPreTrainedModel, TranslationGenerationMixin):
    """Figure 1: the whole Transformer with its output projection, for translation."""

    _tied_weights_keys = {"lm_head.weight": "model.encoder.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}

    def __init__(self, config: AiaynConfig) -> None:
        super().__init__(config_for_class(config, True))
        self.loss_type = "ForMaskedLM"  # labels are not shifted: a trainer must count all of them
        if config.decoder_vocab_size is not None:
            self._tied_weights_keys = {"lm_head.weight": "model.decoder.embed_tokens.weight"}
        vocab_size = config.decoder_vocab_size or config.vocab_size
        self.model = AiaynModel(self.config)
        self.lm_head = nn.Linear(config.d_model, vocab_size, bias=config.lm_head_bias)
        # Marked as derived from the model's config, it would lose max_tokens_beyond_source.
        derived = GenerationConfig.from_model_config(self.config).to_dict().items()
        self.generation_config = GenerationConfig(
            **{name: value for name, value in derived if not name.startswith("_")},
            max_tokens_beyond_source=MAX_TOKENS_BEYOND_SOURCE,
        )
        self.post_init()

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Build decoder input ids for labels, [B, T] both. DataCollatorForSeq2Seq calls this."""
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
        num_items_in_batch: Tensor | int | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        skip_logits: bool = False,
        decoder_position_ids: Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqLMOutput:
        """Score every entry of the vocabulary as the next target token.

        Arguments that `AiaynModel.forward` does not have:
            labels: Target ids to predict, [B, T]; -100 at positions without a target. Without
                decoder_input_ids, the decoder gets the labels shifted right.
            num_items_in_batch: Real target tokens in the whole optimizer step; the Trainer counts
                them. None: count them in labels.
            use_cache: Whether to return keys and values for later steps. None: False with labels,
                else config.use_cache.
            logits_to_keep: How many of the last positions to score, or which ones; 0: all.
            skip_logits: Return no logits, and compute the loss in chunks: the same loss and
                gradients in less memory. Off by default, because trainers may read logits.
            label_smoothing_factor: Share of each target spread over the vocabulary (section 5.4).

        Returns:
            Logits, [B, T, V], or None if skipped; with labels also the loss in nats per target
            token, [].
        """
        label_smoothing_factor = pop_label_smoothing_factor(kwargs)
        if labels is not None and use_cache is None:
            use_cache = False
        if labels is not None and decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            cache=cache,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            decoder_position_ids=decoder_position_ids,
            use_cache=use_cache,
            **kwargs,
        )
        loss_arguments = (labels, num_items_in_batch, label_smoothing_factor)
        states = outputs.last_hidden_state
        logits, loss = score_tokens(
            self.lm_head, states, *loss_arguments, logits_to_keep, skip_logits
        )
        others = {name: value for name, value in outputs.items() if name != "last_hidden_state"}
        return Seq2SeqLMOutput(loss=loss, logits=logits, **others)


class AiaynForSequenceClassification(AiaynPreTrainedModel):
    """The encoder, its output pooled over the real tokens, and one linear layer.

    It reads num_labels, problem_type, classifier_pooling and classifier_dropout of config.

    Departs from the paper: the paper has no classifier; this one comes from docs/seeds.md.
    """

    _keys_to_ignore_on_load_unexpected = [r"^(model\.)?decoder\.", r"^lm_head\."]

    def __init__(self, config: AiaynConfig) -> None:
        super().__init__(config_for_class(config, False))
        self.num_labels = config.num_labels
        self.model = AiaynEncoderModel(self.config)
        self.classifier = nn.Linear(config.d_model, config.num_labels)
        self.dropout = config.classifier_dropout
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutput:
        """Score every class for a text.

        Arguments that `AiaynEncoder.forward` does not have:
            labels: Class ids, [B]; numbers, [B] or [B, L], for regression; 0 or 1, [B, L], for
                several labels for each text.
            num_items_in_batch: Labels in the whole optimizer step; the Trainer counts them.
            label_smoothing_factor: Share of each class id spread over all classes (section 5.4).

        Returns:
            Logits, [B, L]; with labels also the loss, [].
        """
        label_smoothing_factor = pop_label_smoothing_factor(kwargs)
        attention_mask = source_mask(input_ids, attention_mask, self.config)
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            position_ids=position_ids,
            **kwargs,
        )
        if attention_mask is not None and attention_mask.dim() == 4:  # not a mask of tokens
            attention_mask = source_mask(input_ids, None, self.config)
        pooled = pool_states(
            outputs.last_hidden_state, attention_mask, self.config.classifier_pooling
        )
        pooled = drop(pooled, self.dropout, self.training)
        logits = self.classifier(pooled)
        loss = None
        if labels is not None:
            problem_type = self.config.problem_type
            problem_type = problem_type or infer_problem_type(labels, self.num_labels)
            if problem_type == "single_label_classification":
                check_labels(labels, self.num_labels)
            loss = classification_loss(
                logits, labels, problem_type, num_items_in_batch, label_smoothing_factor
            )
            if self.config.problem_type is None:  # pipelines read it: softmax, sigmoid or neither
                self.config.problem_type = problem_type  # only if the labels fit a loss
        return SequenceClassifierOutput(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class AiaynForCausalLM(AiaynPreTrainedModel, AiaynGenerationMixin):
    """Figure 1, right, without attention over a source: a language model.

    Its sizes are the fields of config whose names begin with decoder_.

    Departs from the paper: the paper has no language model; this is its decoder alone.
    """

    _input_half = "decoder"
    _tied_weights_keys = {"lm_head.weight": "model.decoder.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _keys_to_ignore_on_load_unexpected = [
        r"^(model\.)?encoder\.|\.encoder_attn(_layer_norm)?\.|^classifier\."
    ]

    def __init__(self, config: AiaynConfig) -> None:
        super().__init__(config_for_class(config, False, config.decoder_vocab_size))
        self.model = AiaynDecoderModel(self.config)
        self.lm_head = nn.Linear(config.d_model, self.config.vocab_size, bias=config.lm_head_bias)
        self.post_init()

    @classmethod
    def _load_pretrained_model(
        cls,
        model: PreTrainedModel,
        state_dict: dict[str, Tensor] | None,
        checkpoint_files: list[str] | None,
        load_config: LoadStateDictConfig,
        **kwargs: Any,
    ) -> Any:
        """Load the shared embedding, which a translation checkpoint has under the encoder's name.

        The public ways to rename weights, key_mapping and registered mappings, rename them back
        when the model is saved. This model must save under its own names.
        """
        config = model.config
        renaming = WeightRenaming("encoder.embed_tokens", "decoder.embed_tokens")
        if config.tie_word_embeddings and config.decoder_vocab_size is None:
            mapping = [*(load_config.weight_mapping or []), renaming]
            load_config = dataclasses.replace(load_config, weight_mapping=mapping)
        loaded = super()._load_pretrained_model(
            model, state_dict, checkpoint_files, load_config, **kwargs
        )
        model._weight_conversions = [
            conversion for conversion in model._weight_conversions if conversion is not renaming
        ]
        return loaded

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        skip_logits: bool = False,
        cache: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> CausalLMOutputWithPast:
        """Score every entry of the vocabulary as the token that follows each token.

        Arguments that `AiaynDecoder.forward` does not have:
            labels: The ids themselves, [B, T]; -100 at positions not to be predicted. They are
                shifted here: the target of each token is the next one.
            shift_labels: Labels that are already shifted, [B, T].

        `AiaynForConditionalGeneration.forward` explains the other arguments and the output.
        """
        label_smoothing_factor = pop_label_smoothing_factor(kwargs)
        targets = kwargs.pop("shift_labels", None)
        if targets is None and labels is not None:
            targets = shift_left(labels)
        if targets is not None and use_cache is None:
            use_cache = False  # with a cache, transformers' masks do not separate packed texts
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            cache=cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        loss_arguments = (targets, num_items_in_batch, label_smoothing_factor)
        states = outputs.last_hidden_state
        logits, loss = score_tokens(
            self.lm_head, states, *loss_arguments, logits_to_keep, skip_logits
        )
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            **{CACHE_NAME: getattr(outputs, CACHE_NAME)},
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


# save_pretrained copies this code into each folder, even if this module came from such a folder.
AiaynConfig.register_for_auto_class()
for _model in (AiaynModel, AiaynEncoderModel, AiaynDecoderModel, AiaynEncoder, AiaynDecoder):
    _model.register_for_auto_class("AutoModel")
AiaynForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")
AiaynForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")
AiaynForCausalLM.register_for_auto_class("AutoModelForCausalLM")
# With label smoothing, transformers' Trainer shifts only the labels of the classes in this mapping.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[AiaynConfig.model_type] = AiaynForCausalLM.__name__
