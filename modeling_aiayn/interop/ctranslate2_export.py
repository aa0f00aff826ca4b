"""Our translation model as a CTranslate2 folder, and the proof that it is the same model."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from ..tokenization import TARGET_TOKENIZER_FOLDER, vocabulary_sha256
from ..translation import Translator
from ..translation.ctranslate2_engine import (
    POSITIONS_FIELD,
    SOURCE_TOKENIZER_FOLDER,
    VOCABULARIES_FIELD,
)
from ..translation.decoding_rules import DecodingRules
from ..translation.options import SearchOptions
from .importing import new_folder, refuse_used

# Positions that the folder has encodings for: the engine looks them up and knows no others.
POSITIONS = 2048
QUANTIZATIONS = ("float32", "float16", "bfloat16", "int8", "int8_float16", "int16")


class AiaynLoader(BartLoader):
    """The engine's reader of BART, whose parameter names are ours, for what is different here."""

    def set_common_layers(self, spec: Any, module: Any) -> None:
        """Fill in what is around a half's layers.

        Args:
            spec: The engine's half.
            module: Ours.
        """
        spec.scale_embeddings = module.embed_scale
        positions = torch.arange(module.embed_positions.max_length or POSITIONS)
        spec.position_encodings.encodings = module.embed_positions(positions).detach().numpy()
        is_encoder = isinstance(spec.embeddings, list)
        self.set_embeddings(
            spec.embeddings[0] if is_encoder else spec.embeddings, module.embed_tokens
        )
        if isinstance(module.layer_norm, nn.LayerNorm):
            self.set_layer_norm(spec.layer_norm, module.layer_norm)


