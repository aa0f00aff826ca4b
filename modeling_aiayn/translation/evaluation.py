"""How well a model translates given pairs."""

import math
from typing import Any

import torch
from datasets import Dataset
from tqdm import tqdm
from transformers import DataCollatorForSeq2Seq

from ..losses import IGNORED_LABEL
from .metrics import TranslationScores
from .translator import Translator


def perplexity(translator: Translator, pairs: Dataset, batch_size: int = 32) -> float:
    """Perplexity per target token, `</s>` counted, from plain cross-entropy.

    Args:
        translator: A model and its tokenizers.
        pairs: Columns "source" and "target".
        batch_size: Sentences at a time.

    Returns:
        exp of the mean negative log-probability of a target token.
    """
    features = [
        {
            "input_ids": translator.source_tokenizer(source).input_ids,
            "labels": translator.target_tokenizer(target).input_ids,
        }
        for source, target in zip(pairs["source"], pairs["target"], strict=True)
    ]
    features.sort(key=lambda feature: len(feature["input_ids"]))
    collator = DataCollatorForSeq2Seq(translator.source_tokenizer)
    total, tokens = 0.0, 0
    with torch.inference_mode():
        for start in tqdm(range(0, len(features), batch_size), desc="Perplexity", unit="batch"):
            batch = collator(features[start : start + batch_size]).to(translator.model.device)
            count = int((batch["labels"] != IGNORED_LABEL).sum())
            total += translator.model(**batch).loss.item() * count
            tokens += count
    return math.exp(total / tokens)


def evaluate_translation(
    translator: Translator, pairs: Dataset, batch_size: int = 32, **generation_options: Any
) -> tuple[dict[str, Any], list[str]]:
    """Translate the sources of pairs and score the result against their targets.

    Args:
        translator: A model and its tokenizers.
        pairs: Columns "source" and "target".
        batch_size: Sentences at a time.
        **generation_options: As for generate.

    Returns:
        Scores by name, perplexity among them, and the translations.
    """
    translations = translator(
        pairs["source"], batch_size=batch_size, show_progress=True, **generation_options
    )
    scores = TranslationScores().compute(predictions=translations, references=list(pairs["target"]))
    return {**scores, "perplexity": perplexity(translator, pairs, batch_size)}, translations


def score_table(scores: dict[str, Any]) -> str:
    """Scores as aligned lines of plain text, each with its signature.

    Args:
        scores: As `evaluate_translation` gives them.

    Returns:
        The lines.
    """
    return "\n".join(
        f"{name:<20} {value:6.2f}  {scores.get(f'{name}_signature', '')}".rstrip()
        for name, value in scores.items()
        if isinstance(value, float)
    )
