"""Export our translation model to CTranslate2, and compare the two engines."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ctranslate2.converters.transformers import _SUPPORTED_ACTIVATIONS, BartLoader
from ctranslate2.specs.transformer_spec import (
    TransformerDecoderSpec,
    TransformerEncoderSpec,
    TransformerSpec,
)
from torch import nn
from transformers import PreTrainedTokenizerBase

from ..configuration_aiayn import AiaynConfig
from ..saved.whole_files import new_folder
from ..tokenization import SOURCE_TOKENIZER_FOLDER, TARGET_TOKENIZER_FOLDER, vocabulary_sha256
from ..translation import Translator
from ..translation.ctranslate2_engine import POSITIONS_FIELD, VOCABULARIES_FIELD
from ..translation.decoding_rules import DecodingRules
from ..translation.options import SearchOptions
from .library_models import check_head_width, copy_to_export

# Rows of the exported table of sinusoids, and thus the longest text: CTranslate2 computes none.
EXPORTED_POSITIONS = 2048


class AiaynLoader(BartLoader):
    """CTranslate2's loader for BART, adapted to our embeddings; parameter names are the same."""

    def set_common_layers(self, spec: Any, module: Any) -> None:
        """Copy embeddings, positions and final norm of our encoder or decoder to CTranslate2's."""
        spec.scale_embeddings = module.embed_scale
        positions = torch.arange(module.embed_positions.max_length or EXPORTED_POSITIONS)
        spec.position_encodings.encodings = module.embed_positions(positions).detach().numpy()
        is_encoder = isinstance(spec.embeddings, list)
        self.set_embeddings(
            spec.embeddings[0] if is_encoder else spec.embeddings, module.embed_tokens
        )
        if isinstance(module.layer_norm, nn.LayerNorm):
            self.set_layer_norm(spec.layer_norm, module.layer_norm)


def check_exportable(config: AiaynConfig) -> None:
    """Check that CTranslate2 supports a configuration; the error names the unsupported field."""
    check_head_width(config, "CTranslate2")
    if config.activation_function not in _SUPPORTED_ACTIVATIONS:
        raise ValueError(
            "CTranslate2 needs an activation_function of "
            f"{', '.join(sorted(_SUPPORTED_ACTIVATIONS))}, got {config.activation_function!r}."
        )


def export_ctranslate2(translator: Translator, folder: str | Path, quantization: str) -> None:
    """Write a model and its tokenizers as a folder that CTranslate2 and Translator open.

    Args:
        translator: The model and its tokenizers.
        folder: The folder to create. It must be new or empty.
        quantization: CTranslate2's name for the type of the written weights.

    Raises:
        ValueError: CTranslate2 does not support the model or the quantization, or the translator is
            an ensemble.
        OSError: The folder is not empty, or cannot be written.
    """
    with new_folder(Path(folder)) as unfinished:
        spec = _filled_spec(translator)
        spec.validate()
        spec.optimize(quantization=quantization)
        spec.save(str(unfinished))
        # Each call passes its length limits and suppressed tokens to CTranslate2.
        translator.model.generation_config.save_pretrained(unfinished)
        translator.source_tokenizer.save_pretrained(unfinished / SOURCE_TOKENIZER_FOLDER)
        translator.target_tokenizer.save_pretrained(unfinished / TARGET_TOKENIZER_FOLDER)


