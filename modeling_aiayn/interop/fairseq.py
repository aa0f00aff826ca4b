"""Weights and dictionaries of fairseq's .pt files."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..saved.languages import set_languages
from .foreign_model import LAYER_NORM_EPS, ForeignModel, read_foreign
from .layout import RECOGNISED_BY
from .pickled import dtype_of, options_in, read_checkpoint_file, tensors_in
from .vocabularies import (
    FAIRSEQ_SPECIALS,
    check_vocabulary_size,
    moses_tokenizer,
    read_fairseq_dictionary,
    tokenizer_of_pieces,
)
from .weight_names import DECODER_NORMS, ENCODER_NORMS, PROJECTIONS, NameTable

# fairseq's first years stacked queries, keys and values in in_proj and numbered the norms.
FAIRSEQ_NAMES = NameTable(
    outside={
        "model.encoder.embed_tokens": "encoder.embed_tokens",
        "model.decoder.embed_tokens": "decoder.embed_tokens",
        "model.encoder.embed_positions": "encoder.embed_positions",
        "model.decoder.embed_positions": "decoder.embed_positions",
        "model.encoder.layer_norm": "encoder.layer_norm",
        "model.decoder.layer_norm": "decoder.layer_norm",
        "lm_head.weight": ("decoder.output_projection.weight", "decoder.embed_out"),
    },
    encoder_layer="encoder.layers.{n}.",
    decoder_layer="decoder.layers.{n}.",
    projections=[
        *((name, f"in_proj_{{leaf}}[{index}]") for index, name in enumerate(PROJECTIONS[:3])),
        "out_proj",
    ],
    encoder_norms=[(name, f"layer_norms.{index}") for index, name in enumerate(ENCODER_NORMS)],
    decoder_norms=[(name, f"layer_norms.{index}") for index, name in enumerate(DECODER_NORMS)],
    left_out={
        r"(en|de)coder\.version": "the format's number",
        r"(en|de)coder\.embed_positions\.(_float_tensor|weights)": "sinusoids are computed",
        r"encoder\.layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)": (
            "fairseq 0.12 saves them for a fused kernel and does not use them"
        ),
    },
)
# A fairseq vocabulary begins with FAIRSEQ_SPECIALS; the decoder starts from </s>.
FAIRSEQ_SPECIAL_IDS = {
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
SPECIAL_TOKENS = dict(
    zip(("bos_token", "pad_token", "eos_token", "unk_token"), FAIRSEQ_SPECIALS, strict=True)
)
# The first token's position; fairseq gives smaller ones to padding.
FIRST_POSITION = FAIRSEQ_SPECIAL_IDS["pad_token_id"] + 1
# Options that our model does not have.
UNSUPPORTED = (
    "layernorm_embedding",
    "no_token_positional_embeddings",
    "no_cross_attention",
    "cross_self_attention",
    "adaptive_input",
    "adaptive_softmax_cutoff",
)
# Options that must agree between encoder and decoder, because our model has one for both.
PAIRED = ("embed_dim", "normalize_before", "learned_pos")
# Up to this version of the format a pre-norm half does not end in a norm.
NORMLESS_VERSIONS = {"encoder": 1, "decoder": 2}


@dataclass(frozen=True)
class FairseqText:
    """The preparation of a fairseq model's texts, which its checkpoint does not contain.

    Args:
        source_dictionary: The source's dict.txt. None: no tokenizer.
        target_dictionary: The target's dict.txt. None: the source's.
        bpe_codes: subword-nmt's codes. Texts are then tokenized by Moses and split by the codes.
            None: texts are already cut into pieces with spaces between them.
        source_lang: Language of the source, for Moses.
        target_lang: Language of the target, for Moses.
    """

    source_dictionary: str | Path | None = None
    target_dictionary: str | Path | None = None
    bpe_codes: str | Path | None = None
    source_lang: str = "en"
    target_lang: str = "de"

    def tokenizers(self, sizes: tuple[int, int]) -> tuple[PreTrainedTokenizerBase | None, ...]:
        """Build tokenizers for the model's vocabulary sizes; without a dictionary both are None."""
        if self.source_dictionary is None:
            return None, None
        made = []
        paths = (self.source_dictionary, self.target_dictionary or self.source_dictionary)
        languages = (self.source_lang, self.target_lang)
        for path, language, size in zip(paths, languages, sizes, strict=True):
            tokens = read_fairseq_dictionary(path)
            check_vocabulary_size(f"{path} with fairseq's four special tokens", tokens, size)
            if self.bpe_codes is None:
                made.append(tokenizer_of_pieces(tokens, SPECIAL_TOKENS))
            else:
                made.append(moses_tokenizer(tokens, self.bpe_codes, language))
        if self.bpe_codes is not None:
            set_languages(made[0], *languages)
        return tuple(made)


