"""Training speed of our trainer and of others, at the same sizes and in the same run.

Each contender is a model under a trainer, with that trainer's batches of real text, its loss and
optimizer, in a process of its own. They take their updates in turn, so that a machine's drift
affects all of them.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from multiprocessing import get_context
from typing import Any

import torch
from datasets import Dataset
from own_process import OwnProcess
from peak_memory import process_peak_megabytes
from peers import TorchTransformer, marian
from torch import Tensor
from tqdm import tqdm
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from modeling_aiayn import AiaynConfig, AiaynForConditionalGeneration
from modeling_aiayn.losses import IGNORED_LABEL
from modeling_aiayn.training import AiaynTrainer, AiaynTrainingArguments

# Batch size of the peers in sentences, a common starting value.
PEER_BATCH_SIZE = 64
PRODUCT_SIZE = 2048


@dataclass
class Update:
    """Time and size of one update.

    Args:
        seconds: Time, including the time to make the batch.
        tokens: Real source and target tokens.
        padding: Share of padding in its matrices of ids.
        flops: Multiplications and additions of the model's products, without padding.
    """

    seconds: float
    tokens: int
    padding: float
    flops: float


class Contender:
    """A trainer that takes one update at a time."""

    def __init__(self, trainer: Seq2SeqTrainer) -> None:
        self.trainer = trainer
        self.trainer.create_optimizer_and_scheduler(num_training_steps=10_000)
        self.trainer.current_gradient_accumulation_steps = 1
        self.trainer.model.to(self.trainer.args.device)
        self.model, self.optimizer = self.trainer.accelerator.prepare(
            self.trainer.model, self.trainer.optimizer
        )
        self.batches = self._batches()

    def _batches(self) -> Iterator[dict[str, Tensor]]:
        """An epoch's batches in random order: grouped by length, long ones would come first."""
        loader = self.trainer.get_train_dataloader()
        batches = list(loader.batch_sampler)
        random.Random(self.trainer.args.seed).shuffle(batches)
        for batch in cycle(batches):
            yield loader.collate_fn(loader.dataset.__getitems__(batch))

    def update(self) -> Update:
        """Take one update, and measure it."""
        wait_for_device()
        start = time.perf_counter()
        batch = next(self.batches)
        items = (batch["labels"] != IGNORED_LABEL).sum()
        self.trainer.training_step(self.model, batch, items)
        # Measure the gradient norm between backward and update, as the loop of transformers does.
        norm = None
        if self.trainer.args.max_grad_norm > 0:
            norm = self.trainer._clip_grad_norm(self.model)
        self.trainer._get_grad_norm(self.model, grad_norm=norm)
        self.optimizer.step()
        self.trainer.lr_scheduler.step()
        self.model.zero_grad()
        wait_for_device()
        seconds = time.perf_counter() - start
        sources = batch["attention_mask"].sum(1)
        targets = (batch["labels"] != IGNORED_LABEL).sum(1)
        tokens = int(sources.sum() + targets.sum())
        padded = batch["input_ids"].numel() + batch["labels"].numel()
        flops = training_flops(self.trainer.model.config, sources, targets)
        return Update(seconds, tokens, 1 - tokens / padded, flops)


def wait_for_device() -> None:
    """Return once an accelerator has done what it was given."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def training_flops(config: Any, sources: Tensor, targets: Tensor) -> float:
    """Multiplications and additions of the model's products, both ways, padding left out.

    sources and targets are the tokens of each pair, [B].
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


def our_updates(
    config: AiaynConfig,
    rows: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    max_tokens: int,
    options: dict[str, Any],
) -> Callable[[], Update]:
    """Our model and trainer; the arguments are those of `contenders`."""
    trainer = AiaynTrainer(
        model=AiaynForConditionalGeneration(config),
        args=AiaynTrainingArguments(max_tokens_per_batch=max_tokens, **options),
        train_dataset=rows,
        processing_class=tokenizer,
    )
    return Contender(trainer).update


def peer_updates(
    make_model: Callable[[AiaynConfig], Any],
    config: AiaynConfig,
    rows: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    options: dict[str, Any],
) -> Callable[[], Update]:
    """A peer in the library's trainer; the other arguments are those of `contenders`."""
    model = make_model(config)
    trainer = Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(
            **{"per_device_train_batch_size": PEER_BATCH_SIZE, **options}
        ),
        train_dataset=rows,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
    )
    return Contender(trainer).update


def contenders(
    config: AiaynConfig,
    dataset: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    max_tokens: int,
    options: dict[str, Any],
) -> dict[str, OwnProcess]:
    """Ours and its peers, of one size, on one text, each in a process of its own.

    Args:
        config: The model's configuration.
        dataset: Encoded pairs.
        tokenizer: Their tokenizer.
        max_tokens: Tokens in a batch of ours.
        options: Arguments of all trainers; nothing is written to their output_dir.

    Returns:
        Contenders by name; ours comes first. Each takes one update a call.
    """
    rows = dataset.select_columns(["input_ids", "labels"])
    peers: dict[str, Callable[[AiaynConfig], Any]] = {
        "Marian, eager": partial(marian, implementation="eager"),
        "Marian, sdpa": partial(marian, implementation="sdpa"),
        "nn.Transformer": TorchTransformer,
    }
    ours = partial(our_updates, config, rows, tokenizer, max_tokens, options)
    programs = {"ours, token batches": OwnProcess(ours)}
    for strategy in ("random", "group_by_length"):
        grouped = options | {"train_sampling_strategy": strategy}
        for name, make_model in peers.items():
            peer = partial(peer_updates, make_model, config, rows, tokenizer, grouped)
            programs[f"{name}, {strategy}"] = OwnProcess(peer)
    return programs


