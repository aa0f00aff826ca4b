"""Fine-tuning by the command: what is kept, what is trained, what is saved, and what is rejected."""

import json
import shutil

import pytest
import torch
import yaml
from conftest import small_model
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_aiayn.data.corpus import embedded_pairs
from modeling_aiayn.saved.loading import CHECKPOINTS
from modeling_aiayn.saved.publishing import files_to_publish
from modeling_aiayn.training import AiaynTrainingArguments
from modeling_aiayn.training.fine_tuning import (
    FineTuningArguments,
    SavedModel,
    check_both_directions,
)
from modeling_aiayn.training.setup import ModelArguments
from modeling_aiayn.translation import Translator
from modeling_aiayn.translation.evaluation import evaluate_translation

SCHEDULE = ("--lr_scheduler_type", "linear", "--learning_rate", 0.01, "--warmup_steps", 0)
SHORT = (
    *("--embedded_train_size", 60, "--max_steps", 4, "--max_tokens_per_batch", 800),
    *("--predict_with_generate", "false", "--report_to", "none", "--use_cpu", "true"),
)


@pytest.fixture
def tune(run, tmp_path, model_folder, monkeypatch):
    """Fine-tune a copy of the model in runs/base, and return the folder of the run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("modeling_aiayn.training.data.EMBEDDED_HELD_OUT_SIZE", 4)
    shutil.copytree(model_folder, "runs/base")
    # A random model ends no sentence: let its translations be short.
    config = json.loads((tmp_path / "runs/base/generation_config.json").read_text())
    short = json.dumps(config | {"max_tokens_beyond_source": 3})
    (tmp_path / "runs/base/generation_config.json").write_text(short)

    def tuned(*flags, output="runs/tuned", base="runs/base"):
        code, out, err = run(
            *("train_translation.py", "--start_from", base, "--output_dir", output),
            *(*SCHEDULE, *SHORT, *flags),
        )
        assert code == 0, err
        return tmp_path / output, out

    return tuned


def weights_of(folder):
    return load_file(folder / "model.safetensors")


def card_of(folder):
    return yaml.safe_load((folder / "README.md").read_text("utf-8").split("---")[1])


def test_a_saved_model_is_trained_further_with_its_own_vocabulary(tune, tmp_path):
    folder, out = tune("--config_overrides", "{dropout: 0.0, attention_dropout: 0.25}")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.get_vocab() == AutoTokenizer.from_pretrained("runs/base").get_vocab()
    assert (folder / "tokenizer_config.json").read_text().count("local") == 0
    config = AutoConfig.from_pretrained(folder)
    assert (config.dropout, config.attention_dropout) == (0.0, 0.25)
    before, after = weights_of(tmp_path / "runs" / "base"), weights_of(folder)
    assert before.keys() == after.keys()
    assert all(not torch.equal(before[name], after[name]) for name in before)
    scores = json.loads((folder / "scores.json").read_text())
    pairs = embedded_pairs("test", 4, "en", "de")
    expected, _ = evaluate_translation(Translator.from_pretrained("runs/base"), pairs)
    assert scores["before"] == pytest.approx(expected)
    assert scores["perplexity"] < 0.9 * expected["perplexity"]
    assert "before  after" in out
    assert f"perplexity           {expected['perplexity']:6.2f} {scores['perplexity']:6.2f}" in out


@pytest.mark.long
def test_a_student_starts_from_some_layers_of_its_teacher(tune, tmp_path):
    depth = ("--config_overrides", "{dropout: 0.0, decoder_layers: 1}")
    base = json.loads((tmp_path / "runs" / "base" / "config.json").read_text())
    assert base["decoder_layers"] > 1
    folder, _ = tune(*depth, "--save_strategy", "steps", "--save_steps", 2)
    config = AutoConfig.from_pretrained(folder)
    assert (config.decoder_layers, config.encoder_layers) == (1, base["encoder_layers"])
    first = weights_of(folder)
    layers = {name.split(".")[3] for name in first if "decoder.layers" in name}
    assert layers == {"0"}
    (folder / "finished.json").unlink()
    shutil.rmtree(folder / "checkpoint-4")
    resumed, _ = tune(*depth, "--save_strategy", "steps", "--save_steps", 2, "--resume", "auto")
    again = weights_of(resumed)
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_the_card_names_the_base_model_and_no_folder_of_this_machine(tune, tmp_path):
    folder, _ = tune(base=tmp_path / "runs" / "base")
    card = card_of(folder)
    # The base has no card, so nobody knows its licence.
    assert (card["base_model"], card["license"]) == ("base", "other")
    results = ModelCard.load(folder / "README.md").data.eval_results
    assert {"bleu", "chrf", "perplexity"} <= {each.metric_type for each in results}
    assert "fine-tuned from base" in (folder / "README.md").read_text()
    for path in folder.glob("*.*"):
        if path.suffix in (".json", ".md"):
            assert str(tmp_path) not in path.read_text("utf-8"), path
    assert files_to_publish(folder)


@pytest.mark.long
def test_lora_saves_a_small_adapter_that_is_merged_on_request(tune, tmp_path):
    lora = ("--lora_rank", 3, "--save_strategy", "steps", "--save_steps", 2)
    folder, _ = tune(*lora)
    assert not (folder / "model.safetensors").exists()
    base_size = (tmp_path / "runs" / "base" / "model.safetensors").stat().st_size
    adapter = load_file(folder / "adapter_model.safetensors")
    assert all(min(matrix.shape) == 3 for matrix in adapter.values())
    assert sum(matrix.nbytes for matrix in adapter.values()) < base_size
    settings = json.loads((folder / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == "runs/base"
    assert card_of(folder)["library_name"] == "peft"
    assert "Translator.from_pretrained" in (folder / "README.md").read_text()
    merged, _ = tune(*lora, "--merge_lora", "true", output="runs/merged")
    assert not list(merged.glob("adapter*")) and (merged / "modeling_aiayn.py").exists()
    scores = [json.loads((path / "scores.json").read_text()) for path in (folder, merged)]
    assert scores[0] == scores[1] and scores[0]["perplexity"] < scores[0]["before"]["perplexity"]
    whole = AutoModelForSeq2SeqLM.from_pretrained(merged)
    expected = Translator.from_pretrained(folder).model.state_dict()
    for name, weight in whole.state_dict().items():
        torch.testing.assert_close(weight, expected[name])
    assert card_of(merged)["library_name"] == "transformers"
    # A stopped translation must not go on with another base.
    fingerprint = Translator.from_pretrained(folder).engine.fingerprint
    base = AutoModelForSeq2SeqLM.from_pretrained("runs/base")
    base.model.encoder.layers[0].fc1.bias.data += 1
    base.save_pretrained("runs/base")
    assert Translator.from_pretrained(folder).engine.fingerprint != fingerprint
    check_that_an_adapter_of_a_local_base_is_not_published(folder)


def test_an_adapter_is_merged_in_the_precision_in_which_it_was_trained(tune):
    """In the base's half precision, small updates would be rounded away."""
    base = AutoModelForSeq2SeqLM.from_pretrained("runs/base")
    base.to(torch.bfloat16).save_pretrained("runs/base")
    folder, _ = tune("--lora_rank", 3, "--merge_lora", "true")
    weights = weights_of(folder)
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    trained = weights["model.encoder.layers.0.fc1.weight"]
    assert not torch.equal(trained, trained.bfloat16().float())


