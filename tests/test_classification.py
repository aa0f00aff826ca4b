"""Classifiers: reading data, training, resuming, scores and predictions."""

import gzip
import json
import os
import signal
import sys

import pytest
import torch
from conftest import run_examples, small_model
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from huggingface_hub import ModelCard
from tokenizers import Tokenizer
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerFast, pipeline

from modeling_aiayn import AiaynForSequenceClassification
from modeling_aiayn.classification import labelled_texts
from modeling_aiayn.classification.labelled_texts import (
    TextDataArguments,
    encode_texts,
    load_labelled_splits,
    read_labelled,
)
from modeling_aiayn.classification.scores import (
    classification_metrics,
    draw_confusion,
    score_classes,
)
from modeling_aiayn.classification.training import (
    ClassifierArguments,
    ClassifierTrainingArguments,
    build_classifier,
)
from modeling_aiayn.commands.classify import ClassifyFlags, classify, pool_size
from modeling_aiayn.saved.publishing import files_to_publish
from modeling_aiayn.training import AiaynTrainer

ANIMALS = ["dog", "cat", "cow", "horse"]
THINGS = ["table", "lamp", "chair", "knife"]


def write_texts(path, count=160, offset=0):
    """Two classes that one word tells apart, sorted by class as in IMDb."""
    rows = [
        (label, f"here is the {words[(n + offset) % 4]} number {n + offset} of them")
        for label, words in (("animal", ANIMALS), ("thing", THINGS))
        for n in range(count // 2)
    ]
    path.write_text("".join(f"{label}\t{text}\n" for label, text in rows))
    return path


SMALL = [
    *("--vocabulary", "word", "--min_frequency", "1", "--per_device_train_batch_size", "8"),
    *("--config_overrides", "{d_model: 32, encoder_layers: 1, encoder_ffn_dim: 32, dropout: 0.1}"),
    *("--learning_rate", "0.005", "--use_cpu", "true", "--report_to", "none"),
]


def arguments(path, **more):
    return TextDataArguments(train_file=str(path), **more)


def test_all_formats_give_the_same_texts(tmp_path):
    rows = [("1", "a good film"), ("0", "a\tbad one")]
    (tmp_path / "a.tsv").write_text("".join(f"{label}\t{text}\n" for label, text in rows))
    records = [{"review": text, "stars": int(label)} for label, text in rows]
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.writelines(f"{json.dumps(record)}\n" for record in records)
    assert read_labelled(tmp_path / "a.tsv", "text", "label") == rows
    assert read_labelled(tmp_path / "a.jsonl.gz", "review", "stars") == rows


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "1 no tab\n", r"a\.tsv:1: a line .* must be a label, a tab and a text"),
        ("a.tsv", "1\tyes\n0\t \n", r"a\.tsv:2: .* neither may be empty"),
        ("a.jsonl", "{}\n", r"a\.jsonl:1: a record must have 'text', a text, and 'label'"),
    ],
)
def test_files_in_the_wrong_format_are_rejected(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        read_labelled(tmp_path / name, "text", "label")


def test_validation_texts_are_drawn_from_each_class(tmp_path):
    """docs/seeds.md, trap 23: in a file sorted by class, the last texts have one class."""
    path = write_texts(tmp_path / "sorted.tsv")
    splits = load_labelled_splits(arguments(path, validation_share=0.25), seed=3)
    assert splits["validation"]["label"].count(0) == splits["validation"]["label"].count(1) == 20
    assert set(splits["train"]["text"]).isdisjoint(splits["validation"]["text"])
    again = load_labelled_splits(arguments(path, validation_share=0.25), seed=3)
    assert again["validation"]["text"] == splits["validation"]["text"]
    other = load_labelled_splits(arguments(path, validation_share=0.25), seed=4)
    assert other["validation"]["text"] != splits["validation"]["text"]


def test_classes_have_the_same_numbers_in_each_split(tmp_path, caplog):
    (tmp_path / "train.tsv").write_text("10\ta\n9\tb\nx\tc\n")
    (tmp_path / "test.tsv").write_text("x\tc\n9\tb\n")
    paths = {name: str(tmp_path / "test.tsv") for name in ("validation_file", "test_file")}
    splits = load_labelled_splits(arguments(tmp_path / "train.tsv", **paths), seed=0)
    assert splits["train"].features["label"].names == ["9", "10", "x"]
    assert list(splits["test"]["label"]) == [2, 0]
    assert "test: 2 of 2 texts are in the training data." in caplog.messages
    (tmp_path / "test.tsv").write_text("y\tc\n")
    with pytest.raises(ValueError, match="the class 'y' is not in the training texts"):
        load_labelled_splits(arguments(tmp_path / "train.tsv", **paths), seed=0)
    with pytest.raises(ValueError, match=r"at least two classes, got only \['y'\]"):
        load_labelled_splits(arguments(tmp_path / "test.tsv"), seed=0)


def test_long_texts_are_cut_but_keep_their_end_token(tmp_path, caplog):
    """docs/seeds.md, trap 18."""
    path = write_texts(tmp_path / "train.tsv")
    splits = load_labelled_splits(arguments(path), seed=0)
    model_arguments = ClassifierArguments(vocabulary="word", min_frequency=1)
    _, tokenizer = build_classifier(model_arguments, splits["train"], 6)
    with caplog.at_level("INFO"):
        encoded = encode_texts(splits["train"], tokenizer, 6, "train")
    assert {len(ids) for ids in encoded["input_ids"]} == {6}
    assert {ids[-1] for ids in encoded["input_ids"]} == {tokenizer.eos_token_id}
    assert f"train: {len(encoded)} of {len(encoded)} texts cut to 6 tokens" in caplog.text
    without_end = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(tokenizer.backend_tokenizer.model), eos_token="</s>"
    )
    without_end.backend_tokenizer.pre_tokenizer = tokenizer.backend_tokenizer.pre_tokenizer
    expected = without_end(list(splits["train"]["text"]), truncation=True, max_length=6).input_ids
    assert encode_texts(splits["train"], without_end, 6, "train")["input_ids"] == expected


