"""Import a model of another system, and prove that it is the same model.

python scripts/import_weights.py --system marian --hub true \
    --source Helsinki-NLP/opus-mt-en-de --output models/opus-en-de
python scripts/import_weights.py --system fairseq --source model.pt --output models/wmt16 \
    --source_dictionary dict.en.txt --target_dictionary dict.de.txt --bpe_codes bpecodes
python scripts/import_weights.py --system annotated --source weights.pt --output models/annotated \
    --config '{encoder_attention_heads: 8, decoder_attention_heads: 8}'

Then: python scripts/translate.py --model models/opus-en-de
"""

import sys
from dataclasses import dataclass, field

import torch

from modeling_aiayn.command_line import parse_arguments, run_script
from modeling_aiayn.interop.arguments import SourceArguments
from modeling_aiayn.interop.importing import import_model
from modeling_aiayn.interop.parity import SOURCES


@dataclass
class ImportArguments:
    """Where to, and how to prove it."""

    output: str = field(metadata={"help": "The folder to write."})
    sources: int = field(default=SOURCES, metadata={"help": "Random sources to compare on."})
    dtype: str | None = field(
        default=None,
        metadata={
            "help": "Type of the weights written. Default: as they are.",
            "choices": ["float32", "bfloat16", "float16"],
        },
    )
    license: str = field(
        default="other", metadata={"help": "The weights' licence, for the model card."}
    )


def main() -> None:
    """Read, convert, compare, write, report."""
    source, arguments = parse_arguments(__doc__, SourceArguments, ImportArguments)
    foreign = source.read()
    report = import_model(
        foreign,
        arguments.output,
        sources=arguments.sources,
        dtype=None if arguments.dtype is None else getattr(torch, arguments.dtype),
        license=arguments.license,
        show_progress=True,
    )
    sys.stdout.write(f"{report}\n")
    for name, why in foreign.taken.left_out.items():
        sys.stdout.write(f"left out                {name}: {why}\n")
    for name in foreign.taken.absent_biases:
        sys.stdout.write(f"0, as {foreign.system} has none: {name}\n")
    if foreign.source_tokenizer is None:
        sys.stdout.write(
            "tokenizer               none was given: save one into the folder to translate text\n"
        )


if __name__ == "__main__":
    run_script(main)
