"""Let a language model go on with a text.

python scripts/complete.py --model runs/shakespeare --text "ROMEO:" --new_tokens 300
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, set_seed

import modeling_aiayn  # noqa: F401 (registers the classes)
from modeling_aiayn.command_line import parse_arguments, run_script
from modeling_aiayn.language_model.completion import complete


@dataclass
class CompletionArguments:
    """Which model, the beginning, and how to go on."""

    model: str = field(metadata={"help": "A trained language model's folder."})
    text: str = field(metadata={"help": "The text to go on with."})
    new_tokens: int = field(default=500, metadata={"help": "Tokens to add."})
    samples: int = field(default=1, metadata={"help": "How many texts to write."})
    temperature: float = field(
        default=0.8,
        metadata={"help": "Below 1 likely tokens are likelier; 0: always the likeliest."},
    )
    top_k: int = field(default=0, metadata={"help": "Draw among so many tokens; 0: all."})
    seed: int = field(default=42, metadata={"help": "Draws other tokens."})

    def __post_init__(self) -> None:
        for name, least in (("new_tokens", 1), ("samples", 1), ("temperature", 0), ("top_k", 0)):
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}.")
        if not Path(self.model).is_dir():
            raise FileNotFoundError(f"No such directory: {self.model}.")
        heads = AutoConfig.from_pretrained(self.model, local_files_only=True).architectures or []
        if "AiaynForCausalLM" not in heads:
            raise ValueError(f"{self.model} holds no language model, but {' and '.join(heads)}.")


def main() -> None:
    """Load, go on, write."""
    (arguments,) = parse_arguments(__doc__, CompletionArguments)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, local_files_only=True).eval()
    set_seed(arguments.seed)
    sampling = {"do_sample": False}
    if arguments.temperature > 0:
        sampling = {"do_sample": True, "temperature": arguments.temperature}
        sampling["top_k"] = arguments.top_k
    texts = complete(
        *(model, tokenizer, arguments.text, arguments.new_tokens, arguments.samples), **sampling
    )
    sys.stdout.write("\n\n---\n\n".join(texts) + "\n")


if __name__ == "__main__":
    run_script(main)
