"""Export our model as a MarianMTModel, for software that supports classes of transformers."""

import json
import shutil
from pathlib import Path

import torch
from transformers import MarianConfig, MarianMTModel, MarianTokenizer

from ..configuration_aiayn import AiaynConfig
from ..data.parsing import read_json_object
from ..modeling_aiayn import AiaynForConditionalGeneration
from ..saved.whole_files import new_folder
from ..tokenization import TARGET_TOKENIZER_FOLDER
from ..translation import Translator
from .foreign_model import LAYER_NORM_EPS
from .layout import PAPER_BASE, interleaved_from_halves, reorder_residual
from .library_models import (
    SHARED_FIELDS,
    check_head_width,
    copy_to_export,
    library_generation_config,
    save_tokenizers,
)
from .marian import MARIAN_NAMES
from .parity import SOURCES, ImportReport, compare_models

# Rows of the exported table of positions, which limit the length of a text in Marian.
MARIAN_POSITIONS = 1024
# Marian always adds 1e-5 to a variance; the paper's model here adds 1e-6. Variances are about 1, so
# logits differ by about 1e-5 of the largest.
NORM_TOLERANCE = 1e-4


def check_marian_supports(config: AiaynConfig) -> None:
    """Check that MarianMTModel supports a configuration; the error names the unsupported field."""
    needed = {
        "norm_first": False,
        "final_norm": False,
        "position_type": "sinusoidal",
        "position_base": PAPER_BASE,
        "position_offset": 0,
    }
    for name, value in needed.items():
        given = getattr(config, name)
        if (given or False) != value:  # final_norm may be None
            raise ValueError(f"MarianMTModel needs {name}={value!r}, got {given!r}.")
    if config.layer_norm_eps > LAYER_NORM_EPS:
        raise ValueError(
            f"MarianMTModel needs layer_norm_eps of at most {LAYER_NORM_EPS}, got "
            f"{config.layer_norm_eps}."
        )
    check_head_width(config, "MarianMTModel")


def to_marian(model: AiaynForConditionalGeneration) -> MarianMTModel:
    """Convert a translation model to Marian's class, in float32, with sinusoids in two halves.

    Its layer norms always add 1e-5 to the variance, even if the model adds less.
    """
    config = model.config
    check_marian_supports(config)
    is_shared = config.decoder_vocab_size is None and config.tie_word_embeddings
    marian = MarianMTModel(
        MarianConfig(
            **{name: getattr(config, name) for name in SHARED_FIELDS},
            decoder_vocab_size=config.decoder_vocab_size,
            share_encoder_decoder_embeddings=is_shared,
            tie_word_embeddings=config.tie_word_embeddings,
            max_position_embeddings=MARIAN_POSITIONS,
            forced_eos_token_id=None,
        )
    )
    ours = {name: tensor.detach().float().cpu() for name, tensor in model.state_dict().items()}
    weights = marian.state_dict()  # biases are 0, where ours may have none
    halves = interleaved_from_halves(config.d_model).argsort()
    for parameter, tensor in reorder_residual(ours, halves).items():
        for name in weights.keys() & MARIAN_NAMES.names_of(parameter):
            weights[name] = tensor.view_as(weights[name])
    marian.load_state_dict(weights)
    decoding = library_generation_config(model)
    decoding.max_length = decoding.max_length or MARIAN_POSITIONS // 2
    marian.generation_config = decoding
    return marian.eval()


def export_marian(
    translator: Translator,
    folder: str | Path,
    *,
    sources: int = SOURCES,
    show_progress: bool = False,
) -> ImportReport:
    """Write a translation model and its tokenizers as a folder that MarianMTModel opens.

    The folder must be new or empty. Returns the comparison of the two models on random sources.

    Raises:
        ValueError: MarianMTModel does not support the model, or both differ; nothing is written.
        OSError: The folder is not empty, or cannot be written.
    """
    with new_folder(Path(folder)) as unfinished:
        model = copy_to_export(translator)
        marian = to_marian(model)
        name = "transformers' MarianMTModel"
        report = compare_models(model, marian, name, sources, show_progress)
        report.check(NORM_TOLERANCE)
        marian.to(_stored_dtype(translator.model)).save_pretrained(unfinished)
        save_tokenizers(translator, unfinished)
        source, target = translator.source_tokenizer, translator.target_tokenizer
        are_marian = isinstance(source, MarianTokenizer) and isinstance(target, MarianTokenizer)
        if are_marian and source.get_vocab() != target.get_vocab():
            _join_tokenizers(unfinished)
    return report


def _join_tokenizers(folder: Path) -> None:
    """Add files so that Marian's class, which decodes with target.spm, reads two vocabularies."""
    target = folder / TARGET_TOKENIZER_FOLDER
    shutil.copyfile(target / "source.spm", folder / "target.spm")
    shutil.copyfile(target / "vocab.json", folder / "target_vocab.json")
    path = folder / "tokenizer_config.json"
    settings = read_json_object(path) | {"separate_vocabs": True}
    path.write_text(json.dumps(settings, indent=2) + "\n", "utf-8")


def _stored_dtype(model: AiaynForConditionalGeneration) -> torch.dtype:
    """Return the type that holds a model's weights exactly: float16 if loaded from float16."""
    if model.dtype == torch.float32 and model.config.dtype == torch.float16:
        weights = model.state_dict().values()
        if all(torch.equal(weight, weight.half().float()) for weight in weights):
            return torch.float16
    return model.dtype