@pytest.mark.long
def test_an_adapter_is_no_base_of_another_but_may_be_trained_as_a_whole(tune, run):
    tune("--lora_rank", 3, output="runs/first")
    flags = ("--start_from", "runs/first", "--output_dir", "runs/second", *SCHEDULE, *SHORT)
    code, _, err = run("train_translation.py", *flags, "--lora_rank", 5)
    assert code == 1 and "runs/first holds an adapter" in err
    folder, _ = tune(base="runs/first", output="runs/third")
    before = json.loads((folder.parent / "first" / "scores.json").read_text())
    scores = json.loads((folder / "scores.json").read_text())
    assert scores["before"]["perplexity"] == pytest.approx(before["perplexity"], rel=1e-5)


@pytest.mark.long
def test_a_run_resumes_only_with_the_same_trained_parameters_and_base(tune, run):
    lora = ("--lora_rank", 3, "--save_strategy", "steps", "--save_steps", 2)
    folder, _ = tune(*lora)
    whole = load_file(folder / "adapter_model.safetensors")
    for path in (folder / "finished.json", folder / "checkpoint-4"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    command = ("train_translation.py", "--start_from", "runs/base", "--output_dir", folder)
    flags = (*SCHEDULE, *SHORT, "--save_strategy", "steps", "--save_steps", 2)
    code, _, err = run(*command, *flags, "--lora_rank", 3)
    assert code == 1 and "already holds a run" in err
    code, _, err = run(*command, *flags, "--lora_rank", 5, "--resume", "auto")
    assert code == 1 and "number of trained parameters was" in err
    code, _, err = run(*command, *flags, "--lora_rank", 3, "--resume", "auto")
    assert code == 0, err
    for name, matrix in load_file(folder / "adapter_model.safetensors").items():
        assert torch.equal(matrix, whole[name]), name
    model = AutoModelForSeq2SeqLM.from_pretrained("runs/base")
    with torch.no_grad():
        model.model.encoder.layers[0].fc1.weight.add_(1)
    model.save_pretrained("runs/base")
    longer = ("--lora_rank", 3, "--max_steps", 6, "--resume", "auto")
    code, _, err = run(*command, *flags, *longer)
    assert code == 1 and "frozen weights changed" in err


@pytest.mark.parametrize(
    ("parts", "frozen"),
    [
        (["encoder"], lambda name: name.startswith("model.encoder.") and "embed" not in name),
        (["embeddings"], lambda name: "embed_tokens" in name),
    ],
    ids=["encoder", "embeddings"],
)
def test_frozen_parts_keep_their_weights(tune, tmp_path, parts, frozen):
    folder, _ = tune("--freeze", *parts)
    before, after = weights_of(tmp_path / "runs" / "base"), weights_of(folder)
    for name in before:
        assert torch.equal(before[name], after[name]) == frozen(name), name


def test_new_tokens_are_whole_tokens_with_trained_rows(tune, tmp_path, caplog):
    lines = "".join(
        f"<2de> {pair['source']}\t{pair['target']}\n"
        for pair in embedded_pairs("train", 30, "en", "de")
    )
    (tmp_path / "tagged.tsv").write_text(lines)
    files = [part for name in ("train", "validation") for part in (f"--{name}_file", "tagged.tsv")]
    files += ["--embedded_train_size", 20_000]  # its default: the flag has no effect with files
    folder, _ = tune("--add_tokens", "<2de>", "<2fr>", *files)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    size = len(AutoTokenizer.from_pretrained("runs/base"))
    assert [tokenizer.get_vocab()[token] for token in ("<2de>", "<2fr>")] == [size, size + 1]
    ids = [tokenizer(text).input_ids for text in ("<2de> The dog.", "The dog.")]
    assert ids[0] == [size, *ids[1]]
    assert tokenizer("<2fr><2de> The dog.").input_ids == [size + 1, size, *ids[1]]
    assert weights_of(folder)["model.encoder.embed_tokens.weight"].size(0) == size + 2
    caplog.clear()
    translator = Translator.from_pretrained(folder)
    typed = translator(["<2de> We see."])
    assert "another tokenizer" not in caplog.text
    # A language that is given is the same tag, and makes tags in the text text.
    assert translator.languages == ["de", "fr"]
    assert translator(["We see."], target_lang="de") == typed
    german = translator.directed(("en", "de")).encode("<2fr> We see.")
    assert german[0] == size and size + 1 not in german
    assert translator.encode("<2fr> We see.")[0] == size + 1
    with pytest.raises(ValueError, match="of the model's 2 languages"):
        translator(["We see."], target_lang="es")


def test_tokens_are_added_to_the_source_of_two_vocabularies(tmp_path, tokenizer):
    model = small_model(vocab_size=len(tokenizer), decoder_vocab_size=len(tokenizer) + 3)
    model.save_pretrained(tmp_path)
    for folder in (tmp_path, tmp_path / "target_tokenizer"):
        tokenizer.save_pretrained(folder)
    args = AiaynTrainingArguments(tmp_path / "run", lr_scheduler_type="linear", learning_rate=1e-3)
    flags = FineTuningArguments(start_from=str(tmp_path), add_tokens=["<2de>"])
    saved = SavedModel(flags, ModelArguments(), args, ("en", "de"))
    source, target = saved.tokenizers()
    assert (len(source), len(target)) == (len(tokenizer) + 1, len(tokenizer))
    with pytest.raises(ValueError, match=r"the model of start_from has another\. Remove"):
        check_both_directions(source, target)
    built = saved.build()
    assert built.config.vocab_size == len(source)
    assert built.lm_head.out_features == built.config.decoder_vocab_size == len(tokenizer) + 3
    assert built(torch.tensor([[len(source) - 1, 2]]), labels=torch.tensor([[4, 2]])).loss > 0


@pytest.mark.long
def test_the_bundled_model_is_a_base_with_a_name_and_a_licence(tune):
    folder, _ = tune("--lora_rank", 2, "--max_steps", 1, base="aiayn-en-de")
    assert (card_of(folder)["base_model"], card_of(folder)["license"]) == (
        "aiayn-en-de",
        yaml.safe_load((CHECKPOINTS / "aiayn-en-de" / "README.md").read_text().split("---")[1])[
            "license"
        ],
    )
    settings = json.loads((folder / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == "aiayn-en-de"
    assert Translator.from_pretrained(folder)(["A dog runs."])


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Could not find a config file in me/base:UserWarning")
def test_a_repository_of_the_hub_is_a_base(tune, hub, model_folder, tmp_path):
    files = {path.name: path.read_bytes() for path in model_folder.iterdir() if path.is_file()}
    hub.repositories["me/base"] = {"main": ("0" * 40, files)}
    folder, _ = tune("--hub", "true", "--lora_rank", 3, base="me/base")
    assert card_of(folder)["base_model"] == "me/base"
    assert Translator.from_pretrained(folder, hub=True)(["We see."])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--start_from", "BASE", "--output_dir", "BASE", "--resume", "auto"],
            "holds a model, but no run to resume",
        ),
        (["--freeze", "encoder"], "freeze needs start_from"),
        (
            ["--start_from", "BASE", "--freeze", "embeddings", "--add_tokens", "<2de>"],
            "add_tokens cannot be combined with freeze embeddings",
        ),
        (["--start_from", "BASE", "--vocab_size", "900"], "vocab_size cannot be given with start"),
        (
            ["--start_from", "BASE", "--config_overrides", "{d_model: 32}"],
            "d_model belongs to the saved model",
        ),
        (
            [
                "--start_from",
                "BASE",
                "--lora_rank",
                "2",
                "--config_overrides",
                "{decoder_layers: 1}",
            ],
            "config_overrides may set dropout, attention_dropout, activation_dropout;",
        ),
    ],
)
def test_flags_that_do_not_fit_are_rejected_in_one_line(
    run, model_folder, tmp_path, flags, message
):
    flags = [str(model_folder) if flag == "BASE" else flag for flag in flags]
    code, out, err = run(
        "train_translation.py", *SCHEDULE, "--output_dir", tmp_path / "run", *flags
    )
    assert (code, out) == (1, "")
    error = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(error) == 1 and message in error[0]


