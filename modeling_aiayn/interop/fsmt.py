"""Weights from FSMTForConditionalGeneration, fairseq's WMT models in the library, and its text."""

from pathlib import Path

from transformers import FSMTForConditionalGeneration, FSMTTokenizer, PreTrainedTokenizerBase

from .foreign_model import ForeignModel, read_foreign
from .library_models import in_float32, load_peer, load_tokenizer, own_generation_config
from .marian import DECODER_LAYER, ENCODER_LAYER, LAYER_NORM_EPS, SHARED_FIELDS
from .weight_names import NameTable

FSMT_NAMES = NameTable(
    around={
        "model.encoder.embed_tokens": "model.encoder.embed_tokens",
        "model.decoder.embed_tokens": "model.decoder.embed_tokens",
        "lm_head": "model.decoder.output_projection",
    },
    encoder=ENCODER_LAYER,
    decoder=DECODER_LAYER,
    encoder_layer="model.encoder.layers.{n}.",
    decoder_layer="model.decoder.layers.{n}.",
    left_out={r"model\.(en|de)coder\.embed_positions\.weight": "sinusoids are computed"},
)


def read_fsmt(source: str | Path | FSMTForConditionalGeneration) -> ForeignModel:
    """An FSMT model: post-norm, biases in attention, sinusoids in halves, first position pad + 1.

    Args:
        source: The model, or its folder.

    Returns:
        What there is of it; from a folder also its tokenizers.

    Raises:
        OSError: There is no such folder, or it cannot be read.
        ValueError: A weight is missing, not finite, or has another shape than the configuration.
    """
    if isinstance(source, FSMTForConditionalGeneration):
        given, tokenizers = source, (None, None)
    else:
        given = load_peer(FSMTForConditionalGeneration, source)
        tokenizers = fsmt_tokenizers(Path(source))
    peer = in_float32(given)
    return read_foreign(
        "FSMT",
        FSMT_NAMES,
        peer.state_dict(),
        {
            **{name: getattr(peer.config, name) for name in SHARED_FIELDS},
            "layer_norm_eps": LAYER_NORM_EPS,
            "attention_bias": True,
        },
        peer.model.encoder.embed_positions.weight[peer.config.pad_token_id + 1 :],
        dtype=given.dtype,
        generation_config=own_generation_config(peer),
        source_tokenizer=tokenizers[0],
        target_tokenizer=tokenizers[1],
        peer=peer,
    )


def fsmt_tokenizers(
    folder: Path,
) -> tuple[PreTrainedTokenizerBase | None, PreTrainedTokenizerBase | None]:
    """FSMT's own tokenizer for each language: Moses, then byte-pair encoding.

    It needs the package sacremoses.

    Args:
        folder: A folder with vocab-src.json, vocab-tgt.json and merges.txt.

    Returns:
        Tokenizers of source and target, or twice None where the folder has none.
    """
    whole = load_tokenizer(FSMTTokenizer, folder, "vocab-src.json")
    if whole is None:
        return None, None
    return tuple(
        FSMTTokenizer.from_pretrained(
            folder,
            langs=[language, language],
            src_vocab_file=str(folder / vocabulary),
            tgt_vocab_file=str(folder / vocabulary),
            eos_token=whole.sep_token,
            local_files_only=True,
        )
        for language, vocabulary in (
            (whole.src_lang, "vocab-src.json"),
            (whole.tgt_lang, "vocab-tgt.json"),
        )
    )
