"""Our model as a MarianMTModel, which the library and whatever serves its models know."""

import copy
from pathlib import Path

import torch
from torch import Tensor
from transformers import MarianConfig, MarianMTModel

from ..configuration_aiayn import AiaynConfig
from ..modeling_aiayn import AiaynForConditionalGeneration
from ..tokenization import TARGET_TOKENIZER_FOLDER
from ..translation import Translator
from .importing import new_folder, refuse_used
from .layout import PAPER_BASE, interleaved_from_halves, reorder_residual
from .marian import LAYER_NORM_EPS, MARIAN_NAMES, SHARED_FIELDS
from .parity import SOURCES, ImportReport, compare_models

# Rows of Marian's table of positions, which ends there.
POSITIONS = 1024
# Marian adds 1e-5 to a variance and cannot be told otherwise; the paper's model here adds 1e-6.
# Variances are about 1, so logits differ by some 1e-5 of the largest.
NORM_TOLERANCE = 1e-4


def refuse_what_marian_lacks(config: AiaynConfig) -> None:
    """Name the first number of config that MarianMTModel has no way to express.

    Args:
        config: Of the model to export.

    Raises:
        ValueError: There is one.
    """
    needed = {
        "norm_first": (config.norm_first, False),
        "final_norm": (bool(config.final_norm), False),
        "position_type": (config.position_type, "sinusoidal"),
        "position_base": (float(config.position_base), PAPER_BASE),
        "position_offset": (config.position_offset, 0),
    }
    for name, (value, must) in needed.items():
        if value != must:
            raise ValueError(f"MarianMTModel needs {name}={must!r}, got {value!r}.")
    if config.layer_norm_eps > LAYER_NORM_EPS:
        raise ValueError(
            f"MarianMTModel needs layer_norm_eps of at most {LAYER_NORM_EPS}, got "
            f"{config.layer_norm_eps}."
        )
    for half in ("encoder", "decoder"):
        heads = getattr(config, f"{half}_attention_heads")
        if config.head_dim is not None and config.head_dim * heads != config.d_model:
            raise ValueError(
                f"MarianMTModel has no head_dim={config.head_dim} in a model of "
                f"d_model={config.d_model} and {half}_attention_heads={heads}: a head's width is "
                "their quotient."
            )


def to_marian(model: AiaynForConditionalGeneration) -> MarianMTModel:
    """A translation model in Marian's class, with sinusoids in halves.

    Args:
        model: The model.

    Returns:
        The same model in float32; its norms add 1e-5 to the variance, whatever the model's add.

    Raises:
        ValueError: MarianMTModel cannot express it; the message names the field.
    """
    config = model.config
    refuse_what_marian_lacks(config)
    is_shared = config.decoder_vocab_size is None and config.tie_word_embeddings
    marian = MarianMTModel(
        MarianConfig(
            **{name: getattr(config, name) for name in SHARED_FIELDS},
            vocab_size=config.vocab_size,
            decoder_vocab_size=config.decoder_vocab_size,
            d_model=config.d_model,
            share_encoder_decoder_embeddings=is_shared,
            tie_word_embeddings=config.tie_word_embeddings,
            max_position_embeddings=POSITIONS,
            forced_eos_token_id=None,
        )
    )
    ours = {name: tensor.detach().float().cpu() for name, tensor in model.state_dict().items()}
    halves = interleaved_from_halves(config.d_model).argsort()
    marian.load_state_dict(_under_marian_names(marian, reorder_residual(ours, halves)))
    decoding = copy.deepcopy(model.generation_config)
    vars(decoding).pop("max_tokens_beyond_source", None)
    decoding.max_length = decoding.max_length or POSITIONS // 2
    marian.generation_config = decoding
    return marian.eval()


def _under_marian_names(marian: MarianMTModel, ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every tensor that Marian has: ours, its own positions, and 0 for biases that ours lacks."""
    weights = marian.state_dict()
    for name in weights:
        if "embed_positions" not in name and name.endswith("bias"):
            weights[name] = torch.zeros_like(weights[name])
    for parameter, tensor in ours.items():
        for name in MARIAN_NAMES.names_of(parameter):
            if name in weights:
                weights[str(name)] = tensor.view_as(weights[str(name)])
    return weights


def export_marian(
    translator: Translator,
    folder: str | Path,
    *,
    sources: int = SOURCES,
    show_progress: bool = False,
) -> ImportReport:
    """Write a translation model and its tokenizers as MarianMTModel's folder.

    Args:
        translator: The model and its tokenizers.
        folder: The folder to write. It must not hold anything yet.
        sources: Random sources to compare on.
        show_progress: Whether to show a bar on stderr.

    Returns:
        The proof that it is the same model.

    Raises:
        ValueError: MarianMTModel cannot express it, or it came out as another model.
        OSError: The folder is not empty, or cannot be written.
    """
    folder = Path(folder)
    refuse_used(folder)
    if len(translator.models) > 1:
        raise ValueError(f"A MarianMTModel is one model, got {len(translator.models)} that vote.")
    model = copy.deepcopy(translator.model).float().cpu()
    marian = to_marian(model)
    report = compare_models(model, marian, "transformers' MarianMTModel", sources, show_progress)
    if not report.is_within(NORM_TOLERANCE):
        raise ValueError(f"The export is not the same model, and is not written:\n{report}")
    with new_folder(folder) as aside:
        marian.to(translator.model.dtype).save_pretrained(aside)
        translator.source_tokenizer.save_pretrained(aside)
        if translator.target_tokenizer is not translator.source_tokenizer:
            translator.target_tokenizer.save_pretrained(aside / TARGET_TOKENIZER_FOLDER)
    return report
