"""Weights and vocabularies of OpenNMT-py's .pt files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from .foreign_model import ForeignModel, read_foreign
from .layout import shared_position_table
from .pickled import dtype_of, options_in, read_checkpoint_file, tensors_in
from .vocabularies import OPENNMT_SPECIALS, check_vocabulary_size, tokenizer_of_pieces
from .weight_names import NameTable, sizes_of

OPENNMT_NAMES = NameTable(
    outside={
        "model.encoder.embed_tokens": "encoder.embeddings.make_embedding.emb_luts.0",
        "model.decoder.embed_tokens": "decoder.embeddings.make_embedding.emb_luts.0",
        "model.encoder.layer_norm": "encoder.layer_norm",
        "model.decoder.layer_norm": "decoder.layer_norm",
        "lm_head": ("generator", "generator.0"),
    },
    encoder_layer="encoder.transformer.{n}.",
    decoder_layer="decoder.transformer_layers.{n}.",
    cross_attention="context_attn",
    projections=("linear_query", "linear_keys", "linear_values", "final_linear"),
    feed_forward=("feed_forward.w_1", "feed_forward.w_2"),
    encoder_norms=("layer_norm", "feed_forward.layer_norm"),
    decoder_norms=("layer_norm_1", "layer_norm_2", "feed_forward.layer_norm"),
    left_out={r"(en|de)coder\.embeddings\.make_embedding\.pe\.pe": "sinusoids are computed"},
    # The options add_qkvbias and add_ffnbias switch them on.
    optional_biases=(r".*_attn\.[qkv]_proj\.bias", r".*\.fc[12]\.bias"),
)
POSITION_TABLES = [f"{half}.embeddings.make_embedding.pe.pe" for half in ("encoder", "decoder")]
OPENNMT_LAYER_NORM_EPS = 1e-6
# The only values that our model supports.
NEEDED_OPTIONS: dict[str, Any] = {
    "encoder_type": "transformer",
    "decoder_type": "transformer",
    "layer_norm": "standard",
    "position_encoding": True,
    "max_relative_positions": 0,
    "copy_attn": False,
    "parallel_residual": False,
    "multiquery": False,
    "aan_useffn": False,
    "num_kv": 0,
}
# Options with several supported values; the first is OpenNMT-py's default.
SUPPORTED_CHOICES = {
    "self_attn_type": ("scaled-dot", "scaled-dot-flash"),  # two ways to compute the same
    "pos_ffn_activation_fn": ("relu", "gelu"),
}


def read_opennmt(path: str | Path) -> ForeignModel:
    """Read an OpenNMT-py transformer: pre-norm, a biased output, sources without `</s>`.

    In files of its first years the norms are called a_2 and b_2 and divide by the sample's
    deviation. The tokenizers expect texts that are cut into pieces with spaces between them.

    Args:
        path: A .pt file of version 3, whose vocabularies are lists. Convert older files with
            OpenNMT-py's tools/convertv2_v3.py. Weights may be in a .safetensors file beside it.

    Raises:
        OSError: The file is missing or damaged.
        ValueError: The file is not such a model's, or our model does not support it. The message
            names the option or tensor.
    """
    if Path(path).is_dir():
        raise ValueError(
            f"{path} is a folder. Pass the .pt file of OpenNMT-py 3. Folders that eole wrote have "
            "another architecture and cannot be imported."
        )
    checkpoint = _with_weights(read_checkpoint_file(path), Path(path))
    for name in ("model", "generator", "vocab", "opt"):
        if options_in(checkpoint.get(name)) is None:
            raise ValueError(
                f"{path}: an OpenNMT-py checkpoint must have an entry {name!r}, and this one has "
                "none."
            )
    tensors = tensors_in(checkpoint["model"], f"{path}: 'model'") | {
        f"generator.{name}": tensor
        for name, tensor in tensors_in(checkpoint["generator"], f"{path}: 'generator'").items()
    }
    options = options_in(checkpoint["opt"]) or {}
    check_opennmt_options(options)
    source, target = _checked_vocabularies(checkpoint["vocab"], tensors, path)
    has_deviation = "encoder.layer_norm.a_2" in tensors
    epsilon = float(options.get("norm_eps", OPENNMT_LAYER_NORM_EPS))
    source_specials = {name: token for name, token in OPENNMT_SPECIALS.items() if token in source}
    return read_foreign(
        "OpenNMT-py",
        OPENNMT_NAMES,
        tensors,
        {
            **sizes_of(OPENNMT_NAMES, tensors),
            **_opennmt_fields(options),
            **_token_ids(source, target, checkpoint["vocab"]),
            "lm_head_bias": True,
            "layer_norm_eps": epsilon**2 if has_deviation else epsilon,
        },
        shared_position_table(tensors, *POSITION_TABLES),
        has_sample_deviation=has_deviation,
        dtype=dtype_of(tensors),
        source_tokenizer=tokenizer_of_pieces(source, source_specials, template="$A"),
        target_tokenizer=tokenizer_of_pieces(target, OPENNMT_SPECIALS),
    )


def _with_weights(checkpoint: dict[str, Any], path: Path) -> dict[str, Any]:
    """Add the weights from the file beside it that -save_format safetensors writes."""
    beside = path.with_suffix(".safetensors")
    if "model" in checkpoint or "opt" not in checkpoint or path == beside:
        return checkpoint
    if not beside.is_file():
        raise FileNotFoundError(f"{path} holds no weights, and there is no {beside} with them.")
    tensors = read_checkpoint_file(beside)
    generator = {
        name.removeprefix("generator."): tensor
        for name, tensor in tensors.items()
        if name.startswith("generator.")
    }
    others = {name: each for name, each in tensors.items() if not name.startswith("generator.")}
    return checkpoint | {"model": others, "generator": generator}


def check_opennmt_options(options: Mapping[str, Any]) -> None:
    """Check that our model supports OpenNMT-py's options; the error names the wrong option."""
    for name, needed in NEEDED_OPTIONS.items():
        if options.get(name, needed) != needed:
            raise ValueError(
                f"{name} must be {needed!r}, because this model supports nothing else, got "
                f"{options[name]!r}."
            )
    for name, choices in SUPPORTED_CHOICES.items():
        if options.get(name, choices[0]) not in choices:
            raise ValueError(f"{name} must be one of {', '.join(choices)}, got {options[name]!r}.")


