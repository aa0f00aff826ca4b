"""How fast training is beside what people use: peers at the same sizes, in the same process.

Each contender is a model under a trainer, with that trainer's batches of real text, its loss and
optimiser. They take their updates in turn, so that a machine's drift meets all of them.
"""

import re
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import (
    DataCollatorForSeq2Seq,
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from ..configuration_aiayn import AiaynConfig
from ..losses import IGNORED_LABEL
from ..modeling_aiayn import AiaynForConditionalGeneration
from .arguments import AiaynTrainingArguments
from .trainer import AiaynTrainer

# What people begin with: the examples of the library, and its length-grouped batches.
PEER_BATCH_SIZE = 64


class TorchTransformer(nn.Module):
    """nn.Transformer with what it lacks: embeddings, positions, output projection and loss.

    Args:
        config: Sizes.
    """

    def __init__(self, config: AiaynConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.d_model, config.pad_token_id)
        self.positions = nn.Embedding(512, config.d_model)
        self.transformer = nn.Transformer(
            config.d_model,
            config.encoder_attention_heads,
            config.encoder_layers,
            config.decoder_layers,
            config.encoder_ffn_dim,
            config.dropout,
            batch_first=True,
        )
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        nn.init.normal_(self.embed.weight, std=config.d_model**-0.5)
        self.lm_head.weight = self.embed.weight

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        labels: Tensor,
        decoder_input_ids: Tensor,
    ) -> dict[str, Tensor]:
        """The loss of a batch.

        Args:
            input_ids: Source ids, [B, S].
            attention_mask: 1 for real source tokens, [B, S].
            labels: Target ids, [B, T]; -100 where there is none.
            decoder_input_ids: Target ids, start token first, [B, T].

        Returns:
            The loss, [], as "loss".
        """
        is_padding = attention_mask == 0
        length = labels.size(1)
        causal = nn.Transformer.generate_square_subsequent_mask(length, device=labels.device)
        hidden_states = self.transformer(
            self._embed(input_ids),
            self._embed(decoder_input_ids),
            tgt_mask=causal,
            src_key_padding_mask=is_padding,
            memory_key_padding_mask=is_padding,
            tgt_is_causal=True,
        )
        logits = self.lm_head(hidden_states).flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED_LABEL)
        return {"loss": loss}

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Labels, [B, T], shifted right."""
        shifted = nn.functional.pad(labels[:, :-1], (1, 0), value=self.config.bos_token_id)
        return shifted.masked_fill(shifted == IGNORED_LABEL, self.config.pad_token_id)

    def _embed(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.size(1), device=ids.device)
        embedded: Tensor = self.embed(ids) * self.config.d_model**0.5 + self.positions(positions)
        return embedded


def marian(config: AiaynConfig, implementation: str) -> MarianMTModel:
    """A MarianMTModel of our sizes.

    Args:
        config: Our model's configuration.
        implementation: Of attention: "eager" or "sdpa".

    Returns:
        The model.
    """
    names = (
        *("vocab_size", "d_model", "encoder_layers", "decoder_layers", "dropout"),
        *("encoder_attention_heads", "decoder_attention_heads"),
        *("encoder_ffn_dim", "decoder_ffn_dim", "pad_token_id", "eos_token_id"),
    )
    return MarianMTModel(
        MarianConfig(
            **{name: getattr(config, name) for name in names},
            activation_function="relu",
            scale_embedding=True,
            decoder_start_token_id=config.decoder_start_token_id,
            attn_implementation=implementation,
        )
    )


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
        while True:
            yield from self.trainer.get_train_dataloader()

    def update(self) -> None:
        """Take one update, and note how long it took."""
        wait_for_device()
        start = time.perf_counter()
        batch = next(self.batches)
        items = (batch["labels"] != IGNORED_LABEL).sum()
        self.trainer.training_step(self.model, batch, items)
        if self.trainer.args.max_grad_norm:
            self.trainer.accelerator.clip_grad_norm_(
                self.model.parameters(), self.trainer.args.max_grad_norm
            )
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
        """Real tokens per second, all updates but the first together."""
        return sum(self.tokens[1:]) / sum(self.seconds[1:])

    @property
    def flops_per_second(self) -> float:
        """The model's own multiplications and additions, per second."""
        return sum(self.flops[1:]) / sum(self.seconds[1:])


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
    # Of this process alone: what getrusage gives begins with its parent's.
    status = Path("/proc/self/status").read_text("utf-8")
    return int(re.findall(r"VmHWM:\s*(\d+) kB", status)[0]) / 1024
