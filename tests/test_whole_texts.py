"""Texts of several sentences: nothing but the sentences changes."""

import pytest

from modeling_aiayn.documents.document import DocumentLines
from modeling_aiayn.translation import Translator
from modeling_aiayn.translation.segments.whole_texts import SplitText, paragraphs

TEXT = "  Dr. Smith pays e.g. 3.5 dollars.  We go!\n\n\tA dog runs.\r\n No end"


def test_texts_are_split_into_sentences_and_keep_their_blanks():
    found = SplitText.of(TEXT, "en")
    assert found.sentences == [
        *("Dr. Smith pays e.g. 3.5 dollars.", "We go!", "A dog runs.", "No end")
    ]
    assert found.joined(found.sentences) == TEXT
    assert found.joined(["1", "2", "3", "4"]) == "  1  2\n\n\t3\r\n 4"


@pytest.mark.parametrize(
    "text", ["", " \n\t ", "a\n", "«Â»\u2028b", "\x00 \ud7ff x", "x. Y\xa0. Y", "J. A\u3000.\u2003"]
)
def test_any_text_is_the_same_after_splitting(text):
    found = SplitText.of(text, "en")
    assert found.joined(found.sentences) == text


@pytest.mark.parametrize(
    "text", [TEXT, "", "\n", "\n\n a. B.\n\n", "x", "One. Two. Three.\n \nFour."]
)
def test_lines_come_back_when_their_last_sentence_is_translated(text):
    lines = text.split("\n")
    read = []
    whole = DocumentLines((read.append(line) or line for line in lines), "en")
    found = []
    for sentence in whole:
        found += whole.add(sentence)
        assert len(found) >= len(read) - 1  # no line waits for a later one
    assert found == lines


def test_a_text_is_translated_sentence_by_sentence(run, tmp_path):
    sentences = ["A dog runs.", "Two cats sleep.", "We see the key."]
    one, two, three = Translator.from_pretrained("aiayn-en-de")(sentences)
    text = f"{sentences[0]}  {sentences[1]}\n\n\t{sentences[2]}\n"
    (tmp_path / "letter").write_text(text)
    command = ("translate.py", "--format", "text", "--input", tmp_path / "letter")
    code, out, err = run(*command)
    assert (code, out) == (0, f"{one}  {two}\n\n\t{three}\n"), err


def test_wrapped_lines_are_joined_up_to_a_blank_line_or_an_item():
    lines = ["The dog runs on", "  the beach. ", "", "- A cat", "  sits.", "2. We see", "a car."]
    joined = ["The dog runs on the beach.", "", "- A cat sits.", "2. We see a car."]
    assert [*paragraphs(lines)] == joined


def test_several_sentences_in_a_text_are_warned_of_once(caplog):
    translator = Translator.from_pretrained("aiayn-en-de")
    translator(["A dog runs.", "See ./b/c. 102", "Mr. Smith runs."], num_beams=1)
    assert "several sentences" not in caplog.text
    translator(["A dog runs. A cat sits."], num_beams=1)
    translator.score(["A cat sits. A dog runs."], ["Eine Katze sitzt."])
    assert caplog.text.count("A text has several sentences: 'A dog runs. A cat sits.'") == 1
    translator(["A dog runs. A cat sits."] * 2, num_beams=1, split_sentences=True)
    assert caplog.text.count("several sentences") == 1