def test_scores_by_hand():
    scores = score_classes([0, 1, 1, 2, 2, 2], [0, 0, 1, 1, 2, 2], ["a", "b", "c", "never"])
    expected = [[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 2, 0], [0, 0, 0, 0]]
    assert scores.confusion.tolist() == expected
    assert scores.accuracy == pytest.approx(4 / 6)
    # Precision and recall: a 1 and 1/2, b 1/2 and 1/2, c 2/3 and 1.
    assert scores.f1 == pytest.approx([2 / 3, 1 / 2, 4 / 5, 0.0])
    # As scikit-learn's f1_score has it: without the class that is neither true nor predicted.
    assert scores.macro_f1 == pytest.approx((2 / 3 + 1 / 2 + 4 / 5) / 3)
    assert score_classes([0, 1], [0, 0], ["a", "b"]).macro_f1 == pytest.approx((2 / 3 + 0) / 2)
    assert str(scores).splitlines()[0] == "accuracy  66.67  6 texts"
    assert str(scores).splitlines()[2] == "a         66.67  2 texts"


def test_the_confusion_matrix_is_drawn(tmp_path):
    scores = score_classes([0, 1], [0, 0], [r"$\frac{1}{2}$", "<b>"])
    draw_confusion(scores, tmp_path / "confusion.png")
    assert (tmp_path / "confusion.png").read_bytes().startswith(b"\x89PNG")
    many = [str(number) for number in range(60)]
    draw_confusion(score_classes([0, 59], [3, 3], many), tmp_path / "many.svg")
    # 60 x 60 counts would be text elements.
    assert 10 < (tmp_path / "many.svg").read_text().count('<g id="text_') < 100


