"""BPE-dropout: other segmentations in each epoch, and the same ones when a run resumes."""

import json
import math
import pickle
from collections import Counter
from itertools import chain

import numpy as np
import pytest
import torch
from conftest import small_model
from datasets import Dataset
from tokenizers import Tokenizer, models
from training_setup import arguments, logged, make_trainer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from modeling_aiayn import AiaynForSequenceClassification
from modeling_aiayn.classification.labelled_texts import encode_texts
from modeling_aiayn.classification.training import ClassifierTrainingArguments
from modeling_aiayn.data.embedded_corpus import generate_pairs
from modeling_aiayn.saved.loading import BUNDLED_MODEL, find_model
from modeling_aiayn.tokenization import train_bpe_tokenizer, train_word_tokenizer
from modeling_aiayn.training import AiaynTrainer, bpe_dropout
from modeling_aiayn.training.batches import PAIR, TEXT, TokenBatches, token_lengths
from modeling_aiayn.training.bpe_dropout import ResegmentedExamples, Segmenter
from modeling_aiayn.training.data import encode_pairs

TEXTS = ["Übergrößenträger, we don't see 3,5 €!", "a  b\tc", "東京 is far.", "«Zoë» sees 東京"]


@pytest.fixture(scope="module")
def bundled():
    return AutoTokenizer.from_pretrained(find_model(BUNDLED_MODEL))


def pairs_of(tokenizer, count=40):
    rows = list(generate_pairs("train", count))
    pairs = {"source": [each.source for each in rows], "target": [each.target for each in rows]}
    return encode_pairs(Dataset.from_dict(pairs), tokenizer, tokenizer, 256, "train")


def resegmented(pairs, tokenizer, dropout, seed, *limits):
    columns = {"input_ids": ("source", tokenizer), "labels": ("target", tokenizer)}
    return ResegmentedExamples(pairs, columns, dropout, seed, *limits)


def segmented(segmenter, text, dropout, generator):
    words = segmenter.words(text)
    return [index for word in words for index in segmenter.segment(word, dropout, generator)]


@pytest.mark.parametrize("text", TEXTS)
def test_without_dropout_the_ids_are_the_tokenizer_s(bundled, text):
    found = segmented(Segmenter(bundled), text, 0.0, np.random.default_rng(0))
    assert [*found, bundled.eos_token_id] == bundled(text).input_ids


@pytest.mark.parametrize("text", TEXTS)
def test_any_segmentation_is_the_same_text(bundled, text):
    segmenter, generator = Segmenter(bundled), np.random.default_rng(1)
    found = {tuple(segmented(segmenter, text, 0.5, generator)) for _ in range(20)}
    assert len(found) > 1
    expected = bundled.decode(bundled(text).input_ids, skip_special_tokens=True)
    assert {bundled.decode(list(ids)) for ids in found} == {expected}


def test_segmentations_have_the_probabilities_of_the_algorithm():
    """By hand: ab, then abc; or bc, if ab is skipped."""
    vocabulary = {piece: index for index, piece in enumerate(["a", "b", "c", "ab", "bc", "abc"])}
    merges = [("a", "b"), ("ab", "c"), ("b", "c")]
    model = models.BPE(vocab=vocabulary, merges=merges, unk_token="a")
    segmenter = Segmenter(PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model)))
    generator, skip, count = np.random.default_rng(2), 0.3, 20_000
    found = Counter(tuple(segmenter.segment("abc", skip, generator)) for _ in range(count))
    expected = {
        (5,): (1 - skip) ** 2,
        (3, 2): (1 - skip) * skip,
        (0, 4): skip * (1 - skip),
        (0, 1, 2): skip**2,
    }
    assert found.keys() == expected.keys()
    for ids, probability in expected.items():
        assert found[ids] / count == pytest.approx(probability, abs=0.015)


