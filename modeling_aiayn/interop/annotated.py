"""Weights of the Annotated Transformer (Rush et al., 2018 and 2022)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor
from transformers.hf_argparser import HfArg

from ..data.lines import read_lines
from .foreign_model import ConfigOptions, ForeignModel, read_foreign
from .layout import shared_position_table
from .pickled import read_state_dict
from .vocabularies import OPENNMT_SPECIALS, check_vocabulary_size, tokenizer_of_pieces
from .weight_names import NameTable

ANNOTATED_NAMES = NameTable(
    outside={
        "model.encoder.embed_tokens": "src_embed.0.lut",
        "model.decoder.embed_tokens": "tgt_embed.0.lut",
        "model.encoder.layer_norm": "encoder.norm",
        "model.decoder.layer_norm": "decoder.norm",
        "lm_head": "generator.proj",
    },
    encoder_layer="encoder.layers.{n}.",
    decoder_layer="decoder.layers.{n}.",
    cross_attention="src_attn",
    projections=[f"linears.{index}" for index in range(4)],
    feed_forward=("feed_forward.w_1", "feed_forward.w_2"),
    encoder_norms=[f"sublayer.{index}.norm" for index in range(2)],
    decoder_norms=[f"sublayer.{index}.norm" for index in range(3)],
    left_out={r"(src|tgt)_embed\.1\.pe": "sinusoids are computed"},
)
# Its vocabulary begins with <s>, </s>, <blank> and <unk>.
ANNOTATED_SPECIAL_IDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
# It adds 1e-6 to the standard deviation. Our model adds the square of this to the variance.
ANNOTATED_LAYER_NORM_EPS = 1e-12


@dataclass(frozen=True)
class AnnotatedOptions(ConfigOptions):
    """Fields of the configuration, and words, which the state dict does not contain."""

    source_dictionary: str | Path | None = HfArg(
        default=None,
        help="File with a word per line, in the order of their ids. Texts are then words with "
        "spaces between them. Default: no tokenizer.",
    )
    target_dictionary: str | Path | None = HfArg(
        default=None, help="The same for the target. Default: the source's."
    )


def read_annotated(
    source: str | Path | Mapping[str, Tensor], options: AnnotatedOptions
) -> ForeignModel:
    """Read an Annotated Transformer: pre-norm with the sample deviation, biases everywhere.

    Args:
        source: The state dict, or a file that contains it.
        options: The words, and fields of `AiaynConfig`: dropout and token ids are needed if they
            differ from those of the document.

    Raises:
        OSError: A file is missing or damaged.
        ValueError: A tensor is missing, has the wrong shape, or belongs to no parameter.
    """
    tensors = read_state_dict(source)
    foreign = read_foreign(
        "The Annotated Transformer",
        ANNOTATED_NAMES,
        tensors,
        {
            **ANNOTATED_SPECIAL_IDS,
            "decoder_start_token_id": 0,
            "norm_first": True,
            "lm_head_bias": True,
            "layer_norm_eps": ANNOTATED_LAYER_NORM_EPS,
            **options.fields(),
        },
        shared_position_table(tensors, "src_embed.1.pe", "tgt_embed.1.pe"),
        has_sample_deviation=True,
    )
    if options.source_dictionary is None:
        return foreign
    paths = (options.source_dictionary, options.target_dictionary or options.source_dictionary)
    # In the document a source begins with <s> and ends with </s>; a target only ends with </s>.
    templates = ("<s> $A </s>", "$A </s>")
    tokenizers = []
    for path, size, template in zip(paths, foreign.vocabulary_sizes, templates, strict=True):
        words = read_lines(path)
        check_vocabulary_size(path, words, size)
        tokenizers.append(tokenizer_of_pieces(words, OPENNMT_SPECIALS, template))
    return replace(foreign, source_tokenizer=tokenizers[0], target_tokenizer=tokenizers[1])
