"""Batches by tokens: their size, order and padding, and their division among processes."""

from itertools import chain

import numpy as np
import pytest
from conftest import MULTI30K
from datasets import Dataset
from training_setup import arguments, logged, make_trainer

from modeling_aiayn.data.corpus import read_pairs
from modeling_aiayn.tokenization import train_bpe_tokenizer
from modeling_aiayn.training.batches import (
    PAIR,
    TokenBatches,
    cut_batches,
    padded_lengths,
    token_lengths,
)
from modeling_aiayn.training.data import encode_pairs


@pytest.fixture(scope="module")
def lengths():
    generator = np.random.default_rng(0)
    return generator.integers(3, 40, (1003, 1)) + generator.integers(0, 7, (1003, 2))


def size(lengths, batch):
    return lengths[batch].max(0).sum() * len(batch)


def test_lengths_of_both_sides_are_found(encoded):
    expected = [(len(row["input_ids"]), len(row["labels"])) for row in encoded]
    assert token_lengths(encoded, PAIR).tolist() == [list(pair) for pair in expected]
    assert token_lengths(encoded.to_list(), PAIR).tolist() == [list(pair) for pair in expected]
    shuffled = encoded.shuffle(seed=1).select(range(30))
    assert token_lengths(shuffled, PAIR).tolist() == [
        [len(r["input_ids"]), len(r["labels"])] for r in shuffled
    ]


@pytest.mark.parametrize("max_tokens", [100, 512, 10**6])
@pytest.mark.parametrize("multiple_of", [1, 7])
def test_each_pair_is_in_one_batch_and_no_batch_is_too_large(lengths, max_tokens, multiple_of):
    batches = cut_batches(lengths, max_tokens, np.random.default_rng(0), multiple_of)
    assert sorted(chain.from_iterable(batches)) == list(range(1003))
    assert max(size(lengths, batch) for batch in batches) <= max_tokens
    assert len(batches) % multiple_of == 0


def test_batches_are_full_and_have_little_padding(lengths):
    batches = cut_batches(lengths, 1000, np.random.default_rng(0))
    padded = [size(lengths, batch) for batch in batches]
    assert lengths.sum() / sum(padded) > 0.94
    assert np.mean(padded) > 750


def test_neighbouring_batches_have_unrelated_lengths(lengths):
    batches = cut_batches(lengths, 500, np.random.default_rng(0))
    means = [lengths[batch].mean() for batch in batches]
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.3


def test_the_number_of_batches_does_not_depend_on_the_seed(lengths):
    drawn = [cut_batches(lengths, 300, np.random.default_rng(seed), 4) for seed in range(5)]
    assert len({len(batches) for batches in drawn}) == 1
    assert len({tuple(map(tuple, batches)) for batches in drawn}) == 5
    members = [{frozenset(batch.tolist()) for batch in batches} for batches in drawn]
    assert members[0] != members[1]


def test_pairs_that_fit_into_no_batch_are_rejected():
    lengths = np.array([[3, 4], [60, 61]])
    with pytest.raises(ValueError, match=r"max_tokens_per_batch=100 is less than the 121 tokens"):
        cut_batches(lengths, 100, np.random.default_rng(0))
    long_ones = np.full((9, 2), 40)
    with pytest.raises(ValueError, match=r"at least 16 pairs, .* 100 tokens of 8 processes, got 9"):
        cut_batches(long_ones, 100, np.random.default_rng(0), 8)
    assert len(cut_batches(long_ones, 100, np.random.default_rng(0), 3)) == 9
    nothing = token_lengths(Dataset.from_dict({"input_ids": [], "labels": []}), PAIR)
    with pytest.raises(ValueError, match=r"Training needs at least 1 pairs, .* got 0"):
        cut_batches(nothing, 100, np.random.default_rng(0))


