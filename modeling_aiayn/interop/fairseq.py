"""Weights from fairseq's .pt files, and its dictionaries."""

import argparse
import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from .foreign_model import ForeignModel, read_foreign
from .marian import ATTENTION, LAYER_NORM_EPS
from .pickled import dtype_of, read_pickled, tensors_in
from .vocabularies import moses_tokenizer, read_fairseq_dictionary, tokenizer_of_pieces
from .weight_names import NameTable, Third


def _layer(attentions: tuple[str, ...]) -> dict[str, Any]:
    """Names within a layer: in_proj and numbered norms are those of fairseq's first years."""
    names: dict[str, Any] = {"fc1": "fc1", "fc2": "fc2"}
    for attention in attentions:
        names[f"{attention}.out_proj"] = f"{attention}.out_proj"
        for index, projection in enumerate(ATTENTION[:3]):
            names[f"{attention}.{projection}"] = (
                f"{attention}.{projection}",
                Third(f"{attention}.in_proj_{{leaf}}", index),
            )
    norms = (*(f"{attention}_layer_norm" for attention in attentions), "final_layer_norm")
    for number, norm in enumerate(norms):
        names[norm] = (norm, f"layer_norms.{number}")
    return names


FAIRSEQ_NAMES = NameTable(
    around={
        "model.encoder.embed_tokens": "encoder.embed_tokens",
        "model.decoder.embed_tokens": "decoder.embed_tokens",
        "model.encoder.embed_positions": "encoder.embed_positions",
        "model.decoder.embed_positions": "decoder.embed_positions",
        "model.encoder.layer_norm": "encoder.layer_norm",
        "model.decoder.layer_norm": "decoder.layer_norm",
        "lm_head.weight": ("decoder.output_projection.weight", "decoder.embed_out"),
    },
    encoder=_layer(("self_attn",)),
    decoder=_layer(("self_attn", "encoder_attn")),
    encoder_layer="encoder.layers.{n}.",
    decoder_layer="decoder.layers.{n}.",
    left_out={
        r"(en|de)coder\.version": "the format's number",
        r"(en|de)coder\.embed_positions\.(_float_tensor|weights)": "sinusoids are computed",
        r"encoder\.layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)": (
            "fairseq 0.12 saves them for a fused kernel and does not use them"
        ),
    },
)
# fairseq's Dictionary begins with <s>, <pad>, </s> and <unk>; a decoder starts from </s>.
SPECIAL_IDS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
SPECIAL_TOKENS = {
    "bos_token": "<s>",
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
}
# Positions are counted from the one behind padding's.
FIRST_POSITION = SPECIAL_IDS["pad_token_id"] + 1
# Options that ask for what this model does not have.
UNSUPPORTED = (
    "layernorm_embedding",
    "no_token_positional_embeddings",
    "no_cross_attention",
    "cross_self_attention",
    "adaptive_input",
    "adaptive_softmax_cutoff",
)
# Options that this model has once for both sides.
PAIRED = ("embed_dim", "normalize_before", "learned_pos")
# Versions up to which a half has no norm behind its layers, even in pre-norm.
NORMLESS_VERSIONS = {"encoder": 1, "decoder": 2}