def product_rate(dtype: torch.dtype, device: str) -> float:
    """The machine's own rate of products of square matrices, PRODUCT_SIZE wide.

    Args:
        dtype: Of the matrices.
        device: Where they lie.

    Returns:
        Multiplications and additions per second, the median of five.
    """
    factors = torch.randn(2, PRODUCT_SIZE, PRODUCT_SIZE, device=device)
    first, second = factors.to(dtype)
    rates = []
    for _ in range(6):
        wait_for_device()
        start = time.perf_counter()
        _ = first @ second
        wait_for_device()
        rates.append(2 * PRODUCT_SIZE**3 / (time.perf_counter() - start))
    return statistics.median(rates[1:])


def peak_megabytes(
    name: str, loss: str, config: AiaynConfig, max_tokens: int, length: int
) -> float:
    """The most memory that this process has had, after a forward and backward; on Linux.

    Args:
        name: "ours", "eager" or "sdpa"; the last two are Marian's.
        loss: "model": the model's own loss; "none": the sum of the hidden states instead.
        config: Sizes.
        max_tokens: Source plus target tokens of the batch.
        length: Tokens of a source and of a target.

    Returns:
        Megabytes.
    """
    model = AiaynForConditionalGeneration(config) if name == "ours" else marian(config, name)
    ids = torch.randint(4, config.vocab_size, (max_tokens // (2 * length), length))
    model.train()
    if loss == "none":
        output = model.model(ids, decoder_input_ids=ids).last_hidden_state.sum()
        # The embedding matrix has its gradient in either case.
    else:
        options = {"skip_logits": True} if name == "ours" else {}  # as AiaynTrainer does
        items = torch.tensor(ids.numel())
        output = model(ids, labels=ids, num_items_in_batch=items, **options).loss
    output.backward()
    return process_peak_megabytes()


def measure(
    contenders_: Mapping[str, Callable[[], Update]], dtype: torch.dtype, device: str, rounds: int
) -> tuple[dict[str, list[Update]], float]:
    """Let all contenders take their updates in turn.

    Args:
        contenders_: Contenders by name.
        dtype: Of the machine's own products.
        device: Where these run.
        rounds: Measured updates of each, after one to warm up.

    Returns:
        The updates of each, and the machine's rate of products, per second.
    """
    updates: dict[str, list[Update]] = {name: [] for name in contenders_}
    machine = []
    for _ in tqdm(range(rounds + 1), desc=str(dtype).removeprefix("torch."), unit="round"):
        machine.append(product_rate(dtype, device))
        for name, update in contenders_.items():
            updates[name].append(update())
    return {name: measured[1:] for name, measured in updates.items()}, statistics.median(machine)


def speed_table(updates: Mapping[str, Sequence[Update]], machine: float) -> str:
    """Tokens per second of each contender, and how many times as fast the first one is.

    Args:
        updates: Measured updates of each contender, by its name.
        machine: The machine's own rate of products, per second.

    Returns:
        A line for each.
    """
    rates = {
        name: statistics.median(each.tokens / each.seconds for each in measured)
        for name, measured in updates.items()
    }
    ours = next(iter(rates.values()))
    lines = []
    for name, measured in updates.items():
        padding = statistics.mean(each.padding for each in measured)
        products = statistics.median(each.flops / each.seconds for each in measured)
        lines.append(
            f"{name:<32} {rates[name]:>9,.0f} tokens/s {ours / rates[name]:6.2f}  "
            f"padding {padding:4.0%}  products {products / machine:4.0%}"
        )
    return "\n".join(lines)


def memory_table(config: AiaynConfig, max_tokens: int, length: int) -> str:
    """Peak memory of our model and of Marian, with and without the loss, each in its own process.

    Args:
        config: Sizes.
        max_tokens: Source plus target tokens of the batch.
        length: Tokens of a source and of a target.

    Returns:
        A line for each.
    """
    lines = []
    for name in ("ours", "eager", "sdpa"):
        peaks = []
        for loss in ("none", "model"):
            with ProcessPoolExecutor(1, get_context("spawn")) as process:
                job = process.submit(peak_megabytes, name, loss, config, max_tokens, length)
                peaks.append(job.result())
        label = name if name == "ours" else f"Marian, {name}"
        lines.append(
            f"{label:<32} peak {peaks[1]:,.0f} MB, of it {peaks[1] - peaks[0]:,.0f} for the loss"
        )
    return "\n".join(lines)
