"""Train a classifier: its arguments, its model and its vocabulary."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerBase
from transformers.hf_argparser import HfArg

from ..configuration_aiayn import AiaynConfig
from ..modeling_aiayn import AiaynForSequenceClassification
from ..saved.folders import check_directory, load_config
from ..saved.loading import find_model, load_checked
from ..saved.tokenizers import load_tokenizer
from ..tokenization import train_tokenizer, vocabulary_sha256
from ..training.arguments import RunArguments
from ..training.fine_tuning import RATES
from ..training.setup import PresetArguments, read_overrides, save_table_length

METRICS = ("accuracy", "macro_f1", "loss")
# Fields of a configuration that do not affect the weights of a saved encoder.
OF_NO_WEIGHT = {
    *RATES,
    *("classifier_dropout", "classifier_pooling", "problem_type", "max_position_embeddings"),
    "attn_implementation",
}


@dataclass
class ClassifierTrainingArguments(RunArguments):
    """Training arguments of a classifier."""

    lr_scheduler_type: str = HfArg(default="linear", help="A schedule of transformers.")
    learning_rate: float = HfArg(default=5e-4, help="The peak learning rate.")
    warmup_steps: float = HfArg(
        default=0.1, help="Updates over which the rate rises; below 1, a share of all updates."
    )
    per_device_train_batch_size: int = HfArg(default=32, help="Texts in a batch, on each device.")
    per_device_eval_batch_size: int = HfArg(
        default=64, help="Texts in an evaluation batch, on each device."
    )
    eval_strategy: str = HfArg(default="epoch", help="no, epoch or steps.")
    save_strategy: str = HfArg(default="epoch", help="no, epoch, steps or best.")
    save_total_limit: int | None = HfArg(default=2, help="Keep at most this many checkpoints.")
    load_best_model_at_end: bool = HfArg(
        default=True, help="Keep the checkpoint with the best validation score."
    )
    metric_for_best_model: str | None = HfArg(
        default="accuracy", help="Score to compare: accuracy, macro_f1 or loss."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        metric = self.metric_for_best_model
        if metric is not None and metric.removeprefix("eval_") not in METRICS:
            raise ValueError(f"metric_for_best_model must be {', '.join(METRICS)}, got {metric!r}.")


@dataclass
class ClassifierArguments(PresetArguments):
    """The classifier: a new model, or a new head on another model's encoder."""

    start_from: str | None = HfArg(
        default=None,
        help="Folder of a model, such as a translator, whose encoder to fine-tune, or a bundled "
        "model: aiayn-en-de or aiayn-de-en.",
    )
    vocabulary: str = HfArg(
        default="bpe",
        help="bpe, or word: lower-cased words.",
        metadata={"choices": ["bpe", "word"]},
    )
    vocab_size: int = HfArg(default=8000, help="Size of the bpe vocabulary.")
    min_frequency: int = HfArg(default=2, help="Minimum count of a word in the word vocabulary.")

    def __post_init__(self) -> None:
        if self.start_from is None:
            return
        for name in ("preset", "vocabulary", "vocab_size", "min_frequency"):
            if getattr(self, name) != getattr(type(self), name):
                raise ValueError(
                    f"{name} cannot be set with start_from: that model brings its sizes and its "
                    "vocabulary."
                )
        check_directory(find_model(self.start_from))


def build_classifier(
    arguments: ClassifierArguments, train: Dataset, max_length: int
) -> tuple[AiaynForSequenceClassification, PreTrainedTokenizerBase]:
    """Build a classifier: new, with a vocabulary of the training texts, or on a saved encoder.

    The columns of train are "text" and "label"; max_length is in tokens.
    """
    names = train.features["label"].names
    classes = {
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
        "num_labels": len(names),
    }
    overrides = read_overrides(arguments)
    fields = {"max_position_embeddings": max_length, **overrides}
    if arguments.start_from is not None:
        for name in overrides.keys() - OF_NO_WEIGHT:
            raise ValueError(
                f"With start_from, config_overrides may set {', '.join(sorted(OF_NO_WEIGHT))}; "
                f"{name} belongs to the saved model. Remove it."
            )
        model, tokenizer = _start_from(find_model(arguments.start_from), **classes, **fields)
    else:
        model, tokenizer = _new_classifier(arguments, train, **classes, **fields)
    if max_length > (limit := model.config.max_position_embeddings):
        raise ValueError(
            f"max_length={max_length} is more than the model's max_position_embeddings, {limit}. "
            f"Pass --max_length {limit}: longer texts are then cut."
        )
    return model, tokenizer


def _new_classifier(
    arguments: ClassifierArguments, train: Dataset, **fields: Any
) -> tuple[AiaynForSequenceClassification, PreTrainedTokenizerBase]:
    tokenizer = train_tokenizer(
        train["text"], arguments.vocabulary, arguments.vocab_size, arguments.min_frequency
    )
    config = AiaynConfig.from_preset(
        arguments.preset,
        vocab_size=len(tokenizer),
        vocabulary_sha256=[vocabulary_sha256(tokenizer)],
        **fields,
    )
    save_table_length(config, tokenizer)
    return AiaynForSequenceClassification(config), tokenizer


def _start_from(
    folder: str | Path, **fields: Any
) -> tuple[AiaynForSequenceClassification, PreTrainedTokenizerBase]:
    """Build a classifier in float32 on the encoder of a folder's model."""
    saved = AiaynConfig.from_dict(load_config(folder).to_dict())
    if saved.position_type == "learned":  # the size of a weight
        fields["max_position_embeddings"] = saved.max_position_embeddings
    model = load_checked(
        AutoModelForSequenceClassification,
        folder,
        new_prefix="classifier.",
        config=AiaynConfig.from_dict(saved.to_dict() | fields),
        dtype=torch.float32,
    )
    return model, load_tokenizer(folder, local_files_only=True, trust_remote_code=False)
