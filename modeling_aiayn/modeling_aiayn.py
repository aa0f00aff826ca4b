"""Section 3 as PreTrainedModels: the paper's Transformer behind Hugging Face's interface."""

import copy
import dataclasses
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    Cache,
    DynamicCache,
    EncoderDecoderCache,
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
)
from transformers import initialization as init
from transformers.core_model_loading import WeightRenaming
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    CausalLMOutputWithPast,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
    SequenceClassifierOutput,
)
from transformers.modeling_utils import (
    ALL_ATTENTION_FUNCTIONS,
    LoadStateDictConfig,
)
from transformers.processing_utils import Unpack
from transformers.utils import (
    CONFIG_NAME,
    GENERATION_CONFIG_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    TransformersKwargs,
    can_return_tuple,
)
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention import AttentionFunction, MultiHeadAttention, eager_attention_forward
from .checks import WeightShapeError, check_ids, check_labels, check_readable
from .chunked_loss import head_loss
from .configuration_aiayn import AiaynConfig
from .dropout import drop
from .generation import (
    MAX_TOKENS_BEYOND_SOURCE,
    FiniteGenerationMixin,
    SourceRelativeLength,
    beyond_source,
)
from .layers import (
    DecoderLayer,
    EncoderLayer,
    LayerSizes,
    LearnedPositions,
    SinusoidalPositions,
    TransformerLayer,
)
from .losses import (
    IGNORED_LABEL,
    classification_loss,
    infer_problem_type,
    label_smoothed_cross_entropy,
)

# The names under which save_pretrained writes weights, whole or in shards.
WEIGHT_FILES = ("model.safetensors", "model-*-of-*.safetensors")
SAVED_FILES = (*WEIGHT_FILES, SAFE_WEIGHTS_INDEX_NAME, CONFIG_NAME, GENERATION_CONFIG_NAME)


@contextmanager
def earlier_save_aside(folder: Path, is_pushed: bool) -> Iterator[None]:
    """For a while, an earlier save's weights and configurations have other names.

    Args:
        folder: Where they are, and where others are written meanwhile. If that fails, they come
            back; else they are deleted.
        is_pushed: Whether what is written is then uploaded, whose failure undoes no writing.
    """
    for hidden in saved_files(folder, [f".{name}.earlier" for name in SAVED_FILES]):
        # Of a save that was killed.
        hidden.replace(folder / hidden.name[1:].removesuffix(".earlier"))
    aside = {path: path.with_name(f".{path.name}.earlier") for path in saved_files(folder)}
    for path, hidden in aside.items():
        path.replace(hidden)
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit):
        if is_pushed and has_whole_weights(folder):
            delete(aside.values())
            raise
        delete(saved_files(folder))
        for path, hidden in aside.items():
            hidden.replace(path)
        raise
    delete(aside.values())


def delete(paths: Iterable[Path]) -> None:
    """Delete files."""
    for path in paths:
        path.unlink()


def has_whole_weights(folder: Path) -> bool:
    """Whether what save_pretrained writes last is there and can be read."""
    weights = saved_files(folder, WEIGHT_FILES)
    try:
        for path in weights:
            check_readable(path)
    except OSError:
        return False
    is_one = [path.name for path in weights] == list(WEIGHT_FILES[:1])
    return is_one or (folder / SAFE_WEIGHTS_INDEX_NAME).is_file()


def saved_files(folder: Path, names: Sequence[str] = SAVED_FILES) -> list[Path]:
    """What there is in a folder of the files that save_pretrained writes."""
    return [path for name in names for path in folder.glob(name)]