def test_epochs_differ_and_each_is_the_same_again(tokenizer):
    pairs = pairs_of(tokenizer)
    found = resegmented(pairs, tokenizer, 0.3, 5)
    again = resegmented(pairs, tokenizer, 0.3, 5)
    other = resegmented(pairs, tokenizer, 0.3, 6)
    rows = {}
    for epoch in (0, 1, 7):
        indices = range(epoch * len(pairs), (epoch + 1) * len(pairs))
        rows[epoch] = [found[index] for index in indices]
        assert [again[index] for index in indices] == rows[epoch]
        assert [other[index] for index in indices] != rows[epoch]
        lengths = [[len(row["input_ids"]), len(row["labels"])] for row in rows[epoch]]
        assert found.lengths(epoch).tolist() == lengths
        for row, pair in zip(rows[epoch], pairs, strict=True):
            for ids, own in (("input_ids", "input_ids"), ("labels", "labels")):
                assert row[ids][-1] == tokenizer.eos_token_id
                texts = [tokenizer.decode(each[:-1]) for each in (row[ids], pair[own])]
                assert texts[0] == texts[1]
    assert rows[0] != rows[1] != rows[7]
    assert sum(map(len, (row["labels"] for row in rows[0]))) > sum(map(len, pairs["labels"]))


