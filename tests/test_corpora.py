"""Several corpora in one run: how often each is drawn, their tags, their scores, and resuming."""

import json
import shutil

import numpy as np
import pytest
import torch
import yaml
from datasets import Dataset
from foreign_peers import nllb_folder
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_aiayn.data.embedded_corpus import generate_pairs
from modeling_aiayn.interop.importing import import_model
from modeling_aiayn.interop.m2m100 import read_m2m100
from modeling_aiayn.saved.languages import saved_languages
from modeling_aiayn.training.batches import TokenBatches
from modeling_aiayn.training.corpora import Corpus, Mixture, read_corpora, tokens_of
from modeling_aiayn.training.data import DataArguments, data_sha256
from modeling_aiayn.training.prepared_data import prepare_data
from modeling_aiayn.training.setup import ModelArguments, NewModel
from modeling_aiayn.translation import Translator

SMALL = (
    *("--max_tokens_per_batch", 500, "--use_cpu", "true", "--report_to", "none"),
    *("--lr_scheduler_type", "linear", "--learning_rate", 0.01, "--warmup_steps", 0),
)
TINY = ("--preset", "tiny", "--vocab_size", 500)
TINY += ("--config_overrides", "{encoder_layers: 1, decoder_layers: 1, d_model: 32}")


def rows_of(sizes):
    return [Dataset.from_dict({"input_ids": [[n, row] for row in range(size)], "labels": [[n]] * size}) for n, size in enumerate(sizes)]  # fmt: skip


def mixture(sizes, temperature, weights=(1.0, 1.0, 1.0)):
    corpora = [Corpus(DataArguments(), weight) for weight in weights]
    return Mixture(corpora, rows_of(sizes), temperature)


@pytest.mark.parametrize(
    ("sizes", "weights", "temperature", "draws"),
    [
        ([30, 10], (1, 1), 1, [30, 10]),
        ([32, 1], (1, 1), 5, [22, 11]),
        ([32, 1], (1, 4), 5, [11, 22]),
        ([1000, 2], (1, 1), 1e9, [501, 501]),
    ],
)
def test_shares_follow_sizes_weights_and_temperature(sizes, weights, temperature, draws):
    assert mixture(sizes, temperature, weights).draws == draws


def test_an_epoch_repeats_small_corpora_and_draws_others_of_large_ones():
    mixed = mixture([70, 5, 11], 1e9)
    assert (len(mixed.rows), mixed.draws, len(mixed)) == (86, [29, 29, 29], 87)
    epochs = [mixed.draw(np.random.default_rng(seed)) for seed in (3, 3, 4)]
    assert epochs[0].tolist() == epochs[1].tolist() != epochs[2].tolist()
    drawn = [mixed.rows[int(index)]["input_ids"] for index in epochs[0]]
    for corpus, (size, least, more) in enumerate([(70, 0, 29), (5, 5, 4), (11, 2, 7)]):
        counts = [drawn.count([corpus, row]) for row in range(size)]
        assert (min(counts), counts.count(least + 1)) == (least, more)
        assert max(counts) == least + 1


def test_all_epochs_and_processes_have_as_many_batches():
    generator = np.random.default_rng(0)
    lengths = generator.integers(2, 40, (86, 2)).astype(np.int32)
    mixed = mixture([70, 5, 11], 3)
    several = [TokenBatches(lengths, 200, 1, process, 3, mixed.draw) for process in range(3)]
    drawn = []
    for epoch in range(6):
        for batches in several:
            batches.set_epoch(epoch)
        found = [batch for batches in several for batch in batches]
        assert len({len(batches) for batches in several}) == 1
        drawn.append(len(found))
        for batch in found:
            assert lengths[batch].max(0).sum() * len(batch) <= 200
    assert len({*drawn}) == 1
    # The first epoch has all that it draws.
    several[0].set_epoch(0)
    one = TokenBatches(lengths, 200, 1, draw=mixed.draw)
    assert sorted(index for batch in one for index in batch) == sorted(
        mixed.draw(np.random.default_rng((1, 0))).tolist()
    )