def _opennmt_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    def dropout(name: str) -> float:
        """Return a rate; OpenNMT-py may have a list of them, one for each stage of training."""
        value = options.get(name) or 0.0
        return float(value[0] if isinstance(value, list) else value)

    depths = {"encoder_layers": "enc_layers", "decoder_layers": "dec_layers"}
    return {
        **{ours: options[theirs] for ours, theirs in depths.items() if theirs in options},
        "encoder_attention_heads": options.get("heads", 8),
        "decoder_attention_heads": options.get("heads", 8),
        "dropout": dropout("dropout"),
        "attention_dropout": dropout("attention_dropout"),
        "activation_dropout": dropout("dropout"),
        "activation_function": options.get("pos_ffn_activation_fn", "relu"),
        "norm_first": True,
    }


def _checked_vocabularies(
    vocabulary: Any, tensors: Mapping[str, Tensor], path: str | Path
) -> tuple[Sequence[str], Sequence[str]]:
    if not isinstance(vocabulary, Mapping) or not all(
        isinstance(vocabulary.get(side), list) for side in ("src", "tgt")
    ):
        raise ValueError(
            f"{path}: 'vocab' must hold lists of tokens, as OpenNMT-py 3 writes them. Convert "
            "older files with its tools/convertv2_v3.py."
        )
    for half, side in (("encoder", "src"), ("decoder", "tgt")):
        embeddings = OPENNMT_NAMES.get(tensors, f"model.{half}.embed_tokens.weight")
        where = f"{path}: 'vocab' of the {half}"
        check_vocabulary_size(where, vocabulary[side], len(embeddings))
    return vocabulary["src"], vocabulary["tgt"]


def _token_ids(
    source: Sequence[str], target: Sequence[str], vocabulary: Mapping[str, Any]
) -> dict[str, int]:
    names = {
        "bos_token_id": "<s>",
        "pad_token_id": "<blank>",
        "eos_token_id": "</s>",
        "decoder_start_token_id": vocabulary.get("decoder_start_token", "<s>"),
    }
    for side, tokens, needed in (
        ("target", target, names.values()),
        ("source", source, ("<blank>", "<unk>")),
    ):
        for token in needed:
            if token not in tokens:
                raise ValueError(
                    f"The {side} vocabulary must contain the token {token!r}, but it does not."
                )
    ids = {name: target.index(token) for name, token in names.items()}
    if source.index("<blank>") != ids["pad_token_id"]:
        raise ValueError(
            "<blank> must have the same id in both vocabularies, got "
            f"{source.index('<blank>')} in the source's and {ids['pad_token_id']} in the target's."
        )
    return ids