def read_fairseq(path: str | Path, text: FairseqText | None = None) -> ForeignModel:
    """Read a fairseq transformer: sinusoids in two halves, first position 2, start token `</s>`.

    Args:
        path: The .pt file, of any version, pre-norm or post-norm.
        text: The preparation of its texts. None: no tokenizer.

    Raises:
        OSError: A file is missing or damaged.
        ValueError: The file is not such a model's, or our model does not support it. The message
            names the option or tensor.
    """
    checkpoint = read_checkpoint_file(path)
    if not isinstance(checkpoint.get("model"), Mapping):
        raise ValueError(f"{path}: a fairseq checkpoint must hold its weights under 'model'.")
    tensors = tensors_in(checkpoint["model"], f"{path}: 'model'")
    options = _fairseq_options(checkpoint, path)
    check_fairseq_options(options)
    fields = _fairseq_fields(options, tensors)
    positions = None
    if options["encoder_learned_pos"]:
        fields |= _learned_position_fields(tensors)
    else:
        positions = fairseq_sinusoids(int(options["encoder_embed_dim"]))
    has_tied_output = any(
        options.get(name) for name in ("share_all_embeddings", "share_decoder_input_output_embed")
    )
    if has_tied_output and "decoder.embed_tokens.weight" in tensors:
        # Older files store the tied matrix once.
        output = tensors["decoder.embed_tokens.weight"]
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


def fairseq_sinusoids(d_model: int) -> Tensor:
    """Compute fairseq's encodings from the first token on, [n, D]: sines, then cosines."""
    half = d_model // 2
    frequencies = torch.exp(torch.arange(half) * -(math.log(10000) / max(1, half - 1)))
    angles = (torch.arange(RECOGNISED_BY) + FIRST_POSITION)[:, None] * frequencies
    return torch.cat((angles.sin(), angles.cos()), dim=1)


def _fairseq_options(checkpoint: Mapping[str, Any], path: str | Path) -> dict[str, Any]:
    """Find the model's options; older files keep them under "args", newer ones under "cfg"."""
    configuration = options_in(checkpoint.get("cfg")) or {}
    options = options_in(checkpoint.get("args") or configuration.get("model"))
    if options is None:
        raise ValueError(
            f"{path}: a fairseq checkpoint must hold its options under 'args' or 'cfg'."
        )
    for half in ("encoder", "decoder"):
        for name in ("layers", "embed_dim", "ffn_embed_dim", "attention_heads"):
            if f"{half}_{name}" not in options:
                raise ValueError(
                    f"{path}: the options of a fairseq transformer must have {half}_{name}. This "
                    "checkpoint has another architecture."
                )
        options.setdefault(f"{half}_learned_pos", False)
        options.setdefault(f"{half}_normalize_before", False)
    return options


def check_fairseq_options(options: Mapping[str, Any]) -> None:
    """Check that our model supports fairseq's options; the error names the unsupported option."""
    for name in UNSUPPORTED:
        if options.get(name):
            raise ValueError(f"This model does not support {name}, got {options[name]!r}.")
    for name in PAIRED:
        encoder, decoder = options[f"encoder_{name}"], options[f"decoder_{name}"]
        if encoder != decoder:
            raise ValueError(
                f"encoder_{name} and decoder_{name} must be equal, because this model has one "
                f"setting for both, got {encoder!r} and {decoder!r}."
            )
    width = options.get("decoder_output_dim", options["decoder_embed_dim"])
    if width != options["decoder_embed_dim"]:
        raise ValueError(
            "decoder_output_dim must be equal to decoder_embed_dim, got "
            f"{width} and {options['decoder_embed_dim']}."
        )


def _fairseq_fields(options: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for half in ("encoder", "decoder"):
        fields[f"{half}_layers"] = options[f"{half}_layers"]
        fields[f"{half}_attention_heads"] = options[f"{half}_attention_heads"]
        fields[f"{half}_ffn_dim"] = options[f"{half}_ffn_embed_dim"]
    return {
        **fields,
        **FAIRSEQ_SPECIAL_IDS,
        "dropout": options.get("dropout", 0.0),
        "attention_dropout": options.get("attention_dropout", 0.0),
        # Older files call it relu_dropout.
        "activation_dropout": (
            options.get("activation_dropout") or options.get("relu_dropout", 0.0)
        ),
        "activation_function": options.get("activation_fn", "relu"),
        "norm_first": options["encoder_normalize_before"],
        "final_norm": _has_final_norm(options, tensors),
        "layer_norm_eps": LAYER_NORM_EPS,
        "attention_bias": True,
        "scale_embedding": not options.get("no_scale_embedding", False),
    }


def _has_final_norm(options: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bool:
    """Tell whether both halves end in a norm: in pre-norm, except in the oldest files."""
    has_norm = {}
    for half, last in NORMLESS_VERSIONS.items():
        version = tensors.get(f"{half}.version", torch.ones(1))
        is_new = version.numel() > 0 and bool(version.max() > last)
        has_norm[half] = is_new and bool(options[f"{half}_normalize_before"])
    if len(set(has_norm.values())) > 1:
        raise ValueError(
            "Either both halves must end in layer_norm or none, got encoder.layer_norm "
            f"{has_norm['encoder']} and decoder.layer_norm {has_norm['decoder']}."
        )
    return has_norm["encoder"]


def _learned_position_fields(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    tables = [tensors.get(f"{half}.embed_positions.weight") for half in ("encoder", "decoder")]
    lengths = [0 if table is None else len(table) - FIRST_POSITION for table in tables]
    if lengths[0] != lengths[1]:
        raise ValueError(
            "max_source_positions and max_target_positions must be equal, because this model has "
            f"one setting for both, got {lengths[0]} and {lengths[1]}."
        )
    return {"max_position_embeddings": lengths[0], "position_offset": FIRST_POSITION}
