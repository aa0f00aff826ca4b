"""How fast training is beside what people use: peers at the same sizes, in the same process.

Each contender is a model under a trainer, with that trainer's batches of real text, its loss and
optimiser. They take their updates in turn, so that a machine's drift meets all of them.
"""

import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peak_memory import process_peak_megabytes
from peers import TorchTransformer, marian
from torch import Tensor
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from modeling_aiayn import AiaynConfig, AiaynForConditionalGeneration
from modeling_aiayn.losses import IGNORED_LABEL
from modeling_aiayn.training import AiaynTrainer, AiaynTrainingArguments

# What people begin with: the examples of the library, and its length-grouped batches.
PEER_BATCH_SIZE = 64


@dataclass
class Contender:
    """A trainer, its batches, and the seconds and real tokens of each of its updates."""

    trainer: Seq2SeqTrainer
    seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    flops: list[float] = field(default_factory=list)
    padding: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.trainer.create_optimizer_and_scheduler(num_training_steps=10_000)
        self.trainer.current_gradient_accumulation_steps = 1
        self.trainer.model.to(self.trainer.args.device)
        self.model, self.optimizer = self.trainer.accelerator.prepare(
            self.trainer.model, self.trainer.optimizer
        )
        self.batches = self._batches()

    def _batches(self) -> Iterator[dict[str, Tensor]]:
        """An epoch's batches in random order: the library's of like length come longest first."""
        loader = self.trainer.get_train_dataloader()
        batches = list(loader.batch_sampler)
        random.Random(self.trainer.args.seed).shuffle(batches)
        for batch in cycle(batches):
            yield loader.collate_fn(loader.dataset.__getitems__(batch))

    def update(self) -> None:
        """Take one update, and note how long it took."""
        wait_for_device()
        start = time.perf_counter()
        batch = next(self.batches)
        items = (batch["labels"] != IGNORED_LABEL).sum()
        self.trainer.training_step(self.model, batch, items)
        # Between a backward and its update, as the library's loop.
        norm = None
        if self.trainer.args.max_grad_norm > 0:
            norm = self.trainer._clip_grad_norm(self.model)
        self.trainer._get_grad_norm(self.model, grad_norm=norm)
        self.optimizer.step()
        self.trainer.lr_scheduler.step()
        self.model.zero_grad()
        wait_for_device()
        self.seconds.append(time.perf_counter() - start)
        sources = batch["attention_mask"].sum(1)
        targets = (batch["labels"] != IGNORED_LABEL).sum(1)
        self.tokens.append(int(sources.sum() + targets.sum()))
        padded = batch["input_ids"].numel() + batch["labels"].numel()
        self.padding.append(1 - self.tokens[-1] / padded)
        self.flops.append(training_flops(self.trainer.model.config, sources, targets))

    @property
    def tokens_per_second(self) -> float:
        """Real tokens per second, the median of all updates but the first."""
        return self._median_rate(self.tokens)

    @property
    def flops_per_second(self) -> float:
        """The model's own multiplications and additions, per second; the median as well."""
        return self._median_rate(self.flops)

    def _median_rate(self, amounts: Sequence[float]) -> float:
        rates = (amount / time for amount, time in zip(amounts, self.seconds, strict=True))
        return statistics.median(list(rates)[1:])