def test_another_mixture_is_other_data():
    hashes = [data_sha256(mixture([7, 5], t, w)) for t, w in ((5, (1, 1)), (1, (1, 1)), (5, (3, 1)))]  # fmt: skip
    assert len({*hashes}) == 3 and data_sha256(mixture([7, 5], 5, (1, 1))) == hashes[0]


def write(tmp_path, *entries):
    path = tmp_path / "corpora.yaml"
    path.write_text(yaml.safe_dump([*entries]))
    return str(path)


def test_an_entry_has_the_flags_of_data_and_two_directions_are_two_corpora(tmp_path):
    both = {"source_lang": "en", "target_lang": "fr", "train_file": "a", "validation_file": ["b"]}
    one = {"source_lang": "de", "target_lang": "en", "train_file": "c.tsv", "weight": 2}
    path = write(tmp_path, both | {"both_directions": True}, one | {"back_translated": True})
    found = read_corpora(DataArguments(corpora=path, clean=True, max_length=9))
    assert [corpus.languages for corpus in found] == [("en", "fr"), ("fr", "en"), ("de", "en")]
    assert [(corpus.weight, corpus.back_translated) for corpus in found] == [(1, False)] * 2 + [(2, True)]  # fmt: skip
    assert [corpus.data.columns for corpus in found] == ["en,fr", "en,fr", "de,en"]
    assert [corpus.data.train_file for corpus in found] == [["a"], ["a"], ["c.tsv"]]
    assert all(corpus.data.clean and corpus.data.max_length == 9 for corpus in found)


@pytest.mark.parametrize(
    ("entries", "flags", "message"),
    [
        ([{"source_lang": "en", "train_file": "a"}], {}, "a corpus must be a mapping with source"),
        ([{"source_lang": "en", "target_lang": "de", "weigth": 2}], {}, "a corpus must be a map"),
        ([{"source_lang": "en", "target_lang": "de", "back_translated": True, "both_directions": True}], {}, "back_translated excludes both_directions"),
        ([{"source_lang": "en", "target_lang": "de", "clean": "no"}], {}, "true and false for yes"),
        ([{"source_lang": "en", "target_lang": "de", "max_length": 9}], {}, "a corpus must be a map"),
        ([], {}, "must be a list of corpora"),
        ([], {"train_file": ["x"]}, "cannot be used with train_file"),
        ([], {"streaming": True}, "cannot be used with train_file, dataset_name or streaming"),
    ],
)  # fmt: skip
def test_lists_that_are_wrong_are_rejected(tmp_path, entries, flags, message):
    with pytest.raises(ValueError, match=message):
        read_corpora(DataArguments(corpora=write(tmp_path, *entries), **flags))


def pair_file(path, split, count, swapped=False):
    pairs = [(pair.source, pair.target)[:: -1 if swapped else 1] for pair in generate_pairs(split, count)]  # fmt: skip
    path.write_text("".join(f"{a}\t{b}\n" for a, b in pairs), "utf-8")
    return str(path)


@pytest.fixture
def corpora(tmp_path):
    """Pairs of English and German in both directions, some back-translated ones, and a test set."""
    tmp_path = tmp_path / "corpora"
    tmp_path.mkdir()
    held_out = {name: pair_file(tmp_path / f"{name}.tsv", "test", 6) for name in ("validation_file", "test_file")}  # fmt: skip
    real = {"source_lang": "en", "target_lang": "de", "both_directions": True, **held_out}
    real["train_file"] = pair_file(tmp_path / "train.tsv", "train", 40)
    synthetic = {"source_lang": "de", "target_lang": "en", "back_translated": True}
    synthetic["train_file"] = pair_file(tmp_path / "bt.tsv", "train", 15, swapped=True)
    return write(tmp_path, real, synthetic)


def test_training_needs_pairs_to_validate_on(tmp_path):
    entry = {"source_lang": "en", "target_lang": "de"}
    entry["train_file"] = pair_file(tmp_path / "train.tsv", "train", 5)
    data = DataArguments(corpora=write(tmp_path, entry))
    with pytest.raises(ValueError, match="must have a train_file and a validation_file"):
        prepare_data(data, NewModel(ModelArguments(vocab_size=400)).tokenizers)


