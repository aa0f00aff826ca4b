"""Fine-tuning: load a saved translation model, and choose which of its parameters to train."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase
from transformers.hf_argparser import HfArg
from transformers.utils import ADAPTER_CONFIG_NAME, ADAPTER_SAFE_WEIGHTS_NAME, CONFIG_NAME

from ..configuration_aiayn import AiaynConfig
from ..data.parsing import parse_mapping, read_json_object
from ..modeling_aiayn import AiaynForConditionalGeneration
from ..saved.languages import (
    SETTINGS,
    TAG_SETTING,
    Languages,
    LanguageTags,
    languages_of,
    set_languages,
)
from ..saved.loading import find_model, load_model
from ..saved.tokenizers import load_tokenizers
from ..saved.whole_files import replaced_files, write_file
from ..tokenization import (
    BACK_TRANSLATED,
    TARGET_TOKENIZER_FOLDER,
    language_tags,
    source_token,
    vocabulary_sha256,
)
from .arguments import AiaynTrainingArguments
from .depth import with_depth
from .new_language import add_language, add_pieces
from .setup import ModelArguments

# Fields of a saved model's configuration that fine-tuning may change.
RATES = ("dropout", "attention_dropout", "activation_dropout")
DEPTHS = ("encoder_layers", "decoder_layers")
PARTS = ("encoder", "embeddings")
# Flags that have no effect without another one.
OF_START = ("hub", "add_tokens", "like", "add_pieces_from", "freeze", "lora_rank")
NEEDS = dict.fromkeys(OF_START, "start_from")
NEEDS |= {"add_language": "like", "merge_lora": "lora_rank"}
# LoRA scales its products by alpha / rank.
LORA_ALPHA_OVER_RANK = 2
# Subfolder of an adapter's folder, for its base model if that has new tokens.
BASE_FOLDER = "base"
LORA_MODULES = ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")


@dataclass
class FineTuningArguments:
    """The saved model to start from, and which of its parameters to train."""

    start_from: str | None = HfArg(
        default=None,
        help="Folder of a translation model to fine-tune, ours or imported; aiayn-en-de and "
        "aiayn-de-en are the bundled models. Default: train a new model from scratch.",
    )
    hub: bool = HfArg(default=False, help="start_from is a repository on the Hub.")
    add_tokens: list[str] | None = HfArg(
        default=None, help="New tokens for the source's vocabulary, such as <2fr> <2es>."
    )
    add_language: str | None = HfArg(
        default=None, help="A new language of the model, such as gsw_Latn for NLLB-200."
    )
    like: str | None = HfArg(
        default=None, help="The model's language that add_language starts from, such as deu_Latn."
    )
    add_pieces_from: list[str] | None = HfArg(
        default=None,
        help="Files of text, a sentence per line, whose unknown characters and frequent pieces are "
        "added to the vocabulary.",
    )
    max_new_pieces: int = HfArg(
        default=1000, help="Maximum number of pieces that add_pieces_from adds beside characters."
    )
    freeze: list[str] | None = HfArg(
        default=None,
        help="Parts that are not trained: encoder (its layers), embeddings (of both "
        "languages, and the output projection if it is tied to them).",
        metadata={"choices": list(PARTS)},
    )
    lora_rank: int | None = HfArg(
        default=None,
        help="Train an adapter of this rank by LoRA, instead of the model. Usual: 16. "
        "output_dir then holds only the adapter.",
    )
    merge_lora: bool = HfArg(
        default=False, help="Save the whole model with the adapter merged into its weights."
    )

    def __post_init__(self) -> None:
        for name, needed in NEEDS.items():
            if getattr(self, name) and not getattr(self, needed):
                raise ValueError(f"{name} needs {needed}. Pass {needed}, or leave {name} out.")
        new = [x for x in ("add_tokens", "add_language", "add_pieces_from") if getattr(self, x)]
        if new and "embeddings" in (self.freeze or ()):
            raise ValueError(
                f"{new[0]} cannot be combined with freeze embeddings: the embeddings of new tokens "
                "must be trained. Remove one."
            )


class SavedModel:
    """A saved translation model with its tokenizers, prepared to be trained further."""

    def __init__(
        self,
        flags: FineTuningArguments,
        model: ModelArguments,
        args: AiaynTrainingArguments,
        languages: Languages | None,
        tokens: Sequence[str] = (),
    ) -> None:
        path = find_model(flags.start_from or "")
        _check_flags(path, model, args)
        rates, depths = _read_changes(model, flags)
        loaded = load_model(path, flags.hub, dtype=torch.float32, **rates)
        if depths:
            loaded = with_depth(loaded, depths)
        self.config: AiaynConfig = loaded.config
        self._tokenizers = load_tokenizers(
            path, loaded.config, trust_remote_code=False, local_files_only=not flags.hub
        )
        new_ids = _extend_vocabulary(loaded, self._tokenizers, flags, tokens)
        self._set_direction(loaded, languages)
        for tokenizer in self._tokenizers:
            # Remove loading options that save_pretrained would store.
            for name in ("is_local", "local_files_only"):
                tokenizer.init_kwargs.pop(name, None)
        _freeze_parts(loaded, flags.freeze or ())
        self._model: nn.Module = loaded
        if flags.lora_rank is not None:
            if loaded.name_or_path != str(path):  # path holds an adapter of that model
                raise ValueError(
                    f"{path} holds an adapter, and lora_rank needs a whole model. Train the "
                    "adapter with --merge_lora true, and start from its folder."
                )
            if new_ids:
                self._save_base(loaded, f"{args.output_dir}/{BASE_FOLDER}", args.should_save)
            self._model = _with_lora(loaded, flags.lora_rank, new_ids)

    def _set_direction(
        self, model: AiaynForConditionalGeneration, languages: Languages | None
    ) -> None:
        source = self._tokenizers[0]
        if languages is None:
            for name in SETTINGS:
                source.init_kwargs.pop(name, None)
            return
        set_languages(source, *languages)
        tags = LanguageTags.needed_by(source)
        if tags and (first := tags.first_ids(languages_of(source)[1])):
            model.generation_config.forced_bos_token_id = first[0]

    def _save_base(self, model: Any, folder: str, is_saving: bool) -> None:
        """Save an adapter's base model with the new tokens, because start_from lacks them."""
        model.name_or_path = folder
        source, target = self._tokenizers
        if is_saving:
            model.save_pretrained(folder)
            source.save_pretrained(folder)
            if target is not source:
                target.save_pretrained(f"{folder}/{TARGET_TOKENIZER_FOLDER}")

    def tokenizers(self, *_: Any) -> tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]:
        """The tokenizers of source and target, one object if shared."""
        return self._tokenizers

    def build(self, *_: Any) -> nn.Module:
        """The model, or with LoRA the model in its adapter."""
        return self._model