@dataclass(frozen=True)
class FairseqText:
    """How a fairseq model's texts are cut, which its checkpoint does not say.

    Args:
        source_dictionary: The dict.txt of the source. None: no tokenizer.
        target_dictionary: The same of the target. None: the source's.
        bpe_codes: subword-nmt's codes: texts are tokenized as Moses does, then cut. None: texts
            come in pieces between spaces, as fairseq-generate takes them.
        source_lang: Language of the source, for Moses.
        target_lang: Language of the target.
    """

    source_dictionary: str | Path | None = None
    target_dictionary: str | Path | None = None
    bpe_codes: str | Path | None = None
    source_lang: str = "en"
    target_lang: str = "de"

    def tokenizers(self, sizes: tuple[int, int]) -> tuple[PreTrainedTokenizerBase | None, ...]:
        """Tokenizers of source and target.

        Args:
            sizes: Entries that the model has for each.

        Returns:
            The tokenizers, or twice None without a dictionary.

        Raises:
            OSError: A file cannot be read.
            ValueError: A dictionary has not as many entries as the model.
        """
        if self.source_dictionary is None:
            return None, None
        made = []
        paths = (self.source_dictionary, self.target_dictionary or self.source_dictionary)
        languages = (self.source_lang, self.target_lang)
        for path, language, size in zip(paths, languages, sizes, strict=True):
            tokens = read_fairseq_dictionary(path)
            if len(tokens) != size:
                raise ValueError(
                    f"{path} must have as many entries as the model, {size} with fairseq's own "
                    f"four, got {len(tokens)}."
                )
            if self.bpe_codes is None:
                made.append(tokenizer_of_pieces(tokens, SPECIAL_TOKENS))
            else:
                made.append(moses_tokenizer(tokens, self.bpe_codes, language))
        return tuple(made)


def read_fairseq(path: str | Path, text: FairseqText | None = None) -> ForeignModel:
    """A fairseq transformer: sinusoids in halves, first position 2, `</s>` as the start token.

    Args:
        path: The .pt file: old and new names, pre-norm and post-norm.
        text: How its texts are cut. None: no tokenizer.

    Returns:
        What there is of it.

    Raises:
        OSError: A file is missing or damaged.
        ValueError: The file is no such model's, or one that this model cannot be: the message
            names option or tensor.
    """
    checkpoint = read_pickled(path)
    if not isinstance(checkpoint.get("model"), Mapping):
        raise ValueError(f"{path}: a fairseq checkpoint holds its weights under 'model'.")
    tensors = tensors_in(checkpoint["model"], f"{path}: 'model'")
    options = _options(checkpoint, path)
    refuse_what_is_not_ours(options)
    fields = _fields(options, tensors)
    tables = [tensors.get(f"{half}.embed_positions.weight") for half in ("encoder", "decoder")]
    positions = (
        None
        if options["encoder_learned_pos"]
        else fairseq_sinusoids(int(options["encoder_embed_dim"]))
    )
    if positions is None:
        fields |= _learned_fields(tables)
    if _shares_output(options):  # older files hold the matrix once
        output = tensors.get("decoder.embed_tokens.weight")
        if output is not None:
            tensors.setdefault("decoder.output_projection.weight", output)
    foreign = read_foreign(
        "fairseq", FAIRSEQ_NAMES, tensors, fields, positions, dtype=dtype_of(tensors)
    )
    sizes = (
        foreign.config.vocab_size,
        foreign.config.decoder_vocab_size or foreign.config.vocab_size,
    )
    source, target = (text or FairseqText()).tokenizers(sizes)
    return dataclasses.replace(foreign, source_tokenizer=source, target_tokenizer=target)


def fairseq_sinusoids(d_model: int, length: int = 64) -> Tensor:
    """Fairseq's encodings from the first token's on, [length, D]: sines, then cosines.

    Args:
        d_model: Width, D.
        length: How many.

    Returns:
        Encodings.
    """
    half = d_model // 2
    frequencies = torch.exp(torch.arange(half) * -(math.log(10000) / max(1, half - 1)))
    angles = (torch.arange(length) + FIRST_POSITION)[:, None] * frequencies
    return torch.cat((angles.sin(), angles.cos()), dim=1)


