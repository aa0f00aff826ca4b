"""Table 3: the sizes of the Transformer, and the checks that they fit each other."""

import copy
import difflib
import os
from dataclasses import fields
from typing import Any, ClassVar, Literal, Self

from transformers.utils.versions import require_version

# Check this before the imports that fail with older versions: this error says what to do.
require_version("transformers>=5.4", "Upgrade it: pip install 'transformers>=5.4'")

from huggingface_hub.dataclasses import strict  # noqa: E402
from transformers import PreTrainedConfig  # noqa: E402
from transformers.activations import ACT2FN  # noqa: E402
from transformers.utils import logging  # noqa: E402

logger = logging.get_logger(__name__)


def _both_stacks(
    d_model: int, layers: int, heads: int, ffn_dim: int, dropout: float
) -> dict[str, Any]:
    sizes = {"layers": layers, "attention_heads": heads, "ffn_dim": ffn_dim}
    stacks = {f"{half}_{name}": n for half in ("encoder", "decoder") for name, n in sizes.items()}
    return {"d_model": d_model, "dropout": dropout, **stacks}


# base and big are from Table 3; base is the default of every field. tiny is from Wu et al. (2021).
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": _both_stacks(d_model=128, layers=4, heads=4, ffn_dim=256, dropout=0.3),
    "base": {},
    "big": _both_stacks(d_model=1024, layers=6, heads=16, ffn_dim=4096, dropout=0.3),
}

# Entries of config.json that tell auto classes where a folder's code is, without this package.
AUTO_MAP = {
    "AutoConfig": "configuration_aiayn.AiaynConfig",
    "AutoModel": "modeling_aiayn.AiaynModel",
    "AutoModelForCausalLM": "modeling_aiayn.AiaynForCausalLM",
    "AutoModelForSeq2SeqLM": "modeling_aiayn.AiaynForConditionalGeneration",
    "AutoModelForSequenceClassification": "modeling_aiayn.AiaynForSequenceClassification",
    "AutoModelForTextEncoding": "modeling_aiayn.AiaynEncoderModel",
}

# Maps a saved class to the class that AutoModel loads. It loads all others as AiaynModel.
AUTO_MODEL_CLASSES = {
    "AiaynForSequenceClassification": "modeling_aiayn.AiaynEncoderModel",
    "AiaynEncoderModel": "modeling_aiayn.AiaynEncoderModel",
    "AiaynForCausalLM": "modeling_aiayn.AiaynDecoderModel",
    "AiaynDecoderModel": "modeling_aiayn.AiaynDecoderModel",
    "AiaynEncoder": "stacks.AiaynEncoder",
    "AiaynDecoder": "stacks.AiaynDecoder",
}

POSITIVE_FIELDS = (
    *("vocab_size", "decoder_vocab_size", "d_model", "head_dim", "max_position_embeddings"),
    *("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim"),
    *("decoder_layers", "decoder_attention_heads", "decoder_ffn_dim"),
)
# A keyword that is this similar to a field's name counts as a misspelling of it.
MISSPELT_SIMILARITY = 0.85