def test_each_epoch_has_as_many_batches_and_none_is_too_large(tokenizer):
    pairs = resegmented(pairs_of(tokenizer, 200), tokenizer, 0.3, 0)
    for processes in (1, 3):
        samplers = [
            TokenBatches(pairs.lengths, 250, 9, process, processes) for process in range(processes)
        ]
        for epoch in range(6):
            seen = []
            for sampler in samplers:
                sampler.set_epoch(epoch)
                batches = list(sampler)
                assert len(batches) == len(sampler) == len(samplers[0])
                for batch in batches:
                    rows = [pairs[index] for index in batch]
                    sizes = [
                        max(len(row[name]) for row in rows) for name in ("input_ids", "labels")
                    ]
                    assert len(batch) * sum(sizes) <= 250
                    seen += batch
            assert len(set(seen)) == len(seen)
            assert {index // len(pairs) for index in seen} == {epoch}
            assert len(seen) > 0.9 * len(pairs)


@pytest.mark.parametrize("batches", [{"max_tokens_per_batch": 300}, {}])
def test_a_resumed_run_and_workers_give_the_same_weights(tokenizer, tmp_path, batches):
    pairs = pairs_of(tokenizer, 60)
    options = {"bpe_dropout": 0.2, "predict_with_generate": False, **batches}

    def train(folder, resume=None, **more):
        given = {"max_steps": 40, "save_strategy": "steps", "save_steps": 25, **options, **more}
        trainer = make_trainer(tmp_path / folder, pairs, tokenizer, **given)
        trainer.train(resume)
        return trainer

    whole = train("whole")
    parts = train("parts", str(tmp_path / "whole" / "checkpoint-25"))
    workers = train("workers", dataloader_num_workers=2)
    plain = train("plain", bpe_dropout=0.0)
    assert logged(whole, "loss") == logged(workers, "loss")
    weights = [list(each.model.parameters()) for each in (whole, parts, workers, plain)]
    for ours, *others in zip(*weights[:3], strict=True):
        assert torch.equal(ours, others[0]) and torch.equal(ours, others[1])
    assert not torch.equal(weights[0][0], weights[3][0])
    # Evaluation takes the tokenizer's own ids, and the saved tokenizer has no dropout.
    rows = [
        row for batch in whole.get_eval_dataloader(pairs) for row in batch["input_ids"].tolist()
    ]
    ids = [tuple(each for each in row if each != tokenizer.pad_token_id) for row in rows]
    assert Counter(ids) == Counter(map(tuple, pairs["input_ids"]))
    saved = json.loads((tmp_path / "whole" / "checkpoint-25" / "tokenizer.json").read_text())
    assert saved["model"]["dropout"] is None


@pytest.mark.parametrize("batches", [{"max_tokens_per_batch": 300}, {}])
def test_columns_of_the_old_ids_are_made_again(tokenizer, tmp_path, batches):
    """As those of dict(tokenizer(...)): a mask would have the length of the old ids."""
    pairs = pairs_of(tokenizer, 60)
    masks = [[1] * len(ids) for ids in pairs["input_ids"]]
    pairs = pairs.add_column("attention_mask", masks)
    options = {"bpe_dropout": 0.5, "predict_with_generate": False, **batches}
    trainer = make_trainer(tmp_path, pairs, tokenizer, **options)
    for batch in trainer.get_train_dataloader():
        ids, mask = batch["input_ids"], batch["attention_mask"]
        assert torch.equal(mask, (ids != tokenizer.pad_token_id).long())


def test_other_tokenizers_are_rejected(tokenizer):
    words = train_word_tokenizer(["the dog sees"] * 3)
    pairs = Dataset.from_dict({"source": ["the dog"], "target": ["the dog"]})
    encoded = encode_pairs(pairs, words, words, 99, "train")
    with pytest.raises(ValueError, match="bpe_dropout needs a BPE tokenizer, got WordLevel"):
        resegmented(encoded, words, 0.1, 0)
    tokenizer = train_bpe_tokenizer(["the dog sees"] * 3, 300)
    encoded = encode_pairs(pairs, tokenizer, tokenizer, 99, "train")
    encoded = encoded.map(lambda pair: {"labels": [0, *pair["labels"]]})  # another template
    with pytest.raises(ValueError, match="by its merges alone and appends </s>, but 'the dog'"):
        resegmented(encoded, tokenizer, 0.1, 0)


def test_added_tokens_are_rejected_wherever_they_are(tokenizer):
    """Also if the sentences that are compared do not have them."""
    tagged = train_bpe_tokenizer(["the dog sees"] * 3, 300)
    tagged.add_tokens(["<2de>"])
    pairs = Dataset.from_dict({"source": ["the dog"], "target": ["the dog"]})
    with pytest.raises(ValueError, match=r"would split the tokens that were added .*: <2de>"):
        resegmented(encode_pairs(pairs, tagged, tagged, 99, "train"), tagged, 0.1, 0)


def test_a_pair_that_would_become_too_long_keeps_its_own_ids(tokenizer):
    given = pairs_of(tokenizer, 40)
    own = token_lengths(given, PAIR)
    max_length, max_tokens = own.max() + 1, own.sum(1).max() + 1
    pairs = resegmented(given, tokenizer, 0.6, 2, max_tokens, max_length)
    free = resegmented(given, tokenizer, 0.6, 2)
    for epoch in range(3):
        lengths, wished = pairs.lengths(epoch), free.lengths(epoch)
        is_too_long = (wished.max(1) > max_length) | (wished.sum(1) > max_tokens)
        assert 0 < is_too_long.sum() < 40
        assert np.array_equal(lengths, np.where(is_too_long[:, None], own, wished))
        for row in range(40):
            index = epoch * 40 + row
            expected = given[row] if is_too_long[row] else free[index]
            assert pairs[index] == {name: expected[name] for name in PAIR}


def test_limits_are_those_of_the_batch_and_of_learned_positions(tmp_path, tokenizer):
    for kind, rows in (("learned", 40), ("sinusoidal", math.inf)):
        sizes = {"position_type": kind, "max_position_embeddings": 40}
        for batches, tokens in (({"max_tokens_per_batch": 300}, 300 - 2 * 7), ({}, math.inf)):
            trainer = make_trainer(
                tmp_path, pairs_of(tokenizer), tokenizer, sizes=sizes, bpe_dropout=0.1,
                pad_to_multiple_of=8, **batches,
            )  # fmt: skip
            pairs = trainer.get_train_dataloader().dataset
            assert (pairs.max_tokens, pairs.max_length) == (tokens, rows)


def test_texts_keep_their_classes_and_are_cut_as_before(tokenizer):
    texts = {"text": ["a dog sees the cat of a cat", "a dog sees", "a cat"], "label": [2, 0, 1]}
    encoded = encode_texts(Dataset.from_dict(texts), tokenizer, 6, "train")
    lengths = token_lengths(encoded, TEXT)[:, 0]
    assert lengths.max() == lengths[0] == 6 < len(tokenizer(texts["text"][0]).input_ids)
    found = ResegmentedExamples(encoded, {"input_ids": ("text", tokenizer)}, 0.5, 3)
    rows = [found[index] for index in range(30)]
    assert [row["labels"] for row in rows] == [2, 0, 1] * 10
    for first in range(3):
        ids = [row["input_ids"] for row in rows[first::3]]
        assert len(set(map(tuple, ids))) > 1
        assert {each[-1] for each in ids} == {tokenizer.eos_token_id}
        assert max(map(len, ids)) <= 6
        text = texts["text"][first]
        assert all(text.startswith(tokenizer.decode(each[:-1]).strip()) for each in ids)
    assert found.lengths(4).tolist() == [[len(row["input_ids"])] for row in rows[12:15]]


def test_batches_of_texts_have_like_lengths_in_each_epoch(tmp_path, tokenizer):
    args = ClassifierTrainingArguments(
        str(tmp_path), bpe_dropout=0.5, per_device_train_batch_size=10, eval_strategy="no",
        load_best_model_at_end=False, use_cpu=True,
    )  # fmt: skip
    texts = [" ".join(["dog"] * (1 + number % 30)) for number in range(300)]
    texts = Dataset.from_dict({"text": texts, "label": [0, 1] * 150})
    encoded = encode_texts(texts, tokenizer, 99, "train")
    model = small_model(AiaynForSequenceClassification, vocab_size=len(tokenizer), num_labels=2)
    trainer = AiaynTrainer(model, args, train_dataset=encoded, processing_class=tokenizer)
    loader, seen = trainer.get_train_dataloader(), []
    for epoch in (0, 1):
        loader.set_epoch(epoch)
        lengths = [batch["attention_mask"].sum(1) for batch in loader]
        assert np.mean([max(each) - min(each) for each in lengths]) < 6
        assert sum(map(sum, lengths)) == loader.dataset.lengths(epoch).sum()
        seen.append(sorted(chain.from_iterable(lengths)))
    assert seen[0] != seen[1]


def test_data_without_texts_are_rejected(tmp_path, tokenizer):
    pairs = pairs_of(tokenizer)
    for data, got in (
        (pairs.remove_columns("target"), r"got \['source', 'input_ids', 'labels'\]"),
        (pairs.to_list(), "got list"),
    ):
        with pytest.raises(ValueError, match=f"the texts of the training data .*{got}. Keep the"):
            resegmented(data, tokenizer, 0.1, 0)


def test_workers_that_are_not_forked_get_the_same_pairs(tokenizer):
    pairs = resegmented(pairs_of(tokenizer), tokenizer, 0.3, 5)
    first = pairs[3]
    assert pickle.loads(pickle.dumps(pairs))[3] == first


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bpe_dropout": 1.0, "max_tokens_per_batch": 99}, r"bpe_dropout must be in \[0, 1\), got"),
        (
            {"bpe_dropout": 0.1, "train_sampling_strategy": "random"},
            "bpe_dropout needs batches of similar length: .*'group_by_length', got 'random'",
        ),
    ],
)
def test_impossible_values_are_rejected(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        arguments(tmp_path, **options)


def test_words_are_segmented_in_several_ways(tokenizer, monkeypatch):
    monkeypatch.setattr(bpe_dropout, "VARIANTS", 4)
    pairs = resegmented(pairs_of(tokenizer, 3), tokenizer, 0.5, 1)
    seen = {tuple(pairs[epoch * 3]["input_ids"]) for epoch in range(40)}
    assert len(seen) > 4