def _options(checkpoint: Mapping[str, Any], path: str | Path) -> dict[str, Any]:
    """The model's options: a Namespace in older files, part of a configuration in newer ones."""
    whole = checkpoint.get("cfg") or {}
    whole = vars(whole) if isinstance(whole, argparse.Namespace) else whole
    inner = whole.get("model") if isinstance(whole, Mapping) else None
    found = checkpoint.get("args") or inner
    options = vars(found) if isinstance(found, argparse.Namespace) else found
    if not isinstance(options, Mapping):
        raise ValueError(f"{path}: a fairseq checkpoint holds its options under 'args' or 'cfg'.")
    defaults = {
        f"{half}_{name}": value
        for half in ("encoder", "decoder")
        for name, value in (("learned_pos", False), ("normalize_before", False))
    }
    needed = [
        f"{half}_{name}"
        for half in ("encoder", "decoder")
        for name in ("layers", "embed_dim", "ffn_embed_dim", "attention_heads")
    ]
    missing = [name for name in needed if name not in options]
    if missing:
        raise ValueError(f"{path}: the options have no {missing[0]}: no transformer of fairseq's.")
    return {**defaults, **options}


def refuse_what_is_not_ours(options: Mapping[str, Any]) -> None:
    """Name the first option that this model has no way to express.

    Args:
        options: fairseq's.

    Raises:
        ValueError: There is one.
    """
    for name in UNSUPPORTED:
        if options.get(name):
            raise ValueError(f"This model has no {name}, got {options[name]!r}.")
    for name in PAIRED:
        encoder, decoder = options[f"encoder_{name}"], options[f"decoder_{name}"]
        if encoder != decoder:
            raise ValueError(
                f"encoder_{name} and decoder_{name} must be the same here, got {encoder!r} and "
                f"{decoder!r}."
            )
    width = options.get("decoder_output_dim", options["decoder_embed_dim"])
    if width != options["decoder_embed_dim"]:
        raise ValueError(
            "decoder_output_dim must be decoder_embed_dim here, got "
            f"{width} and {options['decoder_embed_dim']}."
        )


def _fields(options: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for half in ("encoder", "decoder"):
        fields[f"{half}_layers"] = options[f"{half}_layers"]
        fields[f"{half}_attention_heads"] = options[f"{half}_attention_heads"]
        fields[f"{half}_ffn_dim"] = options[f"{half}_ffn_embed_dim"]
    for name in ("dropout", "attention_dropout"):
        fields[name] = options.get(name, 0.0)
    # The older name of the same rate.
    inner = options.get("activation_dropout") or options.get("relu_dropout", 0.0)
    return {
        **fields,
        "activation_dropout": inner,
        **SPECIAL_IDS,
        "activation_function": options.get("activation_fn", "relu"),
        "norm_first": options["encoder_normalize_before"],
        "final_norm": _final_norm(options, tensors),
        "layer_norm_eps": LAYER_NORM_EPS,
        "attention_bias": True,
        "scale_embedding": not options.get("no_scale_embedding", False),
    }


def _shares_output(options: Mapping[str, Any]) -> bool:
    return any(
        options.get(name) for name in ("share_all_embeddings", "share_decoder_input_output_embed")
    )


def _final_norm(options: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bool:
    """Whether both halves end in a norm: in pre-norm, but for the format's first numbers."""
    has_norm = {}
    for half, last in NORMLESS_VERSIONS.items():
        version = tensors.get(f"{half}.version", torch.ones(1))
        is_new = version.numel() > 0 and bool(version.max() > last)
        has_norm[half] = is_new and bool(options[f"{half}_normalize_before"])
    if len(set(has_norm.values())) > 1:
        raise ValueError(
            "Both halves must end in layer_norm, or neither, got one of them: encoder.layer_norm "
            f"{has_norm['encoder']}, decoder.layer_norm {has_norm['decoder']}."
        )
    return has_norm["encoder"]


def _learned_fields(tables: list[Tensor | None]) -> dict[str, int]:
    """The length of the tables of learned positions, which is one in this model."""
    lengths = [0 if table is None else len(table) - FIRST_POSITION for table in tables]
    if lengths[0] != lengths[1]:
        raise ValueError(
            "max_source_positions and max_target_positions must be the same here, got tables of "
            f"{lengths[0]} and {lengths[1]}."
        )
    return {"max_position_embeddings": lengths[0], "position_offset": FIRST_POSITION}
