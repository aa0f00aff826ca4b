"""Let a language model go on with a text.

python scripts/complete.py --model runs/shakespeare --text "ROMEO:" --new_tokens 300
"""

import sys
from dataclasses import dataclass, field

from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

from modeling_aiayn.command_line import check_head, default_device, parse_arguments, run_script
from modeling_aiayn.language_model.completion import complete
from modeling_aiayn.loading import load_checked


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
    device: str | None = field(
        default=None, metadata={"help": "cpu, cuda, ...; default: a GPU where there is one."}
    )
    seed: int = field(default=42, metadata={"help": "Draws other tokens."})

    def __post_init__(self) -> None:
        for name, least in (("new_tokens", 1), ("samples", 1), ("top_k", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}.")
        if self.temperature != 0 and not 0.01 <= self.temperature <= 100:
            raise ValueError(f"temperature must be 0 or in [0.01, 100], got {self.temperature}.")
        check_head(self.model, "AiaynForCausalLM")


def main() -> None:
    """Load, go on, write."""
    (arguments,) = parse_arguments(__doc__, CompletionArguments)
    options = {"local_files_only": True, "trust_remote_code": False}
    tokenizer = AutoTokenizer.from_pretrained(arguments.model, **options)
    model = load_checked(AutoModelForCausalLM, arguments.model)
    model.eval().to(default_device(arguments.device))
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
