"""Weights and tokenizers of FSMTForConditionalGeneration, fairseq's WMT models in transformers."""

from pathlib import Path

from transformers import FSMTForConditionalGeneration, FSMTTokenizer

from ..saved.languages import set_languages
from .foreign_model import ForeignModel
from .library_models import HubOptions, Tokenizers, load_if_present, open_peer, read_peer
from .weight_names import NameTable

FSMT_NAMES = NameTable(
    outside={
        "model.encoder.embed_tokens": "model.encoder.embed_tokens",
        "model.decoder.embed_tokens": "model.decoder.embed_tokens",
        "lm_head": "model.decoder.output_projection",
    },
    left_out={r"model\.(en|de)coder\.embed_positions\.weight": "sinusoids are computed"},
)


def read_fsmt(
    source: str | Path | FSMTForConditionalGeneration, options: HubOptions | None = None
) -> ForeignModel:
    """Read an FSMT model: post-norm, attention biases, sinusoids in two halves.

    Its first token has the position `pad_token_id` + 1. For arguments and errors, see
    `read_marian`.
    """
    model, more = open_peer(FSMTForConditionalGeneration, source, options, fsmt_tokenizers)
    first_position = model.config.pad_token_id + 1
    return read_peer("FSMT", FSMT_NAMES, model, more, first_position=first_position)


def fsmt_tokenizers(folder: Path) -> Tokenizers:
    """Load FSMT's tokenizer once for each language. It needs the package sacremoses."""
    whole = load_if_present(FSMTTokenizer, folder, "vocab-src.json")
    if whole is None:
        return None, None

    languages = (whole.src_lang, whole.tgt_lang)
    source, target = (
        FSMTTokenizer.from_pretrained(
            folder,
            langs=[language, language],
            src_vocab_file=str(folder / f"vocab-{side}.json"),
            tgt_vocab_file=str(folder / f"vocab-{side}.json"),
            eos_token=whole.sep_token,
            local_files_only=True,
        )
        for language, side in zip(languages, ("src", "tgt"), strict=True)
    )
    set_languages(source, *languages)
    return source, target