def check_both_directions(source: PreTrainedTokenizerBase, target: PreTrainedTokenizerBase) -> None:
    """Check that a saved model's languages share a vocabulary: each text is source and target."""
    if source is not target or LanguageTags.needed_by(source):
        raise ValueError(
            "both_directions needs one vocabulary for both languages, without tags of languages, "
            "and the model of start_from has another. Remove both_directions."
        )


def _check_flags(path: str | Path, model: ModelArguments, args: AiaynTrainingArguments) -> None:
    if Path(path).resolve() == Path(args.output_dir).resolve():
        raise ValueError(
            f"output_dir must not be the folder of start_from, {path}: the run would overwrite the "
            "saved model. Give another --output_dir."
        )
    for field in fields(ModelArguments):
        if field.name != "config_overrides" and getattr(model, field.name) != field.default:
            raise ValueError(
                f"{field.name} cannot be given with start_from: the saved model keeps its sizes, "
                "its vocabulary and its search. Remove it."
            )
    if args.lr_scheduler_type == "noam":
        raise ValueError(
            "With start_from, lr_scheduler_type must not be noam: it suits only new models. Pass "
            "the recipe finetune.yaml, or --lr_scheduler_type cosine --learning_rate 0.0003 "
            "--warmup_steps 100."
        )