def test_a_run_learns_is_scored_and_its_model_classifies(run, tmp_path, monkeypatch):
    train, test = write_texts(tmp_path / "train.tsv"), write_texts(tmp_path / "test.tsv", 24, 1000)
    folder = tmp_path / "run"
    flags = ("--train_file", train, "--test_file", test, "--output_dir", folder)
    code, out, err = run("train_classifier.py", *flags, *SMALL, "--num_train_epochs", 4)
    assert code == 0, err
    scores = json.loads((folder / "scores.json").read_text())
    assert scores["accuracy"] > 0.8
    assert f"accuracy {100 * scores['accuracy']:6.2f}  24 texts" in out
    assert (folder / "confusion.png").is_file()
    card = ModelCard.load(folder / "README.md")
    assert (card.data.pipeline_tag, card.data.license) == ("text-classification", "apache-2.0")
    metrics = {each.metric_type: each.metric_value for each in card.data.eval_results}
    assert metrics["accuracy"] == round(100 * scores["accuracy"], 2)
    assert "144 training texts" in card.text and str(tmp_path) not in card.text
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    assert f"It has {model.num_parameters():,} parameters" in card.text
    assert {folder / "README.md", folder / "scores.json"} < set(files_to_publish(folder))
    monkeypatch.chdir(tmp_path)  # the card's example names the folder
    assert run_examples(card)[0].startswith("[{'label': 'animal', 'score': 0.")
    texts = ("here is the horse number 3 of them", "here is the lamp number 5 of them")
    code, out, err = run("classify.py", "--model", folder, "--text", *texts)
    assert code == 0, err
    assert [line.split("\t")[0] for line in out.splitlines()] == ["animal", "thing"]
    assert all(0.5 < float(line.split("\t")[1]) <= 1 for line in out.splitlines())
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in texts))
    code, out, _ = run("classify.py", "--model", folder, "--input", tmp_path / "in.txt")
    assert [line.split("\t")[0] for line in out.splitlines()] == ["animal", "thing"]
    again = ("--num_train_epochs", 4, "--resume", "auto")
    code, out, _ = run("train_classifier.py", *flags, *SMALL, *again)
    assert (code, out) == (0, f"Already finished: {folder}\n")


def test_predictions_do_not_depend_on_the_batch(tmp_path):
    """docs/seeds.md, trap 5: padding for longer texts in the batch changes nothing."""
    path = write_texts(tmp_path / "train.tsv")
    splits = load_labelled_splits(arguments(path), seed=0)
    for pooling in ("mean", "max"):
        model_arguments = ClassifierArguments(
            vocabulary="word",
            min_frequency=1,
            config_overrides=f"{{d_model: 32, encoder_layers: 2, classifier_pooling: {pooling}}}",
        )
        model, tokenizer = build_classifier(model_arguments, splits["train"], 64)
        texts = ["the dog", "here is the lamp number 3 of them " * 4]
        model.eval()
        with torch.no_grad():
            together = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits
            alone = model(**tokenizer(texts[0], return_tensors="pt")).logits
        torch.testing.assert_close(together[:1], alone, atol=1e-5, rtol=0)


@pytest.mark.long
def test_a_killed_run_resumes_exactly(run, tmp_path, monkeypatch):
    train = write_texts(tmp_path / "train.tsv", 60)
    options = (*SMALL, "--num_train_epochs", 2, "--logging_steps", 3)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    flags = ("--train_file", train, *options, "--output_dir")
    assert run("train_classifier.py", *flags, whole)[0] == 0
    step = AiaynTrainer.training_step

    def stop_at_10(self, *args, **kwargs):
        if self.state.global_step == 10:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, *args, **kwargs)

    monkeypatch.setattr(AiaynTrainer, "training_step", stop_at_10)
    assert run("train_classifier.py", *flags, killed)[0] == 143
    monkeypatch.setattr(AiaynTrainer, "training_step", step)
    code, _, err = run("train_classifier.py", *flags, killed, "--resume", "auto")
    assert code == 0, err
    one, other = (
        AutoModelForSequenceClassification.from_pretrained(path).state_dict()
        for path in (whole, killed)
    )
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_training_can_start_from_a_translators_encoder(tokenizer, tmp_path, run):
    small_model(vocab_size=len(tokenizer)).save_pretrained(tmp_path / "translator")
    tokenizer.save_pretrained(tmp_path / "translator")
    path = write_texts(tmp_path / "train.tsv")
    splits = load_labelled_splits(arguments(path), seed=0)
    translator = str(tmp_path / "translator")
    start = ClassifierArguments(start_from=translator, config_overrides="dropout: 0.2")
    model, found = build_classifier(start, splits["train"], 64)
    encoder = small_model(vocab_size=len(tokenizer)).model.encoder.state_dict()
    weights = model.model.encoder.state_dict()
    assert all(torch.equal(weights[name], weight) for name, weight in encoder.items())
    assert found.get_vocab() == tokenizer.get_vocab()
    assert model.config.dropout == 0.2
    assert model.config.id2label == {0: "animal", 1: "thing"}
    assert model.config.max_position_embeddings == 64


