"""Weights and tokenizers of MarianMTModel, the class of OPUS-MT."""

from pathlib import Path

from transformers import AutoTokenizer, MarianMTModel, MarianTokenizer

from ..tokenization import TARGET_TOKENIZER_FOLDER
from .foreign_model import ForeignModel
from .library_models import HubOptions, Tokenizers, load_if_present, open_peer, read_peer
from .weight_names import NameTable

MARIAN_NAMES = NameTable(
    outside={
        "model.encoder.embed_tokens": ("model.encoder.embed_tokens", "model.shared"),
        "model.decoder.embed_tokens": ("model.decoder.embed_tokens", "model.shared"),
        "lm_head.weight": "lm_head.weight",
        "lm_head.bias": "final_logits_bias",
    },
    left_out={
        r"model\.(en|de)coder\.embed_positions\.weight": "sinusoids are computed",
        r"model\.shared\.weight": "the encoder's embeddings are the same",
    },
)


def read_marian(
    source: str | Path | MarianMTModel, options: HubOptions | None = None
) -> ForeignModel:
    """Read a MarianMTModel: post-norm, biases everywhere, sinusoids in two halves.

    Its decoder starts from the padding token. If a source is padded on the left, Marian counts the
    padding as positions; our model counts real tokens only.

    Args:
        source: The model, its folder, or its repository. The tokenizers are read too.
        options: The location of the model. None: a folder.

    Raises:
        OSError: There is no such model, or it cannot be read.
        ValueError: A weight is missing, is not finite, or has another shape than the
            configuration says.
    """
    model, more = open_peer(MarianMTModel, source, options, marian_tokenizers)
    tensors = {"final_logits_bias": model.final_logits_bias[0]}
    return read_peer("MarianMTModel", MARIAN_NAMES, model, more, tensors=tensors, lm_head_bias=True)


def marian_tokenizers(folder: Path) -> Tokenizers:
    """Load a Marian folder's tokenizers, one for each language.

    OPUS-MT's tokenizers stay in Marian's class, which needs the package sentencepiece: fast
    tokenizers split texts differently if a piece is missing from the vocabulary. Folders that
    `export_marian` wrote for our own models have fast tokenizers.
    """
    whole = load_if_present(MarianTokenizer, folder, "source.spm")
    if whole is None:
        source, target = (
            load_if_present(AutoTokenizer, place, "tokenizer.json")
            for place in (folder, folder / TARGET_TOKENIZER_FOLDER)
        )
        return source, target
    if whole.separate_vocabs:
        source = _tokenizer_of_one_language(folder, "source.spm", "vocab.json")
        return source, _tokenizer_of_one_language(folder, "target.spm", "target_vocab.json")
    return whole, _tokenizer_of_one_language(folder, "target.spm", "vocab.json")


def _tokenizer_of_one_language(folder: Path, pieces: str, vocabulary: str) -> MarianTokenizer:
    """Load Marian's tokenizer so that it uses one SentencePiece model for source and target."""
    return MarianTokenizer.from_pretrained(
        folder,
        source_spm=str(folder / pieces),
        target_spm=str(folder / pieces),
        vocab=str(folder / vocabulary),
        target_vocab_file=None,
        separate_vocabs=False,
        local_files_only=True,
    )