def refuse_what_cannot_be_exported(config: AiaynConfig) -> None:
    """Name the first number of config that the engine has no way to express.

    Raises:
        ValueError: There is one.
    """
    for half in ("encoder", "decoder"):
        heads = getattr(config, f"{half}_attention_heads")
        if config.head_dim not in (None, config.d_model // heads) or config.d_model % heads:
            raise ValueError(
                f"CTranslate2 has no head_dim={config.head_dim} in a model of "
                f"d_model={config.d_model} and {half}_attention_heads={heads}: a head's width is "
                "their quotient."
            )
    if config.activation_function not in _SUPPORTED_ACTIVATIONS:
        raise ValueError(
            f"CTranslate2 has no activation_function={config.activation_function!r}, only "
            f"{', '.join(sorted(_SUPPORTED_ACTIVATIONS))}."
        )
    if config.final_norm and not config.norm_first:
        raise ValueError("CTranslate2 has no final_norm=True in a model with norm_first=False.")


def export_ctranslate2(translator: Translator, folder: str | Path, quantization: str) -> None:
    """Write a model and its tokenizers as a folder that CTranslate2, and Translator, can open.

    Args:
        translator: The model and its tokenizers.
        folder: The folder to write. It must not hold anything yet.
        quantization: How weights are kept: float32, float16, bfloat16, int8, int8_float16, int16.

    Raises:
        ValueError: The engine cannot express the model, knows no such quantization, or has no way
            to let several vote.
        OSError: The folder is not empty, or cannot be written.
    """
    if quantization not in QUANTIZATIONS:
        raise ValueError(
            f"quantization must be one of {', '.join(QUANTIZATIONS)}, got {quantization!r}."
        )
    if len(translator.models) > 1:
        raise ValueError(
            f"One model is exported at a time, got {len(translator.models)} that vote."
        )
    folder = Path(folder)
    refuse_used(folder)
    spec = _filled_spec(translator)
    spec.validate()
    spec.optimize(quantization=quantization)
    with new_folder(folder) as aside:
        spec.save(str(aside))
        # How long translations may be, and what they never contain: told at each call.
        translator.model.generation_config.save_pretrained(aside)
        translator.source_tokenizer.save_pretrained(aside / SOURCE_TOKENIZER_FOLDER)
        translator.target_tokenizer.save_pretrained(aside / TARGET_TOKENIZER_FOLDER)


def _filled_spec(translator: Translator) -> TransformerSpec:
    """The engine's form of a model and its vocabularies."""
    config, decoding = translator.model.config, translator.model.generation_config
    refuse_what_cannot_be_exported(config)
    rules = DecodingRules.from_generation_config(decoding, translator.model.lm_head.out_features)
    # The engine quantizes in place.
    model = copy.deepcopy(translator.model).float().cpu()
    _exclude_from_softmax(model.lm_head, rules)
    spec = _empty_spec(config)
    loader = AiaynLoader()
    loader.set_encoder(spec.encoder, model.model.encoder)
    loader.set_decoder(spec.decoder, model.model.decoder)
    loader.set_linear(spec.decoder.projection, model.lm_head)
    source, target = translator.source_tokenizer, translator.target_tokenizer
    spec.register_source_vocabulary(vocabulary(source, config.vocab_size))
    size = config.decoder_vocab_size or config.vocab_size
    spec.register_target_vocabulary(vocabulary(target, size))
    spec.config.eos_token = target.convert_ids_to_tokens(rules.single_eos_token_id)
    # Unused: it adds no beginning, and is given tokens that it knows.
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


def _exclude_from_softmax(projection: nn.Linear, rules: DecodingRules) -> None:
    """Give excluded ids no probability; the engine alone would only never generate them."""
    if not rules.excluded_from_softmax:
        return
    if projection.bias is None:
        projection.bias = nn.Parameter(torch.zeros(projection.out_features))
    rules.exclude_from_softmax(projection.bias.data)


def _empty_spec(config: AiaynConfig) -> TransformerSpec:
    shared = {
        "pre_norm": config.norm_first,
        "no_final_norm": config.final_norm is False,
        "activation": _SUPPORTED_ACTIVATIONS.get(config.activation_function),
    }
    return TransformerSpec(
        TransformerEncoderSpec(config.encoder_layers, config.encoder_attention_heads, **shared),
        TransformerDecoderSpec(config.decoder_layers, config.decoder_attention_heads, **shared),
    )


def vocabulary(tokenizer: PreTrainedTokenizerBase, size: int) -> list[str]:
    """The token of each id; ids without one get names that no text has."""
    known = max(len(tokenizer), 1 + max(tokenizer.get_vocab().values()))
    found = tokenizer.convert_ids_to_tokens(list(range(min(known, size))))
    found += [None] * (size - len(found))
    return [token or f"<unused {index}>" for index, token in enumerate(found)]


@dataclass(frozen=True)
class ParityReport:
    """How far two engines agree about the same texts.

    Args:
        texts: How many there were.
        identical: How many have the same translation from both.
        score_difference: The largest difference of a log-probability per token that both give to
            the same translation, in nats.
    """

    texts: int
    identical: int
    score_difference: float

    def __str__(self) -> str:
        share = 100 * self.identical / max(1, self.texts)
        return (
            f"{self.identical} of {self.texts} translations identical ({share:.1f} %), "
            f"scores within {self.score_difference:.1e} nats per token"
        )


def compare_engines(
    ours: Translator, theirs: Translator, texts: Sequence[str], options: SearchOptions
) -> ParityReport:
    """Translate texts by both, and let both score our translations.

    Args:
        ours: One translator.
        theirs: Another with the same vocabulary.
        texts: Sentences, at least one.
        options: How to search.

    Returns:
        What they have in common.
    """
    texts = [text for text in texts if text.strip()]
    mine = [best.text for best, *_ in ours.stream(texts, options)]
    other = [best.text for best, *_ in theirs.stream(texts, options)]
    scores = zip(ours.score(texts, mine), theirs.score(texts, mine), strict=True)
    return ParityReport(
        len(texts),
        sum(a == b for a, b in zip(mine, other, strict=True)),
        max(abs(a.log_probability - b.log_probability) / len(a.token_ids) for a, b in scores),
    )