def test_processes_share_each_epoch_and_epochs_differ(lengths):
    samplers = [TokenBatches(lengths, 300, 5, process, 3) for process in range(3)]
    epochs = []
    for epoch in (0, 1):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        shares = [list(sampler) for sampler in samplers]
        assert len({len(share) for share in shares}) == 1
        assert len(shares[0]) == len(samplers[0])
        assert sorted(chain.from_iterable(chain.from_iterable(shares))) == list(range(1003))
        epochs.append(shares)
    assert epochs[0] != epochs[1]
    again = TokenBatches(lengths, 300, 5, 1, 3)
    again.set_epoch(1)
    assert list(again) == epochs[1][1]
    assert list(TokenBatches(lengths, 300, 6, 1, 3)) != epochs[0][1]


def test_lengths_are_rounded_up_to_a_multiple():
    lengths = np.array([[3, 8], [9, 16]])
    assert padded_lengths(lengths, 8).tolist() == [[8, 8], [16, 16]]
    assert padded_lengths(lengths, None).tolist() == lengths.tolist()


@pytest.mark.long
def test_on_multi30k_at_most_5_percent_is_padding():
    if not MULTI30K.exists():
        pytest.skip("Multi30k is not beside the project.")
    pairs = read_pairs(str(MULTI30K / "train"), "en", "de")
    tokenizer = train_bpe_tokenizer(pairs["source"][:5000] + pairs["target"][:5000], 4000)
    lengths = token_lengths(encode_pairs(pairs, tokenizer, tokenizer, 256, "pairs"), PAIR)
    for max_tokens in (2048, 4096, 8192):
        batches = cut_batches(lengths, max_tokens, np.random.default_rng(0))
        padded = sum(size(lengths, batch) for batch in batches)
        assert 1 - lengths.sum() / padded < 0.05


def test_the_log_counts_real_tokens_and_padding(tmp_path, encoded, tokenizer):
    trainer = make_trainer(
        tmp_path, encoded, tokenizer, max_tokens_per_batch=300, max_steps=6, logging_steps=6,
        gradient_accumulation_steps=2, pad_to_multiple_of=8,
    )  # fmt: skip
    seen = []
    collate = trainer.data_collator
    trainer.data_collator = lambda rows: seen.append(collate(rows)) or seen[-1]
    trainer.data_collator.pad_to_multiple_of = 8
    trainer.train()
    seen = seen[:12]
    real = sum(b["attention_mask"].sum() + (b["labels"] != -100).sum() for b in seen).item()
    padded = sum(b["input_ids"].numel() + b["labels"].numel() for b in seen)
    assert logged(trainer, "padding_share") == pytest.approx([1 - real / padded])
    assert all(b["labels"].size(1) % 8 == 0 for b in seen)
    assert max(b["input_ids"].numel() + b["labels"].numel() for b in seen) <= 300


@pytest.mark.parametrize(("smoothing", "tokens"), [(0.0, 250), (0.1, 120)])
def test_the_loss_does_not_depend_on_the_division_into_batches(
    tmp_path, encoded, tokenizer, smoothing, tokens
):
    """The same 16 pairs as one batch, and as several smaller ones."""
    some = encoded.select(range(16))
    logs = []
    for name, options in (
        ("whole", {"max_tokens_per_batch": 10_000}),
        ("parts", {"max_tokens_per_batch": tokens, "gradient_accumulation_steps": 100}),
        ("padded", {"max_tokens_per_batch": 10_000, "pad_to_multiple_of": 32}),
        ("sentences", {}),
    ):
        if not options:
            options["per_device_train_batch_size"] = 16
        trainer = make_trainer(
            tmp_path / name, some, tokenizer, dropout=0.0, held_out=2, max_steps=2,
            label_smoothing_factor=smoothing, optim="sgd", **options,
        )  # fmt: skip
        trainer.train()
        logs.append((logged(trainer, "loss"), logged(trainer, "grad_norm")))
    for losses, norms in logs[1:]:
        assert losses == pytest.approx(logs[0][0], rel=1e-5)
        assert norms == pytest.approx(logs[0][1], rel=1e-4)


def test_a_batch_has_one_size(tmp_path):
    with pytest.raises(ValueError, match="per_device_train_batch_size, got 100 and 4"):
        arguments(tmp_path, max_tokens_per_batch=100, per_device_train_batch_size=4)
