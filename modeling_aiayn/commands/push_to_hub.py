"""Upload a trained model to the Hub, alone or with a page to try it.

aiayn push-to-hub --model runs/multi30k --repo_id me/translator
aiayn push-to-hub --model runs/multi30k --repo_id me/try-translator --space true

With --space, the repository is a Space: the Hub runs the page of `aiayn app` there. The model is
loaded and tried first. Only the card, weights, tokenizers, model code, scores and pictures are
uploaded, and for a Space this package. The token is the one of `hf auth login` or of HF_TOKEN.
"""

import sys
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import CommitOperationAdd
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTextEncoding,
)
from transformers.hf_argparser import HfArg
from transformers.utils import CONFIG_NAME

from ..pages.space import SPACE_SDK, space_operations
from ..saved.folders import check_directory, load_config
from ..saved.loading import check_package, find_model
from ..saved.publishing import model_operations, upload
from ..translation import Translator
from .command_line import parse_arguments
from .flags import load_with_tokenizer

# Saved classes that do not translate, or not with our decoder.
OTHER_MODELS: dict[str, Any] = {
    "AiaynForSequenceClassification": AutoModelForSequenceClassification,
    "AiaynForCausalLM": AutoModelForCausalLM,
    "AiaynModel": AutoModel,
    "AiaynEncoderModel": AutoModelForTextEncoding,
    "MarianMTModel": AutoModelForSeq2SeqLM,
}
SENTENCE = "The dog sees."


@dataclass
class PushFlags:
    """The folder to upload, and the repository."""

    model: str = HfArg(help="Folder of a trained model.")
    repo_id: str = HfArg(help="Repository on the Hub, as in me/translator.")
    space: bool = HfArg(
        default=False,
        help="Make a Space: the model with a page to try it. Needs the extra app.",
    )
    examples: list[str] = HfArg(
        default_factory=list,
        help="With --space: texts that a visitor can choose.",
    )
    revision: str | None = HfArg(
        default=None, help="Branch, created if it does not exist. Default: main."
    )
    private: bool = HfArg(default=False, help="Make a new repository private.")
    message: str = HfArg(default="Upload model", help="Commit message.")

    def __post_init__(self) -> None:
        if self.examples and not self.space:
            raise ValueError("--examples needs --space true.")
        if self.space:
            check_package("gradio", "app")
        if not self.message.strip():
            raise ValueError("message must not be empty: it is the commit's message.")
        if find_model(self.model) != self.model and not Path(self.model).exists():
            raise ValueError(
                f"{self.model} is a bundled model, not a folder of yours. Copy its folder first: "
                f"{find_model(self.model)}."
            )

    def operations(self) -> list[CommitOperationAdd]:
        """The files to upload."""
        if not self.space:
            return model_operations(self.model, self.repo_id)
        if Path(self.model).is_dir() and not Path(self.model, CONFIG_NAME).is_file():
            raise ValueError(
                f"A Space needs a whole model, got {self.model}, which has no {CONFIG_NAME}. Merge "
                "an adapter into its base model first: train with --merge_lora true."
            )
        return space_operations(self.model, self.repo_id, self.examples)


def check_works(folder: str) -> None:
    """Check that a folder loads and gives finite results, as a user's download has to.

    Raises:
        OSError: A file is missing or damaged, or the base of an adapter cannot be loaded.
        ValueError: A weight is missing, foreign or not finite, or a result is not finite.
    """
    check_directory(folder)
    has_config = Path(folder, CONFIG_NAME).is_file()
    names = load_config(folder).architectures if has_config else None
    auto_class = OTHER_MODELS.get(next(iter(names or []), ""))
    if auto_class is not None:
        model, tokenizer = load_with_tokenizer(auto_class, folder)
        length = {"truncation": True, "max_length": model.config.max_position_embeddings}
        inputs = tokenizer(SENTENCE, return_tensors="pt", **length)
        if "decoder_input_ids" in signature(model.forward).parameters:
            inputs["decoder_input_ids"] = torch.tensor([[model.config.decoder_start_token_id]])
        with torch.inference_mode():
            results = model.eval()(**inputs)[0]
    else:
        # The base of an adapter may be on the Hub.
        translator = Translator.from_pretrained(folder, hub=not has_config)
        [[best]] = translator.stream([SENTENCE])
        results = torch.tensor(best.score)
    if not results.isfinite().all():
        raise ValueError(f"{folder}: the results for {SENTENCE!r} are not finite.")


def main() -> None:
    """Check the folder, upload it, and print the commit's address."""
    (flags,) = parse_arguments(__doc__, PushFlags)
    operations = flags.operations()
    check_works(flags.model)
    address = upload(
        operations,
        flags.repo_id,
        space_sdk=SPACE_SDK if flags.space else None,
        revision=flags.revision,
        private=flags.private,
        message=flags.message,
    )
    sys.stdout.write(f"{address}\n")
