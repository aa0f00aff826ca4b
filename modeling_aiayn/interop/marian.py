"""Weights from MarianMTModel, the class of OPUS-MT, and its tokenizers."""

from pathlib import Path

from transformers import MarianMTModel, MarianTokenizer, PreTrainedTokenizerBase

from .foreign_model import ForeignModel, read_foreign
from .library_models import (
    fast_tokenizers,
    in_float32,
    load_peer,
    load_tokenizer,
    own_generation_config,
)
from .weight_names import NameTable

# What the library's layers call their parts, in Marian and FSMT as here.
ATTENTION = ("q_proj", "k_proj", "v_proj", "out_proj")
ENCODER_LAYER = {
    name: name
    for name in (
        *(f"self_attn.{projection}" for projection in ATTENTION),
        "self_attn_layer_norm",
        "fc1",
        "fc2",
        "final_layer_norm",
    )
}
DECODER_LAYER = ENCODER_LAYER | {
    name: name
    for name in (
        *(f"encoder_attn.{projection}" for projection in ATTENTION),
        "encoder_attn_layer_norm",
    )
}
MARIAN_NAMES = NameTable(
    around={
        "model.encoder.embed_tokens": ("model.encoder.embed_tokens", "model.shared"),
        "model.decoder.embed_tokens": ("model.decoder.embed_tokens", "model.shared"),
        "lm_head.weight": "lm_head.weight",
        "lm_head.bias": "final_logits_bias",
    },
    encoder=ENCODER_LAYER,
    decoder=DECODER_LAYER,
    encoder_layer="model.encoder.layers.{n}.",
    decoder_layer="model.decoder.layers.{n}.",
    left_out={
        r"model\.(en|de)coder\.embed_positions\.weight": "sinusoids are computed",
        r"model\.shared\.weight": "the encoder's embeddings are the same",
    },
)
# Fields of the library's configurations that mean here what they mean there.
SHARED_FIELDS = (
    "encoder_layers",
    "decoder_layers",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "activation_function",
    "scale_embedding",
    "bos_token_id",
    "pad_token_id",
    "eos_token_id",
    "decoder_start_token_id",
)
# torch's, which both classes leave as it is.
LAYER_NORM_EPS = 1e-5


def read_marian(source: str | Path | MarianMTModel) -> ForeignModel:
    """A MarianMTModel: post-norm, biases everywhere, sinusoids in halves, a start id of its own.

    It starts from pad, whose embedding is 0; that is an id like others here. It counts padding on
    the left as positions, where our model counts real tokens alone.

    Args:
        source: The model, or its folder.

    Returns:
        What there is of it; from a folder also its tokenizers.

    Raises:
        OSError: There is no such folder, or it cannot be read.
        ValueError: A weight is missing, not finite, or has another shape than the configuration.
    """
    if isinstance(source, MarianMTModel):
        given, tokenizers = source, (None, None)
    else:
        given, tokenizers = load_peer(MarianMTModel, source), marian_tokenizers(Path(source))
    peer = in_float32(given)
    return read_foreign(
        "MarianMTModel",
        MARIAN_NAMES,
        {**peer.state_dict(), "final_logits_bias": peer.final_logits_bias[0]},
        {
            **{name: getattr(peer.config, name) for name in SHARED_FIELDS},
            "layer_norm_eps": LAYER_NORM_EPS,
            "attention_bias": True,
            "lm_head_bias": True,
        },
        peer.model.encoder.embed_positions.weight,
        dtype=given.dtype,
        generation_config=own_generation_config(peer),
        source_tokenizer=tokenizers[0],
        target_tokenizer=tokenizers[1],
        peer=peer,
    )


def marian_tokenizers(
    folder: Path,
) -> tuple[PreTrainedTokenizerBase | None, PreTrainedTokenizerBase | None]:
    """Marian's own tokenizer for each language.

    Its pair of SentencePiece models splits text as no fast tokenizer does, where a piece is not in
    the vocabulary: so it is kept, and needs the package sentencepiece. A folder of
    `export_marian` has fast ones, and they stay.

    Args:
        folder: A MarianMTModel's folder.

    Returns:
        Tokenizers of source and target, or twice None where the folder has none.
    """
    whole = load_tokenizer(MarianTokenizer, folder, "source.spm")
    if whole is None:
        return fast_tokenizers(folder)
    target_pieces, is_separate = str(folder / "target.spm"), whole.separate_vocabs
    vocabulary = folder / ("target_vocab.json" if is_separate else "vocab.json")
    target = MarianTokenizer.from_pretrained(
        folder,
        source_spm=target_pieces,
        target_spm=target_pieces,
        vocab=str(vocabulary),
        target_vocab_file=None,
        separate_vocabs=False,
        local_files_only=True,
    )
    if not is_separate:
        return whole, target
    source_pieces = str(folder / "source.spm")
    source = MarianTokenizer.from_pretrained(
        folder,
        source_spm=source_pieces,
        target_spm=source_pieces,
        target_vocab_file=None,
        separate_vocabs=False,
        local_files_only=True,
    )
    return source, target
