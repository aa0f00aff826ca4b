"""Weights and tokenizers of M2M100ForConditionalGeneration: M2M-100, NLLB-200 and SMaLL-100."""

from dataclasses import dataclass
from pathlib import Path

from transformers import M2M100ForConditionalGeneration, M2M100Tokenizer, NllbTokenizer
from transformers.hf_argparser import HfArg
from transformers.tokenization_utils_base import TOKENIZER_CONFIG_FILE

from ..data.parsing import read_json_object
from ..saved.languages import TAG_SETTING
from .foreign_model import ForeignModel
from .library_models import HubOptions, Tokenizers, load_if_present, open_peer, read_peer
from .trimming import trim_vocabulary
from .weight_names import NameTable

M2M100_NAMES = NameTable(
    outside={
        "model.encoder.embed_tokens": ("model.encoder.embed_tokens", "model.shared"),
        "model.decoder.embed_tokens": ("model.decoder.embed_tokens", "model.shared"),
        "model.encoder.layer_norm": "model.encoder.layer_norm",
        "model.decoder.layer_norm": "model.decoder.layer_norm",
        "lm_head": "lm_head",
    },
    left_out={r"model\.shared\.weight": "the encoder's embeddings are the same"},
)


@dataclass(frozen=True)
class M2M100Options(HubOptions):
    """The location of the model, and the part of its vocabulary to keep."""

    keep_tokens_of: list[str] | None = HfArg(
        default=None,
        help="Keep only the tokens of these texts, whose files end in their language: "
        "texts.eng_Latn texts.deu_Latn. Default: all tokens.",
    )


def read_m2m100(
    source: str | Path | M2M100ForConditionalGeneration, options: M2M100Options | None = None
) -> ForeignModel:
    """Read an M2M-100, NLLB-200 or SMaLL-100 model: pre-norm, biases, sinusoids in two halves.

    Its first token has the position `pad_token_id` + 1, and its decoder starts from `</s>`.
    For arguments and errors, see `read_marian`; for more errors, see `trim_vocabulary`.
    """
    model, more = open_peer(M2M100ForConditionalGeneration, source, options, m2m100_tokenizers)
    if options is not None and options.keep_tokens_of:
        given = (model, more["source_tokenizer"], options.keep_tokens_of)
        more["source_tokenizer"] = trim_vocabulary(*given)
    first_position = model.config.pad_token_id + 1
    return read_peer(
        *("M2M100", M2M100_NAMES, model, more), first_position=first_position, norm_first=True
    )


def m2m100_tokenizers(folder: Path) -> Tokenizers:
    """Load the tokenizer in its own class, which adds a language tag before or after a text.

    The tokenizers of M2M-100 and SMaLL-100 need the package sentencepiece. SMaLL-100's own class is
    code in its folder. It differs only in its tag, which is the target language's.
    """
    whole = load_if_present(M2M100Tokenizer, folder, "vocab.json")
    if whole is None:
        return load_if_present(NllbTokenizer, folder, TOKENIZER_CONFIG_FILE), None
    settings = folder / TOKENIZER_CONFIG_FILE
    found = read_json_object(settings) if settings.is_file() else {}
    if found.get("tokenizer_class") == "SMALL100Tokenizer":
        whole.init_kwargs[TAG_SETTING] = "target"
        whole.init_kwargs.pop("auto_map", None)  # names the code
    return whole, None
