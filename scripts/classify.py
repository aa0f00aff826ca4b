"""Classify texts with a trained classifier: a line in, a class and its probability out.

python scripts/classify.py --model runs/imdb --text "A wonderful film." "A waste of two hours."
python scripts/classify.py --model runs/imdb --input reviews.txt > classes.tsv
"""

import sys
from dataclasses import dataclass, field

from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

from modeling_aiayn.command_line import check_head, parse_arguments, run_script
from modeling_aiayn.corpus import stream_lines
from modeling_aiayn.loading import load_checked
from modeling_aiayn.tokenization import replace_surrogates


@dataclass
class ClassifyArguments:
    """Which classifier, and what to classify."""

    model: str = field(metadata={"help": "A trained classifier's folder."})
    text: list[str] | None = field(default=None, metadata={"help": "Texts to classify."})
    input: str | None = field(
        default=None, metadata={"help": "A file of texts, plain or .gz; default: stdin."}
    )
    batch_size: int = field(default=32, metadata={"help": "Texts at a time."})

    def __post_init__(self) -> None:
        if self.text is not None and self.input is not None:
            raise ValueError("Give either --text or --input, not both.")
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}.")
        check_head(self.model, "AiaynForSequenceClassification")


def main() -> None:
    """Read, classify, write."""
    (arguments,) = parse_arguments(__doc__, ClassifyArguments)
    loading = {"local_files_only": True, "trust_remote_code": False}
    tokenizer = AutoTokenizer.from_pretrained(arguments.model, **loading)
    model = load_checked(AutoModelForSequenceClassification, arguments.model)
    classify = pipeline("text-classification", model=model, tokenizer=tokenizer)
    texts = arguments.text or stream_lines(arguments.input or sys.stdin.buffer)
    # Texts are cut to what the classifier was trained on.
    options = {"truncation": True, "max_length": classify.model.config.max_position_embeddings}
    # The library takes a generator for a stream, and no other iterator.
    stream = (replace_surrogates(text) for text in texts)
    for found in classify(stream, batch_size=arguments.batch_size, **options):
        sys.stdout.write(f"{found['label']}\t{found['score']:.4f}\n")


if __name__ == "__main__":
    run_script(main)
