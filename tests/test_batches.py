"""Token batches: none too large, nothing lost, little padding, the same for all processes."""

from itertools import chain, islice

import numpy as np
import pytest
import torch
from conftest import MULTI30K
from datasets import Dataset, IterableDataset
from training_setup import arguments, logged, make_trainer
from transformers import DataCollatorForSeq2Seq

from modeling_aiayn.corpus import read_pairs
from modeling_aiayn.tokenization import train_bpe_tokenizer
from modeling_aiayn.training.batches import (
    StreamedTokenBatches,
    TokenBatches,
    cut_batches,
    padded_lengths,
    pair_lengths,
)
from modeling_aiayn.training.data import encode_pairs


@pytest.fixture(scope="module")
def lengths():
    generator = np.random.default_rng(0)
    return generator.integers(3, 40, (1003, 1)) + generator.integers(0, 7, (1003, 2))


def size(lengths, batch):
    return lengths[batch].max(0).sum() * len(batch)


def test_lengths_are_those_of_both_sides(encoded):
    expected = [(len(row["input_ids"]), len(row["labels"])) for row in encoded]
    assert pair_lengths(encoded).tolist() == [list(pair) for pair in expected]
    assert pair_lengths(iter(encoded.to_list())).tolist() == [list(pair) for pair in expected]
    shuffled = encoded.shuffle(seed=1).select(range(30))
    assert pair_lengths(shuffled).tolist() == [
        [len(r["input_ids"]), len(r["labels"])] for r in shuffled
    ]


@pytest.mark.parametrize("max_tokens", [100, 512, 10**6])
@pytest.mark.parametrize("multiple_of", [1, 2, 7])
def test_each_pair_is_in_one_batch_and_no_batch_is_too_large(lengths, max_tokens, multiple_of):
    batches = cut_batches(lengths, max_tokens, np.random.default_rng(0), multiple_of)
    assert sorted(chain.from_iterable(batches)) == list(range(1003))
    assert max(size(lengths, batch) for batch in batches) <= max_tokens
    assert len(batches) % multiple_of == 0


def test_little_is_padding_and_batches_are_full(lengths):
    batches = cut_batches(lengths, 1000, np.random.default_rng(0))
    padded = [size(lengths, batch) for batch in batches]
    assert lengths.sum() / sum(padded) > 0.94
    assert np.mean(padded) > 750


def test_batches_come_in_any_order_of_lengths(lengths):
    batches = cut_batches(lengths, 500, np.random.default_rng(0))
    means = [lengths[batch].mean() for batch in batches]
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.3


def test_the_number_of_batches_does_not_depend_on_the_draw(lengths):
    drawn = [cut_batches(lengths, 300, np.random.default_rng(seed), 4) for seed in range(5)]
    assert len({len(batches) for batches in drawn}) == 1
    assert len({tuple(map(tuple, batches)) for batches in drawn}) == 5
    members = [{frozenset(batch.tolist()) for batch in batches} for batches in drawn]
    assert members[0] != members[1]


def test_what_fits_no_batch_is_refused():
    lengths = np.array([[3, 4], [60, 61]])
    with pytest.raises(ValueError, match=r"max_tokens_per_batch=100 is less than the 121 tokens"):
        cut_batches(lengths, 100, np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"3 batches of 200 .* as many pairs, got 2: raise"):
        cut_batches(lengths, 200, np.random.default_rng(0), 3)
    long_ones = np.full((9, 2), 40)
    with pytest.raises(ValueError, match=r"16 batches of 100 .*, 8 at a time, .* got 9: raise"):
        cut_batches(long_ones, 100, np.random.default_rng(0), 8)
    assert len(cut_batches(long_ones, 100, np.random.default_rng(0), 3)) == 9


def test_processes_share_an_epoch_out_and_the_next_one_is_another(lengths):
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


def test_padding_to_a_multiple_counts():
    lengths = np.array([[3, 8], [9, 16]])
    assert padded_lengths(lengths, 8).tolist() == [[8, 8], [16, 16]]
    assert padded_lengths(lengths, None).tolist() == lengths.tolist()


def test_on_multi30k_at_most_5_percent_is_padding():
    if not MULTI30K.exists():
        pytest.skip("Multi30k is not beside the project.")
    pairs = read_pairs(str(MULTI30K / "train"), "en", "de")
    tokenizer = train_bpe_tokenizer(pairs["source"][:5000] + pairs["target"][:5000], 4000)
    lengths = pair_lengths(encode_pairs(pairs, tokenizer, tokenizer, 256, "pairs"))
    for max_tokens in (2048, 4096, 8192):
        batches = cut_batches(lengths, max_tokens, np.random.default_rng(0))
        padded = sum(size(lengths, batch) for batch in batches)
        assert 1 - lengths.sum() / padded < 0.05


@pytest.fixture
def collate(tokenizer):
    return DataCollatorForSeq2Seq(tokenizer, pad_to_multiple_of=4)


def streamed(rows, collate, process=0, num_processes=1, pool_size=64, **options):
    return StreamedTokenBatches(
        rows, collate, 300, pool_size, 5, process, num_processes, pad_to_multiple_of=4, **options
    )


