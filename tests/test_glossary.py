"""Glossaries: which terms a sentence has, and what its translation says."""

import pytest
from test_segments import EchoEngine
from transformers import pipeline

from modeling_aiayn.documents.document import Document
from modeling_aiayn.saved.loading import find_model
from modeling_aiayn.saved.tokenizers import load_tokenizer
from modeling_aiayn.tokenization import train_word_tokenizer
from modeling_aiayn.translation import Translator
from modeling_aiayn.translation.glossary import Glossary, read_terms
from modeling_aiayn.translation.segments.word_attention import word_attention

TERMS = {
    "dog": "Köter",
    "people": "Leute",
    "black dog": "=finster Hund",
    "New York": "Neu York",
    "Widget": "",
    "IT": "=",
}


@pytest.fixture(scope="module")
def tokenizer():
    """The bundled model's vocabulary."""
    return load_tokenizer(find_model("aiayn-en-de"))


@pytest.fixture(scope="module")
def translator():
    """The bundled model with a glossary."""
    return Translator.from_pretrained("aiayn-en-de", glossary=TERMS)


@pytest.fixture(scope="module")
def glossary(tokenizer):
    return Glossary(TERMS.items(), tokenizer, ("en", "de"))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The dogs and the DOG", ["Köter", "Köter"]),
        ("Two black dogs.", ["finster Hund"]),
        ("new york, New York, NEW YORK", ["Neu York"] * 2),  # names have capitals
        ("It is IT, or Widgets.", ["IT", "Widgets"]),
        ("dogma widget it", []),
        ("people,people", ["Leute", "Leute"]),
        ("", []),
    ],
)
def test_terms_are_found_by_their_stems(glossary, text, found):
    terms = glossary.terms(text)
    assert [term.mark().written for term in terms] == found
    for term in terms:
        assert term.end > term.start and text[term.start : term.end].strip()


def test_words_may_be_inflected_unless_they_are_exact(glossary, tokenizer):
    (people, dog) = glossary.terms("people with a dog")
    for text, is_in in (("mit Leuten.", True), ("die leute", True), ("eine Leuchte", False)):
        assert people.is_in(text) == is_in, text
    assert dog.is_in("Zwei Köters.") and not dog.is_in("Kö ter")
    (exact,) = glossary.terms("a black dog")
    assert exact.is_in("ein finster Hund, ja")
    assert not exact.is_in("ein finster Hunde") and not exact.is_in("Hund finster")
    terms = Glossary([("house", "Haus"), ("black", "schwarz")], tokenizer, ("en", "de"))
    (house, black) = terms.terms("houses in black")

    def written(term):
        return ["".join(tokenizer.convert_ids_to_tokens(form)) for form in term.forms]

    # After these the search may go on: Häus-er, schwarz-es.
    assert {"▁Haus", "▁Häus", "▁Hauses"} <= set(written(house))
    assert {"▁schwarz", "▁schwarzer", "▁Schwarz"} <= set(written(black))
    assert all(text.lower().startswith("▁schwarz") for text in written(black))


def test_scripts_without_blanks_have_terms_of_signs(tokenizer):
    terms = Glossary([("北京", "Peking"), ("犬", "Hund")], tokenizer, ("zh", "xx")).terms(
        "我在北京。"
    )
    assert [(x.start, x.end, x.mark().written) for x in terms] == [(2, 4, "Peking")]
    (term,) = Glossary([("dog", "犬小屋")], tokenizer, ("en", "ja")).terms("A dog.")
    assert term.is_in("私の犬小屋は") and not term.is_in("私の犬は小屋")


def test_one_of_several_translations_must_occur(tokenizer):
    (term,) = Glossary([("dog", "Hund"), ("dog", "Tier")], tokenizer, ("en", "de")).terms("A dog.")
    assert term.is_in("Ein Hund.") and term.is_in("Zwei Tiere.") and not term.is_in("Eine Katze.")


def test_terms_are_translated_at_every_entrance(translator):
    texts = ["A dog runs.", "I live in New York.", "Two people see the Widget."]
    (dog, york, widget) = translator(texts)
    assert dog.endswith("Köter rennt.") or "Köter läuft" in dog
    assert "Neu York" in york and "Leute" in widget and "Widget" in widget
    assert translator(texts, num_beams=1)[0].count("Köter") == 1  # by the attention
    (samples,) = translator.stream(
        ["A dog runs."], translator.search_options(do_sample=True, nbest=3)
    )
    assert all("Köter" in found.text for found in samples)
    (text,) = translator([" ".join(texts)], split_sentences=True)
    assert text == " ".join([dog, york, widget])
    pipe = pipeline("aiayn-translation", model=find_model("aiayn-en-de"), glossary=TERMS)
    assert pipe(texts[0])[0]["translation_text"] == dog
    document = Document("<p>A <b>dog</b> runs.</p>", "html", "en")
    found = document.translated(
        translator(document.sentences), lambda *pair: word_attention(translator, *pair)
    )
    assert found == "<p>" + dog.replace("Köter", "<b>Köter</b>") + "</p>"
    (kept,) = translator(["- Hello {name}, a dog runs. 😀"])
    assert kept.startswith("- ") and kept.endswith("😀")
    assert kept.count("{name}") == kept.count("Köter") == 1


def test_a_term_that_the_model_would_not_write_takes_the_place_of_its_word(tokenizer):
    translator = Translator(None, tokenizer, engine=EchoEngine())
    translator.use_glossary({"dog": "=Xyzzyx Qux", "The red": "=Q"})
    assert translator(["The red dog runs."]) == ["Q Xyzzyx Qux runs."]


def test_the_glossary_is_of_one_direction(glossary, tokenizer):
    translator = Translator(None, tokenizer, engine=EchoEngine())
    assert translator(["A dog."]) == ["A dog."]
    translator.use_glossary({"dog": "Hund"})
    assert translator(["A dog."]) == translator.directed(None)(["A dog."]) == ["A Hund."]


def test_errors(tokenizer, tmp_path):
    (tmp_path / "terms").write_text("dog\tHund\n\n cat \t= \nbird Vogel\n")
    with pytest.raises(ValueError, match=r"terms:4 must be a term, a tab, .* got 'bird Vogel'"):
        read_terms(tmp_path / "terms")
    (tmp_path / "terms").write_text("dog\tHund\n\n cat \t= \nred\t\n")
    assert read_terms(tmp_path / "terms") == [("dog", "Hund"), ("cat", "="), ("red", "")]
    words = train_word_tokenizer(["the dog", "der hund"], 1)
    with pytest.raises(ValueError, match="The vocabulary cannot write 'Katze'"):
        Glossary([("dog", "Hund"), ("cat", "Katze")], words, ("en", "de"))
