"""Classify texts with a trained classifier: a line in, a class and its probability out.

python scripts/classify.py --model runs/imdb --text "A film to be seen." "Two hours of my life."
python scripts/classify.py --model runs/imdb --input reviews.txt > classes.tsv
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from transformers import AutoConfig, pipeline

import modeling_aiayn  # noqa: F401 (registers the classes)
from modeling_aiayn.command_line import parse_arguments, run_script
from modeling_aiayn.corpus import stream_lines


@dataclass
class ClassifyArguments:
    """Which classifier, and what to classify."""

    model: str = field(metadata={"help": "A trained classifier's folder."})
    text: list[str] | None = field(default=None, metadata={"help": "Texts to classify."})
    input: str | None = field(
        default=None, metadata={"help": "A file of texts, plain or .gz; default: stdin."}
    )
    batch_size: int = field(default=32, metadata={"help": "Texts at a time."})
    max_length: int = field(default=512, metadata={"help": "Texts of more tokens are cut."})

    def __post_init__(self) -> None:
        if self.text is not None and self.input is not None:
            raise ValueError("Give either --text or --input, not both.")
        if not Path(self.model).is_dir():
            raise FileNotFoundError(f"No such directory: {self.model}.")
        heads = AutoConfig.from_pretrained(self.model, local_files_only=True).architectures
        if "AiaynForSequenceClassification" not in (heads or []):
            raise ValueError(f"{self.model} holds no classifier, but {' and '.join(heads or [])}.")


def main() -> None:
    """Read, classify, write."""
    (arguments,) = parse_arguments(__doc__, ClassifyArguments)
    classify = pipeline("text-classification", model=arguments.model)
    texts = arguments.text or stream_lines(arguments.input or sys.stdin.buffer)
    options = {"truncation": True, "max_length": arguments.max_length}
    # The library takes a generator for a stream, and no other iterator.
    stream = (text for text in texts)
    for found in classify(stream, batch_size=arguments.batch_size, **options):
        sys.stdout.write(f"{found['label']}\t{found['score']:.4f}\n")


if __name__ == "__main__":
    run_script(main)
