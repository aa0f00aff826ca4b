"""Continue a text with a language model.

aiayn complete --model runs/shakespeare --text "ROMEO:" --new_tokens 300
"""

import sys
from dataclasses import dataclass
from typing import Any

from transformers import set_seed
from transformers.hf_argparser import HfArg

from ..language_model.completion import complete
from ..translation.processes import default_device
from .command_line import parse_arguments
from .flags import DEVICE_HELP, load_with_tokenizer


@dataclass
class CompletionFlags:
    model: str = HfArg(help="Folder of a trained language model.")
    text: str = HfArg(help="The start of the text.")
    new_tokens: int = HfArg(default=500, help="Number of tokens to add.")
    samples: int = HfArg(default=1, help="Number of texts to write.")
    temperature: float = HfArg(default=0.8, help="0: always take the most likely token.")
    top_k: int = HfArg(default=0, help="Sample among the k most likely tokens; 0: among all.")
    device: str | None = HfArg(default=None, help=DEVICE_HELP)
    seed: int = HfArg(default=42, help="Seed of the sampling.")


def main() -> None:
    (flags,) = parse_arguments(__doc__, CompletionFlags)
    model, tokenizer = load_with_tokenizer("AiaynForCausalLM", flags.model)
    model.eval().to(default_device(flags.device))
    set_seed(flags.seed)
    sampling: dict[str, Any] = {"do_sample": False}
    if flags.temperature != 0:
        sampling = {"do_sample": True, "temperature": flags.temperature, "top_k": flags.top_k}
    texts = complete(model, tokenizer, flags.text, flags.new_tokens, flags.samples, **sampling)
    sys.stdout.write("\n\n---\n\n".join(texts) + "\n")