def _read_changes(
    model: ModelArguments, flags: FineTuningArguments
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read dropout rates and numbers of layers from config_overrides; reject other fields.

    An adapter is loaded into its base model as it was saved, so LoRA cannot change layers.
    """
    overrides = parse_mapping("config_overrides", model.config_overrides)
    allowed = RATES if flags.lora_rank is not None else (*RATES, *DEPTHS)
    for name in overrides:
        if name not in allowed:
            raise ValueError(
                f"Here, config_overrides may set {', '.join(allowed)}; {name} belongs to the saved "
                "model. Remove it."
            )
    depths = {name: overrides.pop(name) for name in DEPTHS if name in overrides}
    return overrides, depths


def _add_source_tokens(
    model: AiaynForConditionalGeneration,
    tokenizers: tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase],
    tokens: list[str],
) -> None:
    source = tokenizers[0]
    source.add_tokens([*map(source_token, tokens)])
    if len(source) > model.config.vocab_size:
        model.resize_token_embeddings(len(source))
    if hasattr(model.config, "vocabulary_sha256"):
        model.config.vocabulary_sha256 = [vocabulary_sha256(tokenizer) for tokenizer in tokenizers]


def _extend_vocabulary(
    model: AiaynForConditionalGeneration,
    tokenizers: tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase],
    flags: FineTuningArguments,
    needed: Sequence[str],
) -> list[int]:
    """Add the tokens, language and pieces of the flags, and tokens needed by corpora.

    Returns the new ids.
    """
    source, target = tokenizers
    first = len(source)
    has_tags_of_others = LanguageTags.of(source) and not _has_own_tags(source)
    own = [token for token in needed if token == BACK_TRANSLATED or not has_tags_of_others]
    tokens = [*(flags.add_tokens or ()), *own]
    if new := [token for token in tokens if token not in source.get_vocab()]:
        _add_source_tokens(model, tokenizers, new)
    has_tags = len(needed) > 1 and _has_own_tags(source)
    if source is not target and (has_tags or flags.add_language or flags.add_pieces_from):
        raise ValueError("Several directions and a new language need one vocabulary for all.")
    if has_tags:  # all sources are trained with them
        source.init_kwargs[TAG_SETTING] = "target"
    if flags.add_language and flags.like:
        add_language(model, source, flags.add_language, flags.like)
    if flags.add_pieces_from:
        add_pieces(model, source, flags.add_pieces_from, flags.max_new_pieces)
    return [*range(first, len(source))]


def _has_own_tags(tokenizer: PreTrainedTokenizerBase) -> bool:
    names = map(str, tokenizer.convert_ids_to_tokens([*language_tags(tokenizer).values()]))
    return any(name.startswith("<2") for name in names)


def _freeze_parts(model: AiaynForConditionalGeneration, parts: Sequence[str]) -> None:
    for name, parameter in model.model.named_parameters():
        part = "embeddings" if "embed_tokens" in name else name.partition(".")[0]
        if part in parts:
            parameter.requires_grad_(False)


def _with_lora(
    model: AiaynForConditionalGeneration, rank: int, new_ids: Sequence[int]
) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    layers = ["encoder.embed_tokens"]  # tied layers follow it
    if not model.config.tie_word_embeddings and model.config.decoder_vocab_size is None:
        layers += ["decoder.embed_tokens", "lm_head"]
    config = LoraConfig(
        r=rank,
        lora_alpha=LORA_ALPHA_OVER_RANK * rank,
        target_modules=list(LORA_MODULES),
        task_type="SEQ_2_SEQ_LM",
        trainable_token_indices={layer: [*new_ids] for layer in layers} if new_ids else None,
    )
    adapted: nn.Module = get_peft_model(model, config)
    return adapted


def complete_adapter(folder: str | Path, base: str) -> None:
    """Write the base model's name into an adapter's folder, and delete an earlier merged model.

    peft writes the path from which the base was loaded, even for a bundled model. A merged model in
    the folder comes from a shorter run, and would be loaded instead of the adapter. If there are
    new tokens, the base is in BASE_FOLDER.
    """
    base = str(own) if (own := Path(folder, BASE_FOLDER)).is_dir() else base
    for merged in (*Path(folder).glob("model*.safetensors*"), Path(folder) / CONFIG_NAME):
        merged.unlink(missing_ok=True)
    path = Path(folder) / ADAPTER_CONFIG_NAME
    settings = read_json_object(path) | {"base_model_name_or_path": base}
    write_file(path, json.dumps(settings, indent=2, sort_keys=True) + "\n")


def replace_adapter(merged: AiaynForConditionalGeneration, folder: str | Path) -> None:
    """Replace the adapter in a folder by the whole model into which it was merged.

    If the run is killed in between, the resumed run calls `complete_adapter`, which deletes the
    whole model.
    """
    with replaced_files(Path(folder)) as target:
        merged.save_pretrained(target)
    for name in (ADAPTER_CONFIG_NAME, ADAPTER_SAFE_WEIGHTS_NAME):
        (Path(folder) / name).unlink(missing_ok=True)
    shutil.rmtree(Path(folder) / BASE_FOLDER, ignore_errors=True)