def test_the_schedule_of_random_weights_is_rejected(run, model_folder, tmp_path):
    output = ("--output_dir", tmp_path / "run")
    code, _, err = run("train_translation.py", "--start_from", model_folder, *output)
    assert code == 1 and "Pass the recipe finetune.yaml, or --lr_scheduler_type" in err


@pytest.mark.long
def test_a_merged_run_can_be_made_longer(tune, tmp_path):
    """The longer run's adapter must not be added to the merged weights of the shorter one."""
    lora = ("--lora_rank", 3, "--save_strategy", "steps", "--save_steps", 2)
    lora += ("--lr_scheduler_type", "constant")
    folder, _ = tune(*lora, "--merge_lora", "true")
    tune(*lora, "--merge_lora", "true", "--max_steps", 6, "--resume", "auto")
    whole, _ = tune(*lora, "--max_steps", 6, output="runs/whole")
    expected = Translator.from_pretrained(whole).model.state_dict()
    assert not list(folder.glob("adapter*"))
    for name, weight in Translator.from_pretrained(folder).model.state_dict().items():
        torch.testing.assert_close(weight, expected[name])
    # Merging removes the adapter's parameters.
    number = sum(weight.numel() for weight in weights_of(folder).values())
    assert f"It has {number:,} parameters" in (folder / "README.md").read_text()