@pytest.fixture
def one_direction(tmp_path):
    """Real and back-translated pairs from English to German."""
    languages = {"source_lang": "en", "target_lang": "de"}
    real = {"train_file": pair_file(tmp_path / "train.tsv", "train", 9)}
    real["validation_file"] = pair_file(tmp_path / "valid.tsv", "test", 3)
    synthetic = {"train_file": pair_file(tmp_path / "bt.tsv", "train", 4)}
    return write(tmp_path, languages | real, languages | synthetic | {"back_translated": True})


def test_back_translated_sources_begin_with_a_token_and_others_do_not(one_direction):
    data = DataArguments(corpora=one_direction)
    start = NewModel(ModelArguments(vocab_size=400), tokens_of(read_corpora(data)))
    prepared = prepare_data(data, start.tokenizers)
    tokenizer, splits = prepared.source_tokenizer, prepared.splits
    (tag,) = [*range(400, len(tokenizer))]
    assert tokenizer.convert_ids_to_tokens(tag) == "<bt>"
    pairs = [(pair.source, pair.target) for pair in generate_pairs("train", 9)]
    expected = [tokenizer(source).input_ids for source, _ in pairs]
    expected += [[tag, *ids] for ids in expected[:4]]
    assert list(splits["train"].rows["input_ids"]) == expected
    labels = [tokenizer(target).input_ids for _, target in pairs]
    assert list(splits["train"].rows["labels"]) == labels + labels[:4]
    assert "source_lang" not in splits["validation"].column_names
    assert all(tag not in ids for ids in splits["validation"]["input_ids"])


def test_a_saved_model_gets_the_token_if_a_corpus_needs_it(
    run, tmp_path, one_direction, model_folder, corpora
):
    flags = ("--start_from", model_folder, "--corpora", one_direction, *SMALL)
    flags += ("--max_steps", 1, "--predict_with_generate", "false")
    code, _, err = run("train_translation.py", *flags, "--output_dir", tmp_path / "run")
    assert code == 0, err
    tokenizer, base = map(AutoTokenizer.from_pretrained, (tmp_path / "run", model_folder))
    assert tokenizer.get_vocab() == base.get_vocab() | {"<bt>": len(base)}
    assert saved_languages(tmp_path / "run") == ("en", "de")
    translator = Translator.from_pretrained(tmp_path / "run")
    assert translator.languages == [] and len(translator(["We see."])) == 1
    code, _, err = run(
        "train_translation.py", *flags[:2], "--corpora", corpora, *flags[4:], "--output_dir", tmp_path / "two"
    )  # fmt: skip
    assert code == 0, err  # it gets the tags, too
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "two")
    added = {name: len(base) + n for n, name in enumerate(("<2de>", "<2en>", "<bt>"))}
    assert tokenizer.get_vocab() == base.get_vocab() | added
    assert "before" not in json.loads((tmp_path / "two" / "scores.json").read_text())
    translator = Translator.from_pretrained(tmp_path / "two")
    assert translator.needs_languages
    (ids,) = [translator.directed(("en", "de")).encode("We see.")]
    assert ids == [len(base), *base("We see.").input_ids]