def _filled_spec(translator: Translator) -> TransformerSpec:
    """Fill CTranslate2's model specification with the weights and the vocabularies."""
    config = translator.model.config
    check_exportable(config)
    model = copy_to_export(translator)  # CTranslate2 quantizes in place
    rules = DecodingRules.from_generation_config(
        model.generation_config, model.lm_head.out_features
    )
    if rules.excluded_from_softmax:
        # CTranslate2 only skips these ids. A low bias gives them probability 0, as in our search.
        if model.lm_head.bias is None:
            model.lm_head.bias = nn.Parameter(torch.zeros(model.lm_head.out_features))
        rules.exclude_from_softmax(model.lm_head.bias.data)
    spec = _empty_spec(config)
    loader = AiaynLoader()
    loader.set_encoder(spec.encoder, model.model.encoder)
    loader.set_decoder(spec.decoder, model.model.decoder)
    loader.set_linear(spec.decoder.projection, model.lm_head)
    source, target = translator.source_tokenizer, translator.target_tokenizer
    spec.register_source_vocabulary(_vocabulary_list(source, config.vocab_size))
    size = config.decoder_vocab_size or config.vocab_size
    spec.register_target_vocabulary(_vocabulary_list(target, size))
    spec.config.eos_token = target.convert_ids_to_tokens(rules.single_eos_token_id)
    # CTranslate2 requires both names but uses neither, because it gets known tokens only.
    spec.config.bos_token = target.bos_token or spec.config.eos_token
    spec.config.unk_token = target.unk_token or spec.config.eos_token
    spec.config.decoder_start_token = target.convert_ids_to_tokens(config.decoder_start_token_id)
    spec.config.layer_norm_epsilon = config.layer_norm_eps
    for half in ("encoder", "decoder"):
        encodings = getattr(spec, half).position_encodings.encodings
        spec.config.add_attribute(POSITIONS_FIELD.format(half=half), len(encodings))
    hashes = [vocabulary_sha256(source), vocabulary_sha256(target)]
    spec.config.add_attribute(VOCABULARIES_FIELD, hashes)
    return spec


def _empty_spec(config: AiaynConfig) -> TransformerSpec:
    # Only a pre-norm specification has a final norm.
    shared = {
        "pre_norm": config.norm_first or bool(config.final_norm),
        "no_final_norm": config.final_norm is False,
        "activation": _SUPPORTED_ACTIVATIONS.get(config.activation_function),
    }
    spec = TransformerSpec(
        TransformerEncoderSpec(config.encoder_layers, config.encoder_attention_heads, **shared),
        TransformerDecoderSpec(config.decoder_layers, config.decoder_attention_heads, **shared),
    )
    spec.encoder.pre_norm = spec.decoder.pre_norm = np.int8(config.norm_first)
    # CTranslate2 returns the mean attention of this many heads of the last layer.
    spec.decoder.alignment_heads = np.int16(config.decoder_attention_heads)
    return spec


def _vocabulary_list(tokenizer: PreTrainedTokenizerBase, size: int) -> list[str]:
    """Return the token of each id below `size`; ids without a token get unused names."""
    known = max(len(tokenizer), 1 + max(tokenizer.get_vocab().values()))
    tokens = tokenizer.convert_ids_to_tokens(list(range(min(known, size))))
    tokens += [None] * (size - len(tokens))
    return [token or f"<unused {index}>" for index, token in enumerate(tokens)]


@dataclass(frozen=True)
class ParityReport:
    """Agreement of two engines on the same texts."""

    texts: int
    identical: int
    score_difference: float  # the largest difference, in nats per token

    def __str__(self) -> str:
        share = 100 * self.identical / max(1, self.texts)
        return (
            f"{self.identical} of {self.texts} translations identical ({share:.1f} %), "
            f"scores within {self.score_difference:.1e} nats per token"
        )


def compare_engines(
    ours: Translator, theirs: Translator, texts: Sequence[str], options: SearchOptions
) -> ParityReport:
    """Translate texts with both translators, and let both score the translations of `ours`."""
    texts = [text for text in texts if text.strip()]
    mine = [best.text for best, *_ in ours.stream(texts, options)]
    other = [best.text for best, *_ in theirs.stream(texts, options)]
    scores = zip(ours.score(texts, mine), theirs.score(texts, mine), strict=True)
    return ParityReport(
        len(texts),
        sum(a == b for a, b in zip(mine, other, strict=True)),
        max(abs(a.log_probability - b.log_probability) / len(a.token_ids) for a, b in scores),
    )
