"""Classify texts: print a class and its probability for each.

aiayn classify --model runs/imdb --text "A wonderful film." "A waste of two hours."
aiayn classify --model runs/imdb --input reviews.txt > classes.tsv
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm
from transformers import pipeline
from transformers.hf_argparser import HfArg

from ..data.lines import stream_lines
from ..tokenization import clean_text
from ..translation.pools import read_pools
from ..translation.processes import default_device
from .command_line import parse_arguments
from .flags import DEVICE_HELP, load_with_tokenizer

# Number of batches whose texts are sorted by length together, to reduce padding.
POOLED_BATCHES = 32


@dataclass
class ClassifyFlags:
    model: str = HfArg(help="Folder of a trained classifier.")
    text: list[str] | None = HfArg(default=None, help="Texts to classify.")
    input: str | None = HfArg(default=None, help="File of texts, plain or .gz. Default: stdin.")
    batch_size: int = HfArg(default=32, help="Number of texts in a batch.")
    device: str | None = HfArg(default=None, help=DEVICE_HELP)


def pool_size(flags: ClassifyFlags) -> int:
    """Return the number of texts to read before the first answer: one if a person types them."""
    is_dialogue = flags.text is None and flags.input is None and sys.stdin.isatty()
    return 1 if is_dialogue else POOLED_BATCHES * flags.batch_size


def main() -> None:
    (flags,) = parse_arguments(__doc__, ClassifyFlags)
    if flags.text is not None and flags.input is not None:
        raise ValueError("Give either --text or --input, not both.")
    model, tokenizer = load_with_tokenizer("AiaynForSequenceClassification", flags.model)
    device = default_device(flags.device)
    classifier = pipeline("text-classification", model=model, tokenizer=tokenizer, device=device)
    texts = flags.text or stream_lines(flags.input or sys.stdin.buffer)
    predictions = classify(classifier, map(clean_text, texts), flags.batch_size, pool_size(flags))
    # A bar would mix with results on the same screen. Pass `disable` only to hide the bar, so that
    # TQDM_DISABLE can hide a shown bar.
    hidden: dict[str, Any] = {"disable": True} if flags.text or sys.stdout.isatty() else {}
    for prediction in tqdm(predictions, unit="text", **hidden):
        sys.stdout.write(f"{prediction['label']}\t{prediction['score']:.4f}\n")


def classify(
    classifier: Any, texts: Iterable[str], batch_size: int, pool_size: int
) -> Iterator[dict[str, Any]]:
    """Classify texts, truncated to the classifier's length; yield predictions in order.

    pool_size texts are sorted by length together.
    """
    length = classifier.model.config.max_position_embeddings
    for pool in read_pools(texts, pool_size):
        order = sorted(range(len(pool)), key=lambda index: -len(pool[index]))
        ordered = (pool[index] for index in order)  # the pipeline does not batch a list
        predictions = classifier(ordered, batch_size=batch_size, truncation=True, max_length=length)
        by_index = dict(zip(order, predictions, strict=True))
        yield from (by_index[index] for index in range(len(pool)))