def wait_for_device() -> None:
    """Return once an accelerator has done what it was given."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def training_flops(config: Any, sources: Tensor, targets: Tensor) -> float:
    """Multiplications and additions of the model's products, both ways, padding left out.

    Args:
        config: Sizes.
        sources: Source tokens of each pair, [B].
        targets: Target tokens of each pair, [B].

    Returns:
        The number.
    """
    width, source, target = config.d_model, sources.double(), targets.double()
    encoder = source * (4 * width**2 + 2 * width * config.encoder_ffn_dim)
    encoder += 2 * width * source**2
    decoder = target * (6 * width**2 + 2 * width * config.decoder_ffn_dim)
    decoder += 2 * width**2 * source
    decoder += 2 * width * (target * (target + 1) / 2 + target * source)
    projection = target * width * config.vocab_size
    layers = encoder * config.encoder_layers + decoder * config.decoder_layers
    # A product is a multiplication and an addition; the backward pass has two for each forward one.
    return float(3 * 2 * (layers + projection).sum())


def contenders(
    config: AiaynConfig,
    dataset: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    max_tokens: int,
    output_dir: str,
    **options: Any,
) -> dict[str, Contender]:
    """Ours and its peers, of one size, on one text.

    Args:
        config: The model's configuration.
        dataset: Encoded pairs.
        tokenizer: Their tokenizer.
        max_tokens: Tokens in a batch of ours.
        output_dir: Where nothing will be written.
        **options: For all trainers' arguments.

    Returns:
        Contenders by name; ours comes first.
    """
    rows = dataset.select_columns(["input_ids", "labels"])
    ours = AiaynTrainer(
        model=AiaynForConditionalGeneration(config),
        args=AiaynTrainingArguments(output_dir, max_tokens_per_batch=max_tokens, **options),
        train_dataset=rows,
        processing_class=tokenizer,
    )
    found = {"ours, token batches": Contender(ours)}
    for strategy in ("random", "group_by_length"):
        models = {f"Marian, {name}": marian(config, name) for name in ("eager", "sdpa")}
        for name, model in (models | {"nn.Transformer": TorchTransformer(config)}).items():
            args = Seq2SeqTrainingArguments(
                output_dir,
                per_device_train_batch_size=PEER_BATCH_SIZE,
                train_sampling_strategy=strategy,
                **options,
            )
            found[f"{name}, {strategy}"] = Contender(
                Seq2SeqTrainer(
                    model=model,
                    args=args,
                    train_dataset=rows,
                    data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
                )
            )
    return found


def product_rate(dtype: torch.dtype, device: str, size: int = 2048) -> float:
    """The machine's own rate of square matrix products.

    Args:
        dtype: Of the matrices.
        device: Where they lie.
        size: Their rows and columns.

    Returns:
        Multiplications and additions per second, the median of five.
    """
    first, second = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    rates = []
    for _ in range(6):
        wait_for_device()
        start = time.perf_counter()
        _ = first @ second
        wait_for_device()
        rates.append(2 * size**3 / (time.perf_counter() - start))
    return statistics.median(rates[1:])


def peak_megabytes(name: str, loss: str, max_tokens: int, vocab_size: int, length: int) -> float:
    """The most memory that this process has had, after a forward and backward; on Linux.

    Args:
        name: "ours", "eager" or "sdpa"; the last two are Marian's.
        loss: "none": the hidden states' sum in its place; "model": the model's own.
        max_tokens: Source plus target tokens of the batch.
        vocab_size: Entries of the vocabulary.
        length: Tokens of a source and of a target.

    Returns:
        Megabytes.
    """
    config = AiaynConfig.from_preset("base", vocab_size=vocab_size)
    model = AiaynForConditionalGeneration(config) if name == "ours" else marian(config, name)
    ids = torch.randint(4, vocab_size, (max_tokens // (2 * length), length))
    model.train()
    if loss == "none":
        output = model.model(ids, decoder_input_ids=ids).last_hidden_state.sum()
        # The embedding matrix has its gradient in either case.
    else:
        output = model(ids, labels=ids, num_items_in_batch=torch.tensor(ids.numel())).loss
    output.backward()
    return process_peak_megabytes()


def speed_table(contenders_: dict[str, Contender], machine: float) -> str:
    """Tokens per second of each, and what the first has of them.

    Args:
        contenders_: Contenders by name, after their updates.
        machine: The machine's own rate of products, per second.

    Returns:
        A line for each.
    """
    ours = next(iter(contenders_.values())).tokens_per_second
    return "\n".join(
        f"{name:<32} {each.tokens_per_second:>9,.0f} tokens/s "
        f"{ours / each.tokens_per_second:6.2f}  padding {statistics.mean(each.padding):4.0%}  "
        f"products {each.flops_per_second / machine:4.0%}"
        for name, each in contenders_.items()
    )


def memory_table(max_tokens: int, vocab_size: int, length: int) -> str:
    """Peaks of ours and Marian with and without their losses, each in a process of its own.

    Args:
        max_tokens: Source plus target tokens of the batch.
        vocab_size: Entries of the vocabulary.
        length: Tokens of a source and of a target.

    Returns:
        A line for each.
    """
    lines = []
    for name in ("ours", "eager", "sdpa"):
        peaks = []
        for loss in ("none", "model"):
            call = f"peak_megabytes({name!r}, {loss!r}, {max_tokens}, {vocab_size}, {length})"
            code = f"from {__name__} import peak_megabytes\nprint({call})"
            command = [sys.executable, "-c", code]
            output = subprocess.check_output(command, text=True, cwd=Path(__file__).parent)
            peaks.append(float(output.splitlines()[-1]))
        label = name if name == "ours" else f"Marian, {name}"
        lines.append(
            f"{label:<32} peak {peaks[1]:,.0f} MB, of it {peaks[1] - peaks[0]:,.0f} for the loss"
        )
    return "\n".join(lines)
