"""Classify texts: print a class and its probability for each.

aiayn classify --model runs/imdb --text "A wonderful film." "A waste of two hours."
aiayn classify --model runs/imdb --input reviews.txt > classes.tsv
"""

import sys
from dataclasses import dataclass

from transformers import AutoModelForSequenceClassification, pipeline
from transformers.hf_argparser import HfArg

from ..corpus import stream_lines
from ..tokenization import clean_text
from .command_line import parse_arguments
from .saved_model import check_head, load_with_tokenizer


@dataclass
class ClassifyFlags:
    """The classifier, and the texts."""

    model: str = HfArg(help="Folder of a trained classifier.")
    text: list[str] | None = HfArg(default=None, help="Texts to classify.")
    input: str | None = HfArg(
        default=None, help="File with one text per line, plain or .gz. Default: stdin."
    )
    batch_size: int = HfArg(default=32, help="Number of texts in a batch.")

    def __post_init__(self) -> None:
        if self.text is not None and self.input is not None:
            raise ValueError("Give either --text or --input, not both.")
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}.")
        check_head(self.model, "AiaynForSequenceClassification")


def main() -> None:
    """Read, classify, write."""
    (flags,) = parse_arguments(__doc__, ClassifyFlags)
    model, tokenizer = load_with_tokenizer(AutoModelForSequenceClassification, flags.model)
    classifier = pipeline("text-classification", model=model, tokenizer=tokenizer)
    texts = flags.text or stream_lines(flags.input or sys.stdin.buffer)
    # Texts are cut to the length that the classifier was trained on.
    options = {"truncation": True, "max_length": model.config.max_position_embeddings}
    # The pipeline streams its input only if it is a generator.
    stream = (clean_text(text) for text in texts)
    for prediction in classifier(stream, batch_size=flags.batch_size, **options):
        sys.stdout.write(f"{prediction['label']}\t{prediction['score']:.4f}\n")
