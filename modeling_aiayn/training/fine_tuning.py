"""Fine-tuning: load a saved translation model, and choose which of its parameters to train."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AddedToken, PreTrainedTokenizerBase
from transformers.hf_argparser import HfArg
from transformers.utils import ADAPTER_CONFIG_NAME, ADAPTER_SAFE_WEIGHTS_NAME, CONFIG_NAME

from ..configuration_aiayn import AiaynConfig
from ..data.parsing import parse_mapping, read_json_object
from ..modeling_aiayn import AiaynForConditionalGeneration
from ..saved.languages import Languages, LanguageTags, languages_of, set_languages
from ..saved.loading import find_model, load_model
from ..saved.tokenizers import load_tokenizers
from ..saved.whole_files import replaced_files, write_file
from ..tokenization import vocabulary_sha256
from .arguments import AiaynTrainingArguments
from .depth import with_depth
from .setup import ModelArguments

# Fields of a saved model's configuration that fine-tuning may change.
RATES = ("dropout", "attention_dropout", "activation_dropout")
DEPTHS = ("encoder_layers", "decoder_layers")
PARTS = ("encoder", "embeddings")
# Flags that have no effect without another one.
NEEDS = dict.fromkeys(("hub", "add_tokens", "freeze", "lora_rank"), "start_from")
NEEDS["merge_lora"] = "lora_rank"
# LoRA scales its products by alpha / rank.
LORA_ALPHA_OVER_RANK = 2
LORA_MODULES = ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")


@dataclass
class FineTuningArguments:
    """The saved model to start from, and the parameters of it to train."""

    start_from: str | None = HfArg(
        default=None,
        help="Folder of a translation model to fine-tune, ours or imported; aiayn-en-de and "
        "aiayn-de-en are the bundled models. Default: train a new model from scratch.",
    )
    hub: bool = HfArg(default=False, help="start_from is a repository on the Hub.")
    add_tokens: list[str] | None = HfArg(
        default=None, help="New tokens for the source's vocabulary, such as <2fr> <2es>."
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
        if self.add_tokens and (self.lora_rank or "embeddings" in (self.freeze or ())):
            raise ValueError(
                "add_tokens cannot be combined with lora_rank or freeze embeddings: the embeddings "
                "of new tokens must be trained. Remove one."
            )


class SavedModel:
    """A saved translation model with its tokenizers, prepared to be trained further."""

    def __init__(
        self,
        flags: FineTuningArguments,
        model: ModelArguments,
        args: AiaynTrainingArguments,
        languages: Languages,
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
        set_languages(self._tokenizers[0], *languages)
        tags = LanguageTags.needed_by(self._tokenizers[0])
        if tags and (first := tags.first_ids(languages_of(self._tokenizers[0])[1])):
            loaded.generation_config.forced_bos_token_id = first[0]
        for tokenizer in self._tokenizers:
            # Remove loading options that save_pretrained would store.
            for name in ("is_local", "local_files_only"):
                tokenizer.init_kwargs.pop(name, None)
        if flags.add_tokens:
            _add_source_tokens(loaded, self._tokenizers, flags.add_tokens)
        _freeze_parts(loaded, flags.freeze or ())
        self._model: nn.Module = loaded
        if flags.lora_rank is not None:
            if loaded.name_or_path != str(path):  # the base model's, if path holds an adapter
                raise ValueError(
                    f"{path} holds an adapter, and lora_rank needs a whole model. Train the "
                    "adapter with --merge_lora true, and start from its folder."
                )
            self._model = _with_lora(loaded, flags.lora_rank)

    def tokenizers(self, *_: Any) -> tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]:
        """The tokenizers of source and target, one object if shared."""
        return self._tokenizers

    def build(self, *_: Any) -> nn.Module:
        """The model, or with LoRA the model in its adapter."""
        return self._model


def check_both_directions(source: PreTrainedTokenizerBase, target: PreTrainedTokenizerBase) -> None:
    """Check that both languages of a saved model have one vocabulary: each text is read by both."""
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
    """Read dropout rates and numbers of layers in config_overrides; the rest belongs to the model.

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
    # Found wherever they stand, as in "<2fr><formal> We see."; a normalizer would prepend a blank.
    options = {"normalized": False, "lstrip": True, "rstrip": True}
    source.add_tokens([AddedToken(token, **options) for token in tokens])
    if len(source) > model.config.vocab_size:
        model.resize_token_embeddings(len(source))
    if hasattr(model.config, "vocabulary_sha256"):
        model.config.vocabulary_sha256 = [vocabulary_sha256(tokenizer) for tokenizer in tokenizers]


def _freeze_parts(model: AiaynForConditionalGeneration, parts: Sequence[str]) -> None:
    for name, parameter in model.model.named_parameters():
        part = "embeddings" if "embed_tokens" in name else name.partition(".")[0]
        if part in parts:
            parameter.requires_grad_(False)


def _with_lora(model: AiaynForConditionalGeneration, rank: int) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=rank,
        lora_alpha=LORA_ALPHA_OVER_RANK * rank,
        target_modules=list(LORA_MODULES),
        task_type="SEQ_2_SEQ_LM",
    )
    adapted: nn.Module = get_peft_model(model, config)
    return adapted


def complete_adapter(folder: str | Path, base: str) -> None:
    """Write the base model's name into an adapter's folder, and delete an earlier merged model.

    peft notes the path that the base was loaded from, even that of the bundled model. A merged
    model in the folder comes from a shorter run, and would be loaded in place of the adapter.
    """
    for merged in (*Path(folder).glob("model*.safetensors*"), Path(folder) / CONFIG_NAME):
        merged.unlink(missing_ok=True)
    path = Path(folder) / ADAPTER_CONFIG_NAME
    settings = read_json_object(path) | {"base_model_name_or_path": base}
    write_file(path, json.dumps(settings, indent=2, sort_keys=True) + "\n")


def replace_adapter(merged: AiaynForConditionalGeneration, folder: str | Path) -> None:
    """Replace the adapter in a folder by the whole model, with the adapter merged into it.

    If the run is killed in between, the resumed run calls `complete_adapter`, which deletes the
    whole model.
    """
    with replaced_files(Path(folder)) as target:
        merged.save_pretrained(target)
    for name in (ADAPTER_CONFIG_NAME, ADAPTER_SAFE_WEIGHTS_NAME):
        (Path(folder) / name).unlink(missing_ok=True)