def check_that_an_adapter_of_a_local_base_is_not_published(folder):
    with pytest.raises(ValueError, match=r"holds an adapter of the folder runs/base"):
        files_to_publish(folder)
    settings = json.loads((folder / "adapter_config.json").read_text())
    settings["base_model_name_or_path"] = "me/base"
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    names = {path.name for path in files_to_publish(folder)}
    assert {"adapter_model.safetensors", "adapter_config.json", "tokenizer.json"} <= names


def test_the_recipe_keeps_the_best_epoch(run, tune, tmp_path):
    """With its own schedule and epochs; the base's card is not valid YAML."""
    (tmp_path / "runs" / "base" / "README.md").write_text("---\nlicense: [\n---\n")
    code, _, err = run(
        *("train_translation.py", "finetune.yaml", "--start_from", "runs/base"),
        *("--output_dir", "runs/recipe", "--embedded_train_size", 60, "--num_train_epochs", 2),
        *("--max_tokens_per_batch", 900, "--use_cpu", "true", "--lora_rank", 3),
    )
    assert code == 0, err
    card = (tmp_path / "runs" / "recipe" / "README.md").read_text()
    assert "the checkpoint with the best validation loss" in card and "license: other" in card


def test_a_run_does_not_overwrite_the_model_that_it_starts_from(run, model_folder, tmp_path):
    model_folder = shutil.copytree(model_folder, tmp_path / "model")
    (model_folder / ".pid").write_text("1\n")  # a run whose checkpoints were deleted
    folders = ("--start_from", model_folder, "--output_dir", model_folder)
    code, _, err = run("train_translation.py", *SCHEDULE, *folders, "--resume", "auto")
    assert code == 1 and "output_dir must not be the folder of start_from" in err
