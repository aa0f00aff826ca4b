"""Upload a trained translation model to the Hub.

aiayn push-to-hub --model runs/multi30k --repo_id me/translator

The model is loaded and tried first. Only the card, weights, tokenizers, model code, scores and
pictures are uploaded. The token is the one of `hf auth login` or of HF_TOKEN.
"""

import shlex
import sys
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTextEncoding,
)
from transformers.hf_argparser import HfArg
from transformers.utils import CONFIG_NAME

from ..loading import check_directory, load_config
from ..publishing import files_to_publish, publish
from ..translation import Translator
from .command_line import parse_arguments, typed_command
from .saved_model import load_with_tokenizer

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
    revision: str | None = HfArg(
        default=None, help="Branch, created if it does not exist. Default: main."
    )
    private: bool = HfArg(default=False, help="Make a new repository private.")
    message: str = HfArg(default="Upload model", help="Commit message.")
    timeout: float = HfArg(
        default=60.0,
        help="Seconds to wait for each answer of the Hub; the time for sending files is added.",
    )


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
        inputs = tokenizer(SENTENCE, return_tensors="pt")
        if "decoder_input_ids" in signature(model.forward).parameters:
            inputs["decoder_input_ids"] = inputs["input_ids"]
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
    files_to_publish(flags.model)
    check_works(flags.model)
    try:
        address = publish(
            flags.model,
            flags.repo_id,
            revision=flags.revision,
            private=flags.private,
            message=flags.message,
            timeout=flags.timeout,
        )
    except (ConnectionError, PermissionError) as error:
        command = shlex.join(typed_command())
        raise OSError(f"{error} The folder is unchanged; to try again: {command}") from error
    sys.stdout.write(f"{address}\n")