@pytest.mark.parametrize("classes", [2, 5])
def test_training_can_start_from_a_classifier_of_other_classes(tokenizer, tmp_path, classes):
    sizes = {"vocab_size": len(tokenizer), "num_labels": classes}
    saved = small_model(AiaynForSequenceClassification, **sizes)
    saved.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    train = load_labelled_splits(arguments(write_texts(tmp_path / "train.tsv")), seed=0)["train"]
    model, _ = build_classifier(ClassifierArguments(start_from=str(tmp_path)), train, 20)
    encoder = saved.model.encoder.state_dict()
    found = model.model.encoder.state_dict()
    assert all(torch.equal(found[name], encoder[name]) for name in encoder)
    assert model.classifier.weight.shape[0] == 2
    assert torch.equal(model.classifier.weight, saved.classifier.weight) == (classes == 2)
    assert model.classifier.weight.std() > 0 and model.classifier.weight.isfinite().all()


def test_a_float16_start_is_trained_in_float32_and_learned_positions_limit_the_length(
    tokenizer, tmp_path
):
    learned = {"position_type": "learned", "max_position_embeddings": 30}
    small_model(vocab_size=len(tokenizer), **learned).half().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    train = load_labelled_splits(arguments(write_texts(tmp_path / "train.tsv")), seed=0)["train"]
    other = ClassifierArguments(
        start_from=str(tmp_path), config_overrides="{encoder_attention_heads: 1}"
    )
    with pytest.raises(ValueError, match="encoder_attention_heads belongs to the saved model"):
        build_classifier(other, train, 20)
    start = ClassifierArguments(
        start_from=str(tmp_path), config_overrides="{attn_implementation: sdpa}"
    )
    model, _ = build_classifier(start, train, 20)
    assert model.dtype == torch.float32 and model.config.max_position_embeddings == 30
    assert model.config._attn_implementation == "sdpa"
    message = "max_length=31 is more than the model's max_position_embeddings, 30"
    with pytest.raises(ValueError, match=message):
        build_classifier(start, train, 31)


def test_the_evaluation_loss_is_the_mean_over_texts(tokenizer, tmp_path):
    texts = [f"the dog sees {'the cat ' * (n % 5)}" for n in range(23)]
    rows = {"input_ids": tokenizer(texts).input_ids, "labels": [n % 3 for n in range(23)]}
    model = small_model(AiaynForSequenceClassification, vocab_size=len(tokenizer), num_labels=3)
    losses = []
    for size in (1, 5, 22, 64):
        args = ClassifierTrainingArguments(
            str(tmp_path), per_device_eval_batch_size=size, use_cpu=True, disable_tqdm=True
        )
        trainer = AiaynTrainer(
            model=model,
            args=args,
            eval_dataset=Dataset.from_dict(rows),
            processing_class=tokenizer,
            compute_metrics=classification_metrics,
        )
        losses.append(trainer.evaluate()["eval_loss"])
    nats = [
        -model(torch.tensor([ids])).logits.log_softmax(-1)[0, label].item()
        for ids, label in zip(rows["input_ids"], rows["labels"], strict=True)
    ]
    assert losses == pytest.approx([sum(nats) / 23] * 4, rel=1e-5)