@pytest.fixture(scope="module")
def rows(encoded):
    return encoded.select_columns(["input_ids", "labels"]).to_list()


def targets(batches):
    return [
        tuple(label for label in row if label != -100)
        for b in batches
        for row in b["labels"].tolist()
    ]


def test_a_stream_gives_each_pair_once_before_it_begins_anew(rows, collate):
    batches = list(islice(streamed(rows, collate), 400))
    counts = np.cumsum([len(batch["labels"]) for batch in batches])
    first = int(np.searchsorted(counts, 200)) + 1
    assert counts[first - 1] == 200
    assert sorted(targets(batches[:first])) == sorted(tuple(row["labels"]) for row in rows)
    assert targets(batches[:first]) != targets(batches[first : 2 * first])
    assert all(batch["labels"].numel() + batch["input_ids"].numel() <= 300 for batch in batches)
    assert all(batch["labels"].size(1) % 4 == 0 for batch in batches)


@pytest.mark.parametrize("shards", [None, 1, 2, 5], ids=str)
def test_processes_and_workers_share_a_stream_out(encoded, rows, collate, shards):
    """Rows of the library's stream, whose workers read a part of the shards each, or a list's."""
    if shards is not None:
        pairs = encoded.select_columns(["input_ids", "labels"])
        rows = pairs.to_iterable_dataset(num_shards=shards)
    alone = list(islice(streamed(rows, collate), 60))
    for process in range(3):
        share = list(islice(streamed(rows, collate, process, 3), 20))
        loader = torch.utils.data.DataLoader(
            streamed(rows, collate, process, 3), batch_size=None, num_workers=2
        )
        by_workers = list(islice(loader, 20))
        for first, second in zip(share, by_workers, strict=True):
            assert torch.equal(first["labels"], second["labels"])
    assert targets(alone) != sorted(targets(alone))


@pytest.mark.parametrize("num_processes", [1, 3, 7])
def test_a_stream_s_rest_is_enough_for_all_processes(rows, collate, num_processes):
    """200 pairs in pools of 66 leave a rest of 2."""
    shares = [
        islice(streamed(rows, collate, process, num_processes, pool_size=66), 300 // num_processes)
        for process in range(num_processes)
    ]
    seen = list(zip(*shares, strict=True))
    flat = targets(chain.from_iterable(seen))
    assert sorted(flat[:200]) == sorted(tuple(row["labels"]) for row in rows)


def test_an_empty_stream_is_an_error(collate):
    with pytest.raises(ValueError, match="stream of training pairs is empty"):
        next(iter(streamed([], collate)))


def test_the_trainer_trains_on_a_stream_and_counts_its_padding(tmp_path, encoded, tokenizer):
    stream = encoded.to_iterable_dataset(num_shards=3)
    assert isinstance(stream, IterableDataset)
    trainer = make_trainer(
        tmp_path, encoded, tokenizer, max_tokens_per_batch=300, streaming_pool_size=50, max_steps=30
    )
    trainer.train_dataset = stream
    trainer.train()
    assert trainer.state.global_step == 30
    assert max(logged(trainer, "padding_share")) < 0.3
    assert min(logged(trainer, "tokens_per_second")) > 0


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


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("tokens", [120, 250])
def test_the_objective_does_not_depend_on_the_cut(tmp_path, encoded, tokenizer, smoothing, tokens):
    """The same 16 pairs, as one batch and as several of a few tokens."""
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
            tmp_path / name, some, tokenizer, dropout=0.0, held_out=2, max_steps=3,
            label_smoothing_factor=smoothing, optim="sgd", **options,
        )  # fmt: skip
        trainer.train()
        logs.append((logged(trainer, "loss"), logged(trainer, "grad_norm")))
    for losses, norms in logs[1:]:
        assert losses == pytest.approx(logs[0][0], rel=1e-5)
        assert norms == pytest.approx(logs[0][1], rel=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens_per_batch": 0}, "max_tokens_per_batch must be at least 1, got 0"),
        ({"pad_to_multiple_of": 0}, "pad_to_multiple_of must be at least 1, got 0"),
        ({"streaming_pool_size": -1}, "streaming_pool_size must be at least 1, got -1"),
        (
            {"max_tokens_per_batch": 100, "per_device_train_batch_size": 4},
            "per_device_train_batch_size, got 100 and 4",
        ),
    ],
)  # fmt: skip
def test_sizes_that_cannot_be_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        arguments(tmp_path, **options)


def test_without_a_length_and_updates_there_is_no_end(tmp_path, encoded, tokenizer):
    trainer = make_trainer(tmp_path, encoded, tokenizer, max_tokens_per_batch=300, max_steps=-1)
    trainer.train_dataset = encoded.to_iterable_dataset()
    with pytest.raises(ValueError, match="max_steps must be set to a positive value"):
        trainer.train()


def test_a_pair_that_fits_no_batch_ends_training_at_once(tmp_path, encoded, tokenizer):
    trainer = make_trainer(
        tmp_path, Dataset.from_list(encoded.to_list()), tokenizer, max_tokens_per_batch=20
    )
    with pytest.raises(ValueError, match=r"max_tokens_per_batch=20 is less than .* --max_length"):
        trainer.train()