@strict
class AiaynConfig(PreTrainedConfig):
    """Configuration of the Transformer; the defaults are the base model of Table 3.

    Args:
        vocab_size: Vocabulary size, shared by source and target (section 5.1).
        decoder_vocab_size: Size of a separate target vocabulary. None: shared.
        d_model: Width of the residual stream.
        encoder_layers, decoder_layers: Number of layers in each stack, N.
        encoder_attention_heads, decoder_attention_heads: Number of attention heads, h.
        encoder_ffn_dim, decoder_ffn_dim: Width inside the feed-forward networks, d_ff.
        head_dim: Width of one head, d_k = d_v (section 3.2.2). None: d_model / heads. The field
            then returns the encoder's value, `get_text_config(decoder=True)` the decoder's.
        dropout: Rate on every sub-layer's output and on the embeddings (section 5.4).
        attention_dropout: Rate on the attention weights.
        activation_dropout: Rate inside the feed-forward networks.
        classifier_dropout: Rate before the classification head.
        classifier_pooling: How the classifier pools the encoder's states, "mean" or "max".
        activation_function: Activation of the feed-forward networks, a key of ACT2FN.
        position_type: "sinusoidal" (section 3.5) or "learned" (Table 3, row E).
        max_position_embeddings: Number of learned positions. Sinusoidal ones have no limit.
        position_base: Base of the wavelengths of sinusoidal positions.
        position_offset: Position of the first token.
        norm_first: Normalize each sub-layer's input (pre-norm) instead of its output (post-norm).
        final_norm: Normalize the output of both stacks. None: only with norm_first.
        layer_norm_eps: Added to the variance in layer normalization.
        attention_bias: Give the four projections of attention a bias.
        lm_head_bias: Give the output projection a bias.
        scale_embedding: Multiply embeddings by sqrt(d_model) (section 3.4).
        tie_word_embeddings: Share one matrix between both embeddings and the output projection.
        use_cache: Keep keys and values between decoding steps.
        bos_token_id, pad_token_id, eos_token_id: Ids of `<s>`, `<pad>` and `</s>`.
        decoder_start_token_id: Id that the decoder starts from.
        is_encoder_decoder: Whether the model has both encoder and decoder. transformers reads it.

    Raises:
        StrictDataclassFieldValidationError: A value has the wrong type.
        StrictDataclassClassValidationError: A value is out of range or does not fit another one.

    Departs from the paper: layer_norm_eps, which the paper does not give, is Tensor2Tensor's. d_k
    and d_v are equal; row B of Table 3 changes only d_k.
    """

    model_type = "aiayn"
    # No annotations here: an annotated attribute would become a field.
    keys_to_ignore_at_inference = ["past_key_values", "cache"]
    # Each stack has its own plan; transformers' default fits only models without an encoder.
    base_model_fsdp_plan: ClassVar[dict[str, str]] = {}
    attribute_map = {
        "hidden_size": "d_model",
        "num_hidden_layers": "encoder_layers",
        "num_attention_heads": "encoder_attention_heads",
    }

    vocab_size: int = 37000
    decoder_vocab_size: int | None = None
    d_model: int = 512
    encoder_layers: int = 6
    decoder_layers: int = 6
    encoder_attention_heads: int = 8
    decoder_attention_heads: int = 8
    encoder_ffn_dim: int = 2048
    decoder_ffn_dim: int = 2048
    head_dim: int | None = None
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    classifier_dropout: float | int = 0.1
    classifier_pooling: Literal["mean", "max"] = "mean"
    activation_function: str = "relu"
    position_type: Literal["sinusoidal", "learned"] = "sinusoidal"
    max_position_embeddings: int = 512
    position_base: float | int = 10000.0
    position_offset: int = 0
    norm_first: bool = False
    final_norm: bool | None = None
    layer_norm_eps: float = 1e-6
    attention_bias: bool = False
    lm_head_bias: bool = False
    scale_embedding: bool = True
    tie_word_embeddings: bool = True
    use_cache: bool = True
    bos_token_id: int | None = 0
    pad_token_id: int = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int = 0
    is_encoder_decoder: bool = True

    @classmethod
    def from_preset(cls, name: str, **overrides: Any) -> Self:
        """Return the preset called name ("tiny", "base" or "big"), with some fields overridden.

        Raises:
            ValueError: No preset has this name.
        """
        if name not in PRESETS:
            raise ValueError(f"preset must be one of {sorted(PRESETS)}, got {name!r}.")
        return cls(**(PRESETS[name] | overrides))

    @property
    def pads_with_eos(self) -> bool:
        """Whether pad_token_id is also an end token. Then ids do not show which are padding."""
        ends = self.eos_token_id if isinstance(self.eos_token_id, list) else [self.eos_token_id]
        return self.pad_token_id in ends

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name == "head_dim" and value is None:  # transformers expects a number
            return self.d_model // max(1, self.encoder_attention_heads)
        return value

    def __post_init__(self, **kwargs: Any) -> None:
        self._warn_of_spelling(kwargs)
        super().__post_init__(**kwargs)
        # AutoModel chooses between base models by this list, which must not be None.
        self.architectures: list[str] = self.architectures or []

    def _warn_of_spelling(self, keywords: dict[str, Any]) -> None:
        """Warn of a keyword that resembles a field. No error: another library may use it."""
        names = [field.name for field in fields(self)]
        for keyword in keywords.keys() - {*names, *self.attribute_map}:
            similar = difflib.get_close_matches(keyword, names, n=1, cutoff=MISSPELT_SIMILARITY)
            if similar:
                logger.warning(f"No field {keyword!r} in AiaynConfig, did you mean {similar[0]!r}?")

    def save_pretrained(
        self, save_directory: str | os.PathLike[str], push_to_hub: bool = False, **kwargs: Any
    ) -> None:
        """Save config.json so that every auto class can open the folder."""
        # Entries with "--" name the repository that this configuration was loaded from.
        loaded = getattr(self, "auto_map", None) or {}
        self.auto_map = AUTO_MAP | {name: at for name, at in loaded.items() if "--" not in at}
        self.architectures = self.architectures or []
        head = next(iter(self.architectures), "AiaynModel")
        base = self.auto_map["AutoModel"] = AUTO_MODEL_CLASSES.get(head, AUTO_MAP["AutoModel"])
        if head in AUTO_MODEL_CLASSES:  # AutoModel chooses by this list if the package is installed
            self.architectures = list(dict.fromkeys((head, base.split(".")[1])))
        super().save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)

    def get_text_config(
        self, decoder: bool | None = None, encoder: bool | None = None
    ) -> PreTrainedConfig:
        """Return a copy with one stack's sizes in transformers' fields, such as num_hidden_layers.

        With neither or both flags, vocab_size is the target's: generate() expects that many logits.
        """
        if decoder == encoder and self.decoder_vocab_size is None:
            return self
        shared = copy.copy(self)
        shared.decoder_vocab_size = self.decoder_vocab_size or self.vocab_size
        if decoder == encoder:
            shared.vocab_size = shared.decoder_vocab_size
            return shared
        shared.is_encoder_decoder = True  # transformers separates the stacks only if this is True
        half = super(AiaynConfig, shared).get_text_config(decoder=decoder, encoder=encoder)
        half.is_encoder_decoder = self.is_encoder_decoder
        return half

    def validate_architecture(self) -> None:
        """Check that every field is in its range, and that the fields fit each other.

        Raises:
            ValueError: A field is invalid. The message names it, its value and the allowed range.
        """
        super().validate_architecture()
        self._check_ranges()
        self._check_token_range()
        if self.activation_function not in ACT2FN:
            raise ValueError(
                f"activation_function must be one of {', '.join(sorted(ACT2FN))}, "
                f"got {self.activation_function!r}."
            )

    def _check_ranges(self) -> None:
        for name in POSITIVE_FIELDS:
            value = vars(self)[name]
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}.")
        for name in ("dropout", "attention_dropout", "activation_dropout", "classifier_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}.")

    def _check_token_range(self) -> None:
        """Check special ids against both vocabularies: source and target both use pad and eos."""
        smaller = min(self.vocab_size, self.decoder_vocab_size or self.vocab_size)
        for name in ("bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id"):
            value = getattr(self, name)
            for token_id in value if isinstance(value, list) else [value]:
                if token_id is not None and not 0 <= token_id < smaller:
                    raise ValueError(f"{name} must be in [0, {smaller}), got {token_id}.")
