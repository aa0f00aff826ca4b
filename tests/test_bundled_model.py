"""The bundled models translate offline, as generate() does."""

import gzip
import re

import pytest
import torch
from conftest import MULTI30K
from huggingface_hub import ModelCard
from safetensors import safe_open
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForSeq2SeqLM

from modeling_aiayn.saved.loading import BUNDLED_MODELS, CHECKPOINTS
from modeling_aiayn.translation import Translator
from modeling_aiayn.translation.options import SearchOptions

SENTENCES = {
    "aiayn-en-de": [
        "A man rides a bicycle.",
        "Two children play football in the park.",
        "I don't know what you mean.",
        "The woman in the red dress is holding a small dog and talking to an old man.",
        "Where is the station?",
        "Tom has never been to Boston, has he?",
        "Several people are standing in front of a building with large windows.",
        "Go!",
    ],
    "aiayn-de-en": [
        "Ein Mann fährt Fahrrad.",
        "Zwei Kinder spielen im Park Fußball.",
        "Ich weiß nicht, was du meinst.",
        "Die Frau im roten Kleid hält einen kleinen Hund und spricht mit einem alten Mann.",
        "Wo ist der Bahnhof?",
        "Tom war noch nie in Boston, oder?",
        "Mehrere Leute stehen vor einem Gebäude mit großen Fenstern.",
        "Geh!",
    ],
}
# Words of the first two translations.
EXPECTED = {
    "aiayn-en-de": (("Mann", "Fahrrad"), ("Kinder", "Fußball")),
    "aiayn-de-en": (("man", "bicycle"), ("children", "park")),
}
# Of the first training run.
SEEDS = {"aiayn-en-de": "seed 42", "aiayn-de-en": "seed 1,"}


@pytest.fixture(scope="module", params=BUNDLED_MODELS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def folder(name):
    return CHECKPOINTS / name


@pytest.fixture(scope="module")
def translator(name):
    return Translator.from_pretrained(name)


def differences(translator, texts, num_beams):
    """Texts of which generate() with the same penalty and limits has other ids."""
    options = SearchOptions(num_beams=num_beams, length_penalty=1.0, length_normalization="power")
    ours = [best.token_ids for best, *_ in translator.stream(texts, options)]
    rows = [translator.source_tokenizer(text, return_tensors="pt").input_ids[0] for text in texts]
    penalty = {"length_penalty": 1.0} if num_beams > 1 else {}
    found = []
    for start in range(0, len(rows), 32):
        batch = pad_sequence(rows[start : start + 32], batch_first=True, padding_value=1)
        output = translator.model.generate(batch, num_beams=num_beams, **penalty)[:, 1:].tolist()
        found += [tuple(row[: row.index(2) + 1]) for row in output]
    return [text for text, a, b in zip(texts, ours, found, strict=True) if a != b]


def test_it_is_small_half_precision_and_has_no_code(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 9e6
    assert {path.suffix for path in files} == {".safetensors", ".json", ".md"}
    with safe_open(folder / "model.safetensors", "pt") as weights:
        assert {weights.get_slice(name).get_dtype() for name in weights.keys()} == {"F16"}  # noqa: SIM118
    # Trainers start in float32.
    assert AutoModelForSeq2SeqLM.from_pretrained(folder).dtype == torch.float32


def test_it_translates(name, translator):
    for text, words in zip(translator(SENTENCES[name][:2]), EXPECTED[name], strict=True):
        assert all(word in text for word in words)


@pytest.mark.parametrize("num_beams", [1, 4, 5])
def test_the_same_ids_as_generate(name, translator, num_beams):
    assert differences(translator, SENTENCES[name], num_beams) == []


def test_translations_do_not_depend_on_their_batch(name, translator):
    together = translator(SENTENCES[name])
    for batch_size in (1, 3):
        assert translator(SENTENCES[name], batch_size=batch_size) == together


@pytest.mark.slow
@pytest.mark.skipif(not MULTI30K.is_dir(), reason="needs Multi30k in ../shared/data")
def test_two_hundred_real_sentences(name, translator):
    """In bfloat16 at least 98 % do not depend on their batch."""
    path = MULTI30K / f"test_2016_flickr.{name.split('-')[1]}.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        texts = [next(file).strip() for _ in range(200)]
    for num_beams in (1, 4, 5):
        assert differences(translator, texts, num_beams) == []
    in_float32 = [translator(texts, batch_size=size) for size in (1, 7, 64)]
    assert in_float32[0] == in_float32[1] == in_float32[2]
    coarse = Translator.from_pretrained(name, dtype="bfloat16")
    alone, together = (coarse(texts, batch_size=size) for size in (1, 60))
    assert sum(a == b for a, b in zip(alone, together, strict=True)) >= 0.98 * len(texts)


def test_the_card_names_data_and_licence_and_gives_the_scores_as_metadata(name, folder):
    """The Hub reads them; its library must find the numbers of the card's own table."""
    card = ModelCard.load(folder / "README.md")
    for word in ("Tatoeba", "CC BY 2.0 FR", "Multi30k", "nrefs:1|case:mixed", SEEDS[name]):
        assert word in card.text
    rows = re.findall(
        r"^\| (Tatoeba|Multi30k).*? \| ([\d.]+) \| [\d.]+ \| ([\d.]+) \|", card.text, re.M
    )
    expected = []
    for name, bleu, chrf in rows:
        expected += [(name, "bleu", float(bleu)), (name, "chrf", float(chrf))]
    found = [
        (each.dataset_name.split()[0].strip(","), each.metric_type, each.metric_value)
        for each in card.data.eval_results
    ]
    assert len(found) == 4 and found == expected
