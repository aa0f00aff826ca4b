"""A saved model knows its languages, and the commands use them."""

import json

import pytest
from transformers import AutoTokenizer

from modeling_aiayn.commands import flags
from modeling_aiayn.saved.languages import choose_languages, saved_languages, set_languages


@pytest.fixture
def french_folder(tokenizer, tmp_path):
    """A folder whose model translates from French to Swiss German."""
    copy = type(tokenizer)(tokenizer_object=tokenizer.backend_tokenizer)
    set_languages(copy, "fr", "gsw")
    copy.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_languages_are_saved_under_the_names_of_marian_and_kept(french_folder, tmp_path):
    settings = json.loads((french_folder / "tokenizer_config.json").read_text())
    assert (settings["source_lang"], settings["target_lang"]) == ("fr", "gsw")
    AutoTokenizer.from_pretrained(french_folder).save_pretrained(tmp_path / "again")
    assert saved_languages(tmp_path / "again") == ("fr", "gsw")


@pytest.mark.parametrize("place", ["source_tokenizer", "model"])
def test_an_exported_model_has_them_with_its_source_tokenizer(french_folder, tmp_path, place):
    exported = tmp_path / "exported"
    exported.mkdir()
    french_folder.rename(exported / place)
    assert saved_languages(exported) == (("fr", "gsw") if place == "source_tokenizer" else None)


@pytest.mark.parametrize("settings", [{}, {"source_lang": "fr"}])
def test_a_model_without_both_languages_has_none(tmp_path, settings):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert saved_languages(tmp_path) is None
    assert choose_languages(None, None, str(tmp_path)) == ("en", "de")
    assert choose_languages("fr", None, str(tmp_path)) == ("fr", "de")


def test_languages_of_a_repository_on_the_hub(french_folder, hub):
    files = {path.name: path.read_bytes() for path in french_folder.iterdir()}
    hub.repositories["me/french"] = {"main": ("0" * 40, files)}
    assert saved_languages("me/french", hub=True) == ("fr", "gsw")
    hub.repositories["me/bare"] = {"main": ("1" * 40, {"config.json": b"{}"})}
    assert saved_languages("me/bare", hub=True) is None


OWN = ("fr", "gsw")
CHOSEN = [(given, OWN) for given in ((None, None), ("fr", None), (None, "gsw"))]
CHOSEN += [
    ((None, "it"), ("fr", "it")),
    *((given, given) for given in (("gsw", "fr"), ("it", "it"))),
]


@pytest.mark.parametrize(("given", "chosen"), CHOSEN)
def test_the_model_completes_the_languages_and_another_direction_is_reported(
    french_folder, given, chosen, caplog
):
    assert choose_languages(*given, str(french_folder)) == chosen
    warning = f"{french_folder} was saved as a model from fr to gsw. The flags say from "
    warned = [] if chosen == OWN else [f"{warning}{chosen[0]} to {chosen[1]}."]
    assert caplog.messages == warned


@pytest.mark.parametrize(
    ("given", "model"), [(("gsw", None), True), ((None, "fr"), True), (("de", None), False)]
)
def test_one_flag_must_not_make_both_languages_the_same(french_folder, given, model):
    with pytest.raises(ValueError, match=r"are both '\w+'\. Pass both --source_lang and --target"):
        choose_languages(*given, str(french_folder) if model else None)


def test_commands_take_the_languages_of_the_model():
    assert saved_languages("aiayn-en-de") == ("en", "de")
    model = flags.ModelFlags(model=["aiayn-de-en"])
    pairs = flags.find_pairs(flags.PairFlags(), model)[0]
    assert (pairs.source_lang, pairs.target_lang) == ("de", "en")
    assert flags.sentence_preparation(flags.SourceFlags(), model)[0] == "de"
    assert flags.sentence_preparation(flags.SourceFlags(source_lang="nl"), model)[0] == "nl"
    pairs = flags.find_pairs(flags.PairFlags(), flags.ModelFlags(model=[]))[0]
    assert (pairs.source_lang, pairs.target_lang) == ("en", "de")


@pytest.mark.long
def test_a_model_is_trained_further_in_its_own_direction(run, tmp_path, monkeypatch):
    monkeypatch.setattr("modeling_aiayn.training.data.EMBEDDED_HELD_OUT_SIZE", 8)
    code, _, err = run(
        *("train_translation.py", "--start_from", "aiayn-de-en", "--output_dir", tmp_path / "out"),
        *("--lr_scheduler_type", "linear", "--learning_rate", 0.0001, "--warmup_steps", 0),
        *("--embedded_train_size", 20, "--max_steps", 1, "--max_tokens_per_batch", 300),
        *("--predict_with_generate", "false", "--report_to", "none", "--use_cpu", "true"),
    )
    assert code == 0, err
    assert saved_languages(tmp_path / "out") == ("de", "en")
    assert "language:\n- de\n- en\n" in (tmp_path / "out" / "README.md").read_text()