def pool_states(hidden_states: Tensor, mask: Tensor | None, pooling: str) -> Tensor:
    """One vector for each text, from its real tokens alone.

    Args:
        hidden_states: States, [B, S, D].
        mask: 1 for real tokens, [B, S], or None: all are.
        pooling: "mean" or "max".

    Returns:
        Pooled states, [B, D]; 0 for a text without a token.
    """
    if mask is None:
        mask = hidden_states.new_ones(hidden_states.shape[:2])
    is_real = mask.to(hidden_states.device).bool()[..., None]  # [B, S, 1]
    if pooling == "mean":
        wide = torch.promote_types(hidden_states.dtype, torch.float32)
        total = hidden_states.masked_fill(~is_real, 0.0).sum(1, dtype=wide)  # [B, D]
        return (total / is_real.sum(1).clamp(min=1)).to(hidden_states.dtype)
    lowest = torch.finfo(hidden_states.dtype).min
    highest = hidden_states.masked_fill(~is_real, lowest).amax(1)  # [B, D]
    return highest.masked_fill(~is_real.any(1), 0.0)


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
        attention_mask: 1 for real tokens, [B, past_length + T], or longer for a cache of fixed
            length; or None, or a ready 4D mask, where every token counts.
        past_length: Tokens that the cache holds.
        like: Embeddings of the tokens to place, [B, T, D].

    Returns:
        Position ids, [B, T] or [1, T].
    """
    index = torch.arange(like.size(1), device=like.device) + past_length  # [T]
    if attention_mask is None or attention_mask.dim() != 2:
        return index[None]  # [1, T]
    positions = attention_mask.long().cumsum(-1) - 1  # [B, past_length + T]
    return positions[:, index].clamp(min=0)  # [B, T]


def kept_positions(hidden_states: Tensor, logits_to_keep: int | Tensor) -> Tensor:
    """Select the positions that get logits, as transformers 5.22 and later do.

    Args:
        hidden_states: States, [B, T, D].
        logits_to_keep: The number of last positions, 0 for all; or positions, [P] or [B, P]; or a
            boolean mask, [B, T].

    Returns:
        States, [B, P, D]; [P, D] for a mask.
    """
    if isinstance(logits_to_keep, int):
        return hidden_states[:, -logits_to_keep:] if logits_to_keep else hidden_states
    if logits_to_keep.ndim == 1:
        return hidden_states[:, logits_to_keep]
    if logits_to_keep.dtype == torch.bool:
        return hidden_states[logits_to_keep]
    return hidden_states.take_along_dim(logits_to_keep[..., None], dim=1)


def with_encoder_and_decoder(config: AiaynConfig, is_encoder_decoder: bool) -> AiaynConfig:
    """config, or a copy that says whether the model has both halves: generate() asks for it."""
    if config.is_encoder_decoder != is_encoder_decoder:
        config = copy.deepcopy(config)
        config.is_encoder_decoder = is_encoder_decoder
    return config


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
    # Which half the input embedding belongs to.
    _input_half = "encoder"

    def __init__(self, config: AiaynConfig, *args: Any, **kwargs: Any) -> None:
        # What from_pretrained is told in place of a field is not looked at by the library.
        config.validate_architecture()
        super().__init__(config, *args, **kwargs)

    def get_correct_attn_implementation(
        self, requested_attention: str | None, is_init_check: bool = False
    ) -> str:
        """The hand-written attention unless another is asked for; the library would take sdpa."""
        return super().get_correct_attn_implementation(
            requested_attention or "eager", is_init_check
        )

    def save_pretrained(
        self, save_directory: str | os.PathLike[str], is_main_process: bool = True, **kwargs: Any
    ) -> None:
        """Save as any model of the library does, with weights that the same people may read.

        What an earlier save wrote goes aside first, and comes back where this one fails: a kill in
        between leaves a folder that does not load, never one model's config with another's weights.

        Args:
            save_directory: The folder.
            is_main_process: Whether this process writes, if it is the first.
            **kwargs: As for PreTrainedModel.
        """
        folder = Path(save_directory)
        writes = is_main_process
        # An adapter and a variant are saved beside the weights; offloaded ones are read from there.
        is_beside = getattr(self, "_hf_peft_config_loaded", False) or kwargs.get("variant")
        is_offloaded = "disk" in getattr(self, "hf_device_map", {}).values()
        replaces = writes and not is_beside and not is_offloaded
        is_pushed = bool(kwargs.get("push_to_hub"))
        with earlier_save_aside(folder, is_pushed) if replaces else nullcontext():
            super().save_pretrained(save_directory, is_main_process=is_main_process, **kwargs)
        if writes and not is_beside:
            for weights in saved_files(folder, WEIGHT_FILES):
                # safetensors lets its owner alone read a file.
                shutil.copymode(folder / CONFIG_NAME, weights)

    @classmethod
    def from_pretrained(
        cls, *args: Any, use_safetensors: bool | None = True, **kwargs: Any
    ) -> Self:
        """Load a model, from safetensors alone unless use_safetensors says otherwise.

        Args:
            *args: As for PreTrainedModel.from_pretrained.
            use_safetensors: None or False lets pickled weights in, if torch deems them harmless.
            **kwargs: As for PreTrainedModel.from_pretrained.

        Returns:
            The model.

        Raises:
            OSError: The weights are missing, damaged or incomplete.
            WeightShapeError: A weight has another shape than the configuration says.
        """
        return super().from_pretrained(*args, use_safetensors=use_safetensors, **kwargs)

    @classmethod
    def _load_pretrained_model(
        cls,
        model: PreTrainedModel,
        state_dict: dict[str, Tensor] | None,
        checkpoint_files: list[str] | None,
        load_config: LoadStateDictConfig,
        **kwargs: Any,
    ) -> Any:
        """Look at each file before the library loads the first."""
        source = load_config.pretrained_model_name_or_path
        for checkpoint_file in checkpoint_files or []:
            path = Path(os.path.abspath(checkpoint_file))
            if (
                source
                and os.path.isdir(source)
                and not path.is_relative_to(os.path.abspath(source))
            ):
                raise OSError(f"{source}: its index names a file outside the folder, {path}.")
            if path.suffix == ".safetensors":
                check_readable(path)
        return super()._load_pretrained_model(
            model, state_dict, checkpoint_files, load_config, **kwargs
        )

    @classmethod
    def _finalize_model_loading(
        cls, model: PreTrainedModel, load_config: LoadStateDictConfig, loading_info: Any
    ) -> Any:
        """Name a weight of the wrong shape in the error itself, not in a log above it."""
        if loading_info.mismatched_keys and not load_config.ignore_mismatched_sizes:
            name, found, expected = sorted(loading_info.mismatched_keys)[0]
            raise WeightShapeError(
                f"{load_config.pretrained_model_name_or_path}: {name} must have shape "
                f"{tuple(expected)} by the configuration, got {tuple(found)}. Load the "
                "configuration that belongs to these weights, or pass "
                "ignore_mismatched_sizes=True to start that weight afresh."
            )
        return super()._finalize_model_loading(model, load_config, loading_info)

    def get_input_embeddings(self) -> nn.Embedding:
        """The embedding of input_ids."""
        return getattr(self.base_model, self._input_half).embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Put another embedding of input_ids in; what is tied to it follows with tie_weights."""
        getattr(self.base_model, self._input_half).embed_tokens = value

    def resize_token_embeddings(
        self,
        new_num_tokens: int | None = None,
        pad_to_multiple_of: int | None = None,
        mean_resizing: bool = True,
    ) -> nn.Embedding:
        """Give the vocabulary another size, in both halves; what is tied keeps being so.

        Args:
            new_num_tokens: Entries. None: as they are.
            pad_to_multiple_of: Round the number up to a multiple of this.
            mean_resizing: Draw new rows from the distribution of the old ones.

        Returns:
            The embedding of input_ids.

        Raises:
            ValueError: Source and target have vocabularies of their own.
        """
        if self.config.decoder_vocab_size is not None and len(self._stacks()) > 1:
            raise ValueError(
                "resize_token_embeddings needs one vocabulary for source and target, got "
                f"vocab_size={self.config.vocab_size} and "
                f"decoder_vocab_size={self.config.decoder_vocab_size}. Build a model of the new "
                "sizes and copy the weights over."
            )
        embedding = super().resize_token_embeddings(
            new_num_tokens, pad_to_multiple_of, mean_resizing
        )
        size = embedding.weight.size(0)
        if self.config.decoder_vocab_size is not None and self._input_half == "decoder":
            self.config.decoder_vocab_size = size
        for stack in self._stacks():
            if stack.embed_tokens.weight.size(0) != size:  # the other half, tied to nothing
                stack.embed_tokens = self._get_resized_embeddings(
                    stack.embed_tokens, size, mean_resizing=mean_resizing
                )
            stack.embed_tokens.num_embeddings = size
        return embedding

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
    _needed_inputs = "The encoder needs either input_ids or inputs_embeds, and not both."
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
        self.embed_scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.layers = nn.ModuleList(layers)
        final_norm = config.norm_first if config.final_norm is None else config.final_norm
        self.layer_norm = (
            nn.LayerNorm(config.d_model, eps=config.layer_norm_eps) if final_norm else nn.Identity()
        )
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """The embedding of input_ids."""
        return self.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Put another embedding of input_ids in."""
        self.embed_tokens = value

    def look_up(
        self,
        input_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        past_length: int | Tensor = 0,
    ) -> Tensor:
        """Rows of the embedding matrix for ids, or those that were given.

        Ids that are outside it are refused where looking costs nothing that matters: on a CPU, and
        elsewhere outside training before the first step of decoding.

        Args:
            input_ids: Ids, [B, T], or None.
            inputs_embeds: Rows of the embedding matrix, [B, T, D], or None.
            past_length: Tokens that the cache holds.

        Returns:
            Rows of the embedding matrix, [B, T, D].

        Raises:
            ValueError: Not exactly one of the two was given, or an id is outside the vocabulary.
        """
        if inputs_embeds is not None and input_ids is None:
            return inputs_embeds
        if input_ids is None or inputs_embeds is not None:
            raise ValueError(self._needed_inputs)
        is_first = isinstance(past_length, int) and past_length == 0
        if input_ids.device.type == "cpu" or (is_first and not self.training):
            check_ids(input_ids, self.embed_tokens.weight.size(0), "Each input id")
        return self.embed_tokens(input_ids)

    def embed(
        self,
        inputs_embeds: Tensor,
        attention_mask: Tensor | None,
        past_length: int | Tensor = 0,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """Sections 3.4 and 3.5: scale token embeddings, add positions, drop out of the sum.

        Args:
            inputs_embeds: Rows of the embedding matrix, [B, T, D].
            attention_mask: 1 for real tokens, [B, past_length + T], or None.
            past_length: Tokens that the cache holds. A tensor (static caches) is not looked into,
                which would hold the device up at each step.
            position_ids: Positions, [B, T]. None: counted over real tokens.

        Returns:
            States, [B, T, D].

        Raises:
            ValueError: The mask does not fit the tokens, or a learned table is too short for them.
        """
        batch_size, length = inputs_embeds.shape[:2]
        if isinstance(past_length, int):
            self._check_lengths(batch_size, past_length + length, attention_mask)
        if position_ids is None:
            position_ids = positions_of(attention_mask, past_length, like=inputs_embeds)
        encodings = self.embed_positions(position_ids).to(inputs_embeds)
        hidden_states = inputs_embeds * self.embed_scale + encodings
        return drop(hidden_states, self.config.dropout, self.training)

    def refuse_missing_attentions(self, output_attentions: bool | None = None) -> None:
        """Refuse to return attention weights that the implementation does not compute.

        Args:
            output_attentions: What the call asks for. None: what the configuration does.

        Raises:
            ValueError: Weights are asked for, and the implementation has none.
        """
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        implementation = self.config._attn_implementation
        if output_attentions and implementation != "eager":
            raise ValueError(
                "output_attentions=True needs attn_implementation='eager', got "
                f"{implementation!r}, which computes no attention weights. Load the model with "
                "attn_implementation='eager', or call model.set_attn_implementation('eager')."
            )

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
        self.refuse_missing_attentions(kwargs.get("output_attentions"))
        attention_mask = source_mask(input_ids, attention_mask, self.config.pad_token_id)
        hidden_states = self.embed(self.look_up(input_ids, inputs_embeds), attention_mask)
        mask = create_bidirectional_mask(
            config=self.config, inputs_embeds=hidden_states, attention_mask=attention_mask
        )
        for layer in self.layers:
            hidden_states = layer(
                hidden_states, mask, attention_function=self.attention_function, **kwargs
            )
        return BaseModelOutput(last_hidden_state=self.layer_norm(hidden_states))


def _recorded_decoder_layers() -> OutputRecorder:
    """Hidden states by negative index count the decoder's layers, where the library can do that.

    The field is new in transformers 5.23; older versions do not look at it.
    """
    recorder = OutputRecorder(DecoderLayer)
    recorder.num_hidden_layers_key = "decoder_layers"
    return recorder


class AiaynDecoder(AiaynStack):
    """Figure 1, right: N decoder layers over the embedded target so far.

    Args:
        config: The model's configuration.
        has_source: Whether its layers look at a source; a language model's do not.
    """

    _can_record_outputs = {
        "hidden_states": _recorded_decoder_layers(),
        "attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="encoder_attn"),
    }
    _needed_inputs = (
        "The decoder needs decoder_input_ids or labels (or decoder_inputs_embeds in their place, "
        "not beside them); a language model needs input_ids or inputs_embeds. With label smoothing "
        "in a library Trainer, batch with DataCollatorForSeq2Seq(tokenizer, model=model)."
    )
    _tp_plan = AiaynEncoder._tp_plan | {
        name.replace("self_attn", "encoder_attn"): style
        for name, style in AiaynEncoder._tp_plan.items()
    }

    def __init__(self, config: AiaynConfig, has_source: bool = True) -> None:
        sizes = layer_sizes(config, "decoder")
        layers = [
            DecoderLayer(sizes, layer_idx, has_source) for layer_idx in range(config.decoder_layers)
        ]
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
            position_ids: Positions of the tokens, [B, T]. None: counted over real tokens.
            use_cache: Whether to return keys and values for later steps.
            **kwargs: What the library passes to every model.

        Returns:
            The decoder's output in last_hidden_state, [B, T, D], and the cache.

        Raises:
            ValueError: Not exactly one of input_ids and inputs_embeds was given; or see
                `check_source`.
        """
        if self.has_source:
            check_source(encoder_hidden_states, encoder_attention_mask, past_key_values)
        self.refuse_missing_attentions(kwargs.get("output_attentions"))
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache()
            if self.has_source:
                past_key_values = EncoderDecoderCache(past_key_values, DynamicCache())
        self_cache = getattr(past_key_values, "self_attention_cache", past_key_values)
        past_length = 0 if self_cache is None else self_cache.get_seq_length()
        inputs_embeds = self.look_up(input_ids, inputs_embeds, past_length)
        hidden_states = self.embed(inputs_embeds, attention_mask, past_length, position_ids)
        shared = {"config": self.config, "inputs_embeds": hidden_states}
        causal_mask = create_causal_mask(
            **shared,
            attention_mask=attention_mask,
            past_key_values=self_cache,
            position_ids=position_ids,
        )
        cross_mask = None
        if self.has_source:
            cross_mask = create_bidirectional_mask(
                **shared,
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


def check_source(
    encoder_hidden_states: Tensor | None,
    encoder_attention_mask: Tensor | None,
    past_key_values: Cache | None,
) -> None:
    """Refuse what a decoder cannot read a source from.

    Args:
        encoder_hidden_states: The encoder's output, [B, S, D].
        encoder_attention_mask: 1 for real source tokens, [B, S], or a ready one.
        past_key_values: Keys and values of earlier steps, of targets and of sources.

    Raises:
        ValueError: There is no output, the mask is another source's, or the cache has no place for
            a source.
    """
    if encoder_hidden_states is None:
        raise ValueError("The decoder needs encoder_hidden_states, the encoder's output.")
    shape = encoder_hidden_states.shape[:2]
    mask = encoder_attention_mask
    if mask is not None and mask.dim() == 2 and mask.shape != shape:
        raise ValueError(
            "The source's mask must have one entry for each of the encoder's states, got a mask of "
            f"shape {tuple(mask.shape)} for states of shape {tuple(shape)}."
        )
    if past_key_values is not None and not isinstance(past_key_values, EncoderDecoderCache):
        raise ValueError(
            "A decoder with a source needs an EncoderDecoderCache, got a "
            f"{type(past_key_values).__name__}: EncoderDecoderCache(cache, DynamicCache())."
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
        super().__init__(with_encoder_and_decoder(config, True))
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
            decoder_position_ids: Positions of the target, [B, T]. None: counted over real tokens.
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
            position_ids=decoder_position_ids,
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

    # A checkpoint of the whole model has a decoder and a head, which is no cause for a report.
    _keys_to_ignore_on_load_unexpected = [r"^(model\.)?decoder\.", r"^(lm_head|classifier)\."]

    def __init__(self, config: AiaynConfig) -> None:
        super().__init__(with_encoder_and_decoder(config, False))
        self.encoder = AiaynEncoder(self.config)
        self.post_init()

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


class AiaynForConditionalGeneration(AiaynPreTrainedModel, FiniteGenerationMixin):
    """Figure 1 whole: the Transformer with its output projection, for translation.

    Args:
        config: The model's configuration.
    """

    _tied_weights_keys = {"lm_head.weight": "model.encoder.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}

    def __init__(self, config: AiaynConfig) -> None:
        super().__init__(with_encoder_and_decoder(config, True))
        if config.decoder_vocab_size is not None:
            self._tied_weights_keys = {"lm_head.weight": "model.decoder.embed_tokens.weight"}
        vocab_size = config.decoder_vocab_size or config.vocab_size
        self.model = AiaynModel(self.config)
        self.lm_head = nn.Linear(config.d_model, vocab_size, bias=config.lm_head_bias)
        self.generation_config = GenerationConfig(
            bos_token_id=config.bos_token_id,
            pad_token_id=config.pad_token_id,
            eos_token_id=config.eos_token_id,
            decoder_start_token_id=config.decoder_start_token_id,
            max_tokens_beyond_source=MAX_TOKENS_BEYOND_SOURCE,
        )
        self.post_init()

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
        skip_logits: bool | None = None,
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
            skip_logits: Compute the loss in chunks from hidden states, and no logits: the same
                loss and gradients in less memory. None: in training steps with labels and
                num_items_in_batch, where a trainer wants the loss alone; False: never.
            **kwargs: What the library passes to every model.

        Returns:
            Logits, [B, T, V], or None where they are skipped; with labels also the loss in nats per
            target token, [].
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
        if skip_logits is None:
            skip_logits = self.training and labels is not None and num_items_in_batch is not None
        hidden_states = outputs.last_hidden_state
        loss = logits = None
        if not skip_logits:
            logits = self.lm_head(kept_positions(hidden_states, logits_to_keep))
        if labels is not None:
            check_labels(labels, self.config.decoder_vocab_size or self.config.vocab_size)
            counted = (labels, num_items_in_batch, smoothing)
            if logits is None:
                loss = head_loss(self.lm_head, hidden_states, *counted)
            else:
                loss = label_smoothed_cross_entropy(logits, *counted)
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

    def prepare_inputs_for_generation(
        self, *args: Any, decoder_attention_mask: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """A step's inputs, with positions counted where targets are padded.

        For a static cache the library makes the mask of tokens, which says so, into one of scores.

        Args:
            *args: As for GenerationMixin.
            decoder_attention_mask: 1 for real target tokens, [B, T].
            **kwargs: As for GenerationMixin.

        Returns:
            What forward takes.
        """
        mask = decoder_attention_mask
        if mask is not None and mask.dim() == 2:
            kwargs["decoder_position_ids"] = (mask.long().cumsum(-1) - 1).clamp(min=0)
        inputs: dict[str, Any] = super().prepare_inputs_for_generation(
            *args, decoder_attention_mask=mask, **kwargs
        )
        return inputs

    @staticmethod
    def _reorder_cache(past_key_values: EncoderDecoderCache, beam_idx: Tensor) -> Cache:
        """Move self-attention's keys and values with their beams.

        Beams change places within their sentence only, where the source's are all the same.
        """
        past_key_values.self_attention_cache.reorder_cache(beam_idx)
        return past_key_values

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

    def _default_new_tokens(
        self, generation_config: GenerationConfig, inputs_tensor: Tensor
    ) -> int:
        """50 tokens further than the longest source (section 6.1)."""
        generation_config._is_source_relative = True
        return inputs_tensor.size(1) + beyond_source(generation_config)

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


class AiaynForSequenceClassification(AiaynPreTrainedModel):
    """The encoder, its states pooled over the real tokens, and one linear layer.

    Args:
        config: The model's configuration; num_labels, problem_type, classifier_pooling and
            classifier_dropout are this head's.

    Departs from the paper: it has no classifier; this one is that of the seed documents.
    """

    # A translation checkpoint has these too, which is no cause for a report.
    _keys_to_ignore_on_load_unexpected = [r"^(model\.)?decoder\.", r"^lm_head\."]

    def __init__(self, config: AiaynConfig) -> None:
        super().__init__(with_encoder_and_decoder(config, False))
        self.num_labels = config.num_labels
        self.model = AiaynEncoderModel(self.config)
        self.classifier = nn.Linear(config.d_model, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutput:
        """Score every class for a text.

        Args:
            input_ids: Ids, [B, S].
            attention_mask: 1 for real tokens, [B, S]. None: whatever is not pad.
            inputs_embeds: Rows of the embedding matrix in the place of input_ids, [B, S, D].
            labels: Class ids, [B]; numbers, [B] or [B, L], for regression; 0 or 1, [B, L], for
                several labels at once.
            num_items_in_batch: Labels in the whole optimiser step; the Trainer counts them.
            **kwargs: What the library passes to every model.

        Returns:
            Logits, [B, L]; with labels also the loss, [].
        """
        attention_mask = source_mask(input_ids, attention_mask, self.config.pad_token_id)
        outputs = self.model(
            input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs
        )
        pooled = pool_states(
            outputs.last_hidden_state, attention_mask, self.config.classifier_pooling
        )
        pooled = drop(pooled, self.config.classifier_dropout, self.training)
        logits = self.classifier(pooled)
        loss = None
        if labels is not None:
            problem_type = self.config.problem_type or infer_problem_type(labels, self.num_labels)
            if problem_type == "single_label_classification":
                check_labels(labels, self.num_labels)
            loss = classification_loss(logits, labels, problem_type, num_items_in_batch)
        return SequenceClassifierOutput(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class AiaynDecoderModel(AiaynPreTrainedModel):
    """The decoder alone, without a source, under the names that it has in the whole model.

    Args:
        config: The model's configuration.
    """

    _input_half = "decoder"

    def __init__(self, config: AiaynConfig) -> None:
        super().__init__(with_encoder_and_decoder(config, False))
        self.decoder = AiaynDecoder(self.config, has_source=False)
        self.post_init()

    def forward(
        self, *args: Any, **kwargs: Any
    ) -> BaseModelOutputWithPastAndCrossAttentions | tuple[Tensor, ...]:
        """Run the decoder; arguments and output as `AiaynDecoder.forward`."""
        return self.decoder(*args, **kwargs)


class AiaynForCausalLM(AiaynPreTrainedModel, FiniteGenerationMixin):
    """Figure 1, right, without attention over a source: a language model.

    Args:
        config: The model's configuration; the decoder's numbers are this model's.

    Departs from the paper: it has no language model; this is its decoder alone.
    """

    _input_half = "decoder"
    _tied_weights_keys = {"lm_head.weight": "model.decoder.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}
    # What it can be loaded from has these too, and needs no report of them.
    _keys_to_ignore_on_load_unexpected = [
        r"^(model\.)?encoder\.",
        r"\.encoder_attn(_layer_norm)?\.",
        r"^classifier\.",
    ]

    def __init__(self, config: AiaynConfig) -> None:
        super().__init__(with_encoder_and_decoder(config, False))
        self.model = AiaynDecoderModel(self.config)
        vocab_size = config.decoder_vocab_size or config.vocab_size
        self.lm_head = nn.Linear(config.d_model, vocab_size, bias=config.lm_head_bias)
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
        """Find the matrix of a three-way tie, which is kept under the encoder's name."""
        config = model.config
        renaming = WeightRenaming("encoder.embed_tokens", "decoder.embed_tokens")
        if config.tie_word_embeddings and config.decoder_vocab_size is None:
            mapping = [*(load_config.weight_mapping or []), renaming]
            load_config = dataclasses.replace(load_config, weight_mapping=mapping)
        loaded = super()._load_pretrained_model(
            model, state_dict, checkpoint_files, load_config, **kwargs
        )
        # What is kept here is undone by saving, and this model saves under its own names.
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
        smoothing: float = 0.0,
        num_items_in_batch: Tensor | int | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        skip_logits: bool = False,
        **kwargs: Unpack[TransformersKwargs],
    ) -> CausalLMOutputWithPast:
        """Score every entry of the vocabulary as the token that follows each token.

        Args:
            input_ids: Ids that the cache does not hold yet, [B, T].
            attention_mask: 1 for real tokens, those in the cache included, [B, past + T].
            position_ids: Positions of the tokens, [B, T]. None: counted over real tokens.
            past_key_values: Keys and values of earlier steps.
            inputs_embeds: Rows of the embedding matrix in the place of input_ids, [B, T, D].
            labels: The ids themselves, [B, T]; -100 where none is to be predicted. They are shifted
                here: each token's target is the next one.
            smoothing: Share of each target spread over the vocabulary (section 5.4).
            num_items_in_batch: Real targets in the whole optimiser step; the Trainer counts them.
            use_cache: Whether to return keys and values for later steps.
            logits_to_keep: How many of the last positions to score, or which; 0: all.
            skip_logits: Compute the loss in chunks from hidden states, and no logits: the same
                loss and gradients in less memory. Never by itself: trainers of language models
                read logits.
            **kwargs: What the library passes to every model; shift_labels, [B, T], are labels that
                are shifted already, for sequences that lie in parts with several processes.

        Returns:
            Logits, [B, T, V], or None where they are skipped; with labels also the loss in nats per
            target token, [].
        """
        targets = kwargs.pop("shift_labels", None)
        if targets is None and labels is not None:
            targets = functional.pad(labels[:, 1:], (0, 1), value=IGNORED_LABEL)
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        hidden_states = outputs.last_hidden_state
        loss = logits = None
        if not skip_logits:
            logits = self.lm_head(kept_positions(hidden_states, logits_to_keep))
        if targets is not None:
            check_labels(targets, self.config.decoder_vocab_size or self.config.vocab_size)
            counted = (targets, num_items_in_batch, smoothing)
            if logits is None:
                loss = head_loss(self.lm_head, hidden_states, *counted)
            else:
                loss = label_smoothed_cross_entropy(logits, *counted)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
