"""Weights and dictionaries of fairseq's .pt files."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.hf_argparser import HfArg

from ..saved.languages import set_languages
from .foreign_model import LAYER_NORM_EPS, ForeignModel, read_foreign
from .layout import PAPER_BASE, RECOGNISED_BY, Sinusoids, interleaved_from_halves
from .pickled import options_in, read_checkpoint_file
from .vocabularies import (
    FAIRSEQ_SPECIALS,
    check_vocabulary_size,
    moses_tokenizer,
    read_fairseq_dictionary,
    tokenizer_of_pieces,
)
from .weight_names import DECODER_NORMS, ENCODER_NORMS, PROJECTIONS, NameTable

# Early versions of fairseq stacked queries, keys and values in in_proj and numbered the norms.
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
# The first token's position: in fairseq, padding has the position 1, which is its id.
FIRST_POSITION = 2
# Options that our model does not have.
UNSUPPORTED = (
    *("layernorm_embedding", "no_token_positional_embeddings", "adaptive_input"),
    *("no_cross_attention", "cross_self_attention", "adaptive_softmax_cutoff"),
)
# Up to these versions of the format, a pre-norm half does not end in a norm.
NORMLESS_VERSIONS = {"encoder": 1, "decoder": 2}


@dataclass(frozen=True)
class FairseqOptions:
    """How to prepare texts for a fairseq model, which its checkpoint does not contain."""

    source_dictionary: str | Path | None = HfArg(
        default=None, help="The source's dict.txt. Default: no tokenizer."
    )
    target_dictionary: str | Path | None = HfArg(
        default=None, help="The target's dict.txt. Default: the source's."
    )
    bpe_codes: str | Path | None = HfArg(
        default=None,
        help="The codes of subword-nmt. Texts are then tokenized by Moses and split by the codes. "
        "Default: texts are already cut into pieces with spaces between them.",
    )
    source_lang: str = HfArg(default="en", help="With --bpe_codes: language of the source.")
    target_lang: str = HfArg(default="de", help="With --bpe_codes: language of the target.")


def read_fairseq(path: str | Path, options: FairseqOptions | None = None) -> ForeignModel:
    """Read a fairseq transformer: sinusoids in two halves, first position 2, start token `</s>`.

    Args:
        path: The .pt file, of any version, pre-norm or post-norm.
        options: How to prepare texts. None: no tokenizer.

    Raises:
        OSError: A file is missing or damaged.
        ValueError: The file does not contain such a model, or our model does not support it. The
            message names the option or tensor.
    """
    checkpoint = read_checkpoint_file(path)
    tensors = dict(checkpoint.get("model") or {})
    # Older files keep the options under "args", newer ones under "cfg".
    cfg = options_in(checkpoint.get("cfg"))
    architecture = options_in(checkpoint.get("args") or cfg.get("model"))
    check_architecture(architecture, path)
    fields = _fairseq_fields(architecture, tensors)
    positions = None
    if architecture.get("encoder_learned_pos"):
        table = FAIRSEQ_NAMES.get(tensors, "model.encoder.embed_positions.weight")
        fields["max_position_embeddings"] = len(table) - FIRST_POSITION
        fields["position_offset"] = FIRST_POSITION
    else:
        width = architecture["encoder_embed_dim"]
        base, order = PAPER_BASE ** (width / (width - 2)), interleaved_from_halves(width)
        positions = Sinusoids(base, FIRST_POSITION, order, RECOGNISED_BY).table()
    has_tied_output = any(
        architecture.get(name)
        for name in ("share_all_embeddings", "share_decoder_input_output_embed")
    )
    if has_tied_output and "decoder.embed_tokens.weight" in tensors:
        # Older files store the tied matrix once.
        output = tensors["decoder.embed_tokens.weight"]
        tensors.setdefault("decoder.output_projection.weight", output)
    foreign = read_foreign("fairseq", FAIRSEQ_NAMES, tensors, fields, positions)
    return _with_tokenizers(foreign, options or FairseqOptions())


def _with_tokenizers(foreign: ForeignModel, options: FairseqOptions) -> ForeignModel:
    if options.source_dictionary is None:
        return foreign
    tokenizers = []
    paths = (options.source_dictionary, options.target_dictionary or options.source_dictionary)
    languages = (options.source_lang, options.target_lang)
    for path, language, size in zip(paths, languages, foreign.vocabulary_sizes, strict=True):
        tokens = read_fairseq_dictionary(path)
        check_vocabulary_size(f"{path} with fairseq's four special tokens", tokens, size)
        if options.bpe_codes is None:
            tokenizers.append(tokenizer_of_pieces(tokens, FAIRSEQ_SPECIALS))
        else:
            tokenizers.append(moses_tokenizer(tokens, options.bpe_codes, language))
    if options.bpe_codes is not None:
        set_languages(tokenizers[0], *languages)
    return replace(foreign, source_tokenizer=tokenizers[0], target_tokenizer=tokenizers[1])


def check_architecture(options: Mapping[str, Any], path: str | Path) -> None:
    """Check that a checkpoint is a transformer, and that our model supports its options."""
    if "encoder_attention_heads" not in options:
        raise ValueError(f"{path} must be a checkpoint of a transformer that fairseq wrote.")
    for name in UNSUPPORTED:
        if options.get(name):
            raise ValueError(f"This model does not support {name}, got {options[name]!r}.")
    norms = [options.get(f"{half}_normalize_before", False) for half in ("encoder", "decoder")]
    if norms[0] != norms[1]:
        raise ValueError(
            "encoder_normalize_before and decoder_normalize_before must be equal, because this "
            f"model has one setting for both, got {norms[0]!r} and {norms[1]!r}."
        )


def _fairseq_fields(options: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for half in ("encoder", "decoder"):
        fields[f"{half}_layers"] = options[f"{half}_layers"]
        fields[f"{half}_attention_heads"] = options[f"{half}_attention_heads"]
        fields[f"{half}_ffn_dim"] = options[f"{half}_ffn_embed_dim"]
    # The vocabulary begins with FAIRSEQ_SPECIALS; the decoder starts from </s>.
    ids = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    is_pre_norm = options.get("encoder_normalize_before", False)
    # Older files call it relu_dropout.
    dropout = options.get("activation_dropout") or options.get("relu_dropout", 0.0)
    return {
        **fields,
        **ids,
        "dropout": options.get("dropout", 0.0),
        "attention_dropout": options.get("attention_dropout", 0.0),
        "activation_dropout": dropout,
        "activation_function": options.get("activation_fn", "relu"),
        "norm_first": is_pre_norm,
        "final_norm": is_pre_norm and _has_final_norms(tensors),
        "layer_norm_eps": LAYER_NORM_EPS,
        "scale_embedding": not options.get("no_scale_embedding", False),
    }


def _has_final_norms(tensors: Mapping[str, Tensor]) -> bool:
    """Whether the halves of a pre-norm model end in a norm, as in all but the oldest files."""
    return all(
        version.numel() > 0 and bool(version.max() > oldest)
        for half, oldest in NORMLESS_VERSIONS.items()
        for version in [tensors.get(f"{half}.version", torch.ones(1))]
    )
