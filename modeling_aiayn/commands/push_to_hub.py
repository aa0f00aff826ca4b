"""Upload a trained model to the Hub, alone or with a page to try it.

aiayn push-to-hub --model runs/multi30k --repo_id me/translator
aiayn push-to-hub --model runs/multi30k --repo_id me/try-translator --space true

With --space, the repository is a Space: the Hub runs the page of `aiayn app` there. The token is
the one of `hf auth login` or of HF_TOKEN.
"""

import sys
from dataclasses import dataclass
from inspect import signature

import torch
from transformers.hf_argparser import HfArg

from ..pages.space import SPACE_SDK, space_operations
from ..saved.publishing import model_operations, upload
from ..translation import Translator
from .command_line import parse_arguments
from .flags import load_with_tokenizer, saved_architecture

SENTENCE = "The dog sees."


@dataclass
class PushFlags:
    model: str = HfArg(help="Folder of a trained model.")
    repo_id: str = HfArg(help="Repository on the Hub, as in me/translator.")
    space: bool = HfArg(default=False, help="Make a Space. Needs the extra app.")
    examples: list[str] = HfArg(default_factory=list, help="Texts on the page of the Space.")
    revision: str | None = HfArg(default=None, help="Branch, which may be new. Default: main.")
    private: bool = HfArg(default=False, help="Make a new repository private.")
    message: str = HfArg(default="Upload model", help="Commit message.")


def check_works(folder: str) -> None:
    """Check that a folder loads and gives finite results, because users will download it."""
    architecture = saved_architecture(folder)
    if architecture in ("", "AiaynForConditionalGeneration"):
        # The base model of an adapter may be on the Hub.
        translator = Translator.from_pretrained(folder, hub=not architecture)
        if translator.needs_languages:
            translator.set_languages(*translator.directions[0])
        [[best]] = translator.stream([SENTENCE])
        results = torch.tensor(best.score)
    else:
        model, tokenizer = load_with_tokenizer(architecture, folder)
        length = {"truncation": True, "max_length": model.config.max_position_embeddings}
        inputs = tokenizer(SENTENCE, return_tensors="pt", **length)
        if "decoder_input_ids" in signature(model.forward).parameters:
            inputs["decoder_input_ids"] = torch.tensor([[model.config.decoder_start_token_id]])
        with torch.inference_mode():
            results = model.eval()(**inputs)[0]
    if not results.isfinite().all():
        raise ValueError(f"{folder}: the results for {SENTENCE!r} are not finite.")


def main() -> None:
    (flags,) = parse_arguments(__doc__, PushFlags)
    if flags.space:
        operations = space_operations(flags.model, flags.repo_id, flags.examples)
    else:
        operations = model_operations(flags.model, flags.repo_id)
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