def test_no_code_in_a_folder_is_run_even_if_stdin_says_yes(run, tmp_path):
    """transformers would ask whether to run it, and read the texts on stdin as the answer."""
    config = {"model_type": "evil", "auto_map": {"AutoConfig": "evil.EvilConfig"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    for script in (("classify.py",), ("complete.py", "--text", "a")):
        code, out, err = run(*script, "--model", tmp_path, stdin=b"y\ny\n")
        assert code == 1 and out == "" and "trust_remote_code" in err
    assert not (tmp_path / "ran").exists()


def test_a_classifier_with_a_weight_that_is_not_finite_is_rejected(run, tokenizer, tmp_path):
    model = small_model(AiaynForSequenceClassification, vocab_size=len(tokenizer))
    with torch.no_grad():
        model.classifier.weight[0, 0] = torch.nan
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    code, out, err = run("classify.py", "--model", tmp_path, "--text", "a")
    assert (code, out) == (1, "") and "classifier.weight is not finite" in err


def test_a_dataset_is_read_by_its_name(tmp_path):
    """A local folder stands for a name on the Hub: `datasets` opens both in the same way."""
    folder = tmp_path / "films"
    folder.mkdir()
    for split in ("train", "test"):
        rows = [{"sentence": f"film {n}", "label": n % 2} for n in range(20)]
        (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    splits = load_labelled_splits(
        TextDataArguments(dataset_name=str(folder), text_column="sentence"), seed=0
    )
    sizes = {"train": 18, "validation": 2, "test": 20}
    assert {name: len(split) for name, split in splits.items()} == sizes


def test_a_test_set_without_labels_is_skipped(tmp_path, monkeypatch, caplog):
    features = Features(sentence=Value("string"), label=ClassLabel(names=["bad", "good"]))
    rows = [{"sentence": f"film {n}", "label": n % 2} for n in range(20)]
    unlabelled = [row | {"label": -1} for row in rows]
    data = TextDataArguments(dataset_name="films", text_column="sentence")
    splits = DatasetDict(
        train=Dataset.from_list(rows, features), test=Dataset.from_list(unlabelled, features)
    )
    monkeypatch.setattr(labelled_texts, "load_dataset", lambda *_: splits)
    found = load_labelled_splits(data, seed=0)
    assert sorted(found) == ["train", "validation"]
    good = found["train"].filter(lambda row: row["label"])["text"]
    assert all(text[-1] in "13579" for text in good)
    assert "films[test] has no labels: it is skipped." in caplog.text
    splits["train"] = Dataset.from_list(rows[:9] + unlabelled, features)
    with pytest.raises(ValueError, match="-1"):
        load_labelled_splits(data, seed=0)


def test_labels_of_equal_numbers_have_an_order(tmp_path):
    (tmp_path / "a.tsv").write_text("1\ta\n01\tb\n2\tc\nx\td\n" * 10)
    splits = load_labelled_splits(arguments(tmp_path / "a.tsv"), seed=0)
    assert splits["train"].features["label"].names == ["01", "1", "2", "x"]


def test_the_card_of_a_classifier_names_the_translator_that_it_started_from(run, tmp_path):
    train = write_texts(tmp_path / "train.tsv")
    flags = ("--train_file", train, "--start_from", "aiayn-en-de", "--max_steps", 1)
    options = ("--use_cpu", "true", "--report_to", "none", "--output_dir", tmp_path / "run")
    code, _, err = run("train_classifier.py", *flags, *options)
    assert code == 0, err
    card = ModelCard.load(tmp_path / "run" / "README.md")
    assert (card.data.base_model, card.data.license) == ("aiayn-en-de", "cc-by-2.0")
    assert "fine-tuned from aiayn-en-de with" in card.text and str(tmp_path) not in card.text


def test_texts_are_cut_to_the_length_of_training(run, tokenizer, tmp_path):
    """Learned positions end there, and one long line must not stop the others."""
    sizes = {"position_type": "learned", "max_position_embeddings": 6}
    model = small_model(AiaynForSequenceClassification, vocab_size=len(tokenizer), **sizes)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    texts = ("the dog", "the dog " * 50)
    code, out, err = run("classify.py", "--model", tmp_path, "--text", *texts)
    assert code == 0, err
    assert len(out.splitlines()) == 2
    code, _, err = run(
        "show_attention.py", "--model", tmp_path, "--text", texts[1], "--output", tmp_path / "a.svg"
    )
    assert code == 0, err


def test_texts_of_similar_length_are_classified_together(tokenizer):
    """The order of the predictions is that of the texts, also where it ends within a batch."""
    model = small_model(AiaynForSequenceClassification, vocab_size=len(tokenizer))
    model.config.max_position_embeddings = 64
    classifier = pipeline("text-classification", model=model, tokenizer=tokenizer)
    texts = [" ".join(["dog"] * (1 + 7 * number % 30)) for number in range(103)]
    shapes = []
    model.register_forward_pre_hook(
        lambda _, given, named: shapes.append(named["input_ids"].shape), with_kwargs=True
    )
    predictions = list(classify(classifier, texts, batch_size=3, pool_size=96))
    padded = sum(shape.numel() for shape in shapes)
    shapes.clear()
    singly = [classifier(text)[0] for text in texts]
    assert [each["label"] for each in predictions] == [each["label"] for each in singly]
    expected = [each["score"] for each in singly]
    assert [each["score"] for each in predictions] == pytest.approx(expected, abs=1e-5)
    assert len(set(expected)) > 20
    tokens = sum(shape.numel() for shape in shapes)
    assert tokens <= padded < 1.05 * tokens


def test_a_person_who_types_gets_each_answer_at_once(monkeypatch):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert pool_size(ClassifyFlags(model="a")) == 1
    assert pool_size(ClassifyFlags(model="a", text=["a"], batch_size=3)) == 96
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
    assert pool_size(ClassifyFlags(model="a")) == 1024