def test_one_model_is_trained_in_both_directions_and_resumes_exactly(
    run, tmp_path, corpora, caplog
):
    folder = tmp_path / "run"
    command = ("train_translation.py", "--corpora", corpora, *SMALL, *TINY, "--output_dir", folder)
    command += ("--max_steps", 30, "--save_steps", 10, "--eval_strategy", "steps", "--eval_steps", 30)  # fmt: skip
    command += ("--predict_with_generate", "true", "--generation_max_length", 9)
    with caplog.at_level("INFO"):
        code, out, err = run(*command)
    assert code == 0, err
    assert "de-en (back-translated): 15 pairs, of which an epoch draws" in caplog.text
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tags = tokenizer.convert_tokens_to_ids(["<2de>", "<2en>", "<bt>"])
    assert tags == [*range(len(tokenizer) - 3, len(tokenizer))] and len(tokenizer) == 503
    # The token of back-translated sources is never read from a text.
    assert tokenizer("<2de> We <bt> see.").input_ids[0] == tags[0]
    assert tags[2] not in tokenizer("<bt> We <bt> see.").input_ids

    scores = json.loads((folder / "scores.json").read_text())
    translator = Translator.from_pretrained(folder)
    assert translator.languages == ["de", "en"] and saved_languages(folder) is None
    with pytest.raises(ValueError, match="source_lang must be one of the model's 2 languages"):
        translator(["We see."])
    perplexities = []
    for languages in (("en", "de"), ("de", "en")):
        test = [pair if languages[0] == "en" else pair[::-1] for pair in ((p.source, p.target) for p in generate_pairs("test", 6))]  # fmt: skip
        found = translator.directed(languages).score(*zip(*test, strict=True))
        tokens = sum(len(one.token_ids) for one in found)
        perplexities.append(np.exp(-sum(one.log_probability for one in found) / tokens))
        assert scores["directions"]["-".join(languages)]["perplexity"] == pytest.approx(perplexities[-1], rel=1e-4)  # fmt: skip
    assert scores["perplexity"] == pytest.approx(np.mean(perplexities), rel=1e-4)
    assert out.count("en-de  ") == out.count("mean   ") == 1
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    (evaluated,) = [entry for entry in history if "eval_bleu" in entry]
    assert evaluated["eval_chrf"] == pytest.approx((evaluated["eval_chrf_en-de"] + evaluated["eval_chrf_de-en"]) / 2)  # fmt: skip
    card = (folder / "README.md").read_text()
    metadata = yaml.safe_load(card.split("---")[1])
    assert metadata["language"] == ["en", "de"]
    results = metadata["model-index"][0]["results"]
    assert [result["dataset"]["config"] for result in results] == ["en-de", "de-en"]
    assert '"<2de> ' in card and "mean" in card

    # Transformers alone writes the tag, and translates as this package does.
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    batch = tokenizer(["<2de> We see."], return_tensors="pt")
    assert batch.input_ids[0].tolist() == translator.directed(("en", "de")).encode("We see.")
    assert model.generate(**batch, max_new_tokens=3).shape[0] == 1

    # Two epochs end between the checkpoint and the end.
    expected = load_file(folder / "model.safetensors")
    assert evaluated["epoch"] > 2
    (folder / "finished.json").unlink()
    for name in ("checkpoint-30", "checkpoint-20"):
        shutil.rmtree(folder / name, ignore_errors=True)
    code, _, err = run(*command, "--resume", "auto")
    assert code == 0, err
    resumed = load_file(folder / "model.safetensors")
    assert all(torch.equal(expected[name], resumed[name]) for name in expected)


def test_a_model_with_tags_is_trained_in_several_directions(run, tmp_path):
    import_model(read_m2m100(nllb_folder(tmp_path / "peer")), tmp_path / "ours", sources=2)
    languages = ("eng_Latn", "deu_Latn")
    entry = dict(zip(("source_lang", "target_lang"), languages, strict=True))
    entry |= {"both_directions": True, "train_file": pair_file(tmp_path / "train.tsv", "train", 20)}
    entry["validation_file"] = pair_file(tmp_path / "validation.tsv", "test", 4)
    flags = ("--start_from", tmp_path / "ours", "--corpora", write(tmp_path, entry), *SMALL)
    flags += ("--max_steps", 2, "--output_dir", tmp_path / "run")
    code, _, err = run("train_translation.py", *flags, "--predict_with_generate", "true")
    assert code == 1 and "predict_with_generate cannot be used for several directions" in err
    code, out, err = run("train_translation.py", *flags, "--predict_with_generate", "false")
    assert code == 0, err
    assert "deu_Latn-eng_Latn, before" in out
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    for direction in ("eng_Latn-deu_Latn", "deu_Latn-eng_Latn"):
        before, after = scores["before"]["directions"][direction], scores["directions"][direction]
        assert after["perplexity"] < before["perplexity"]
