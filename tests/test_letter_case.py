"""Sentences in capitals and in title case, as a model has seen sentences."""

import pytest

from modeling_aiayn.translation import Translator
from modeling_aiayn.translation.letter_case import natural_case


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("TWO DOGS RUN, AND I'M HERE.", "Two dogs run, and I'm here."),
        ("A Man Rides A Bicycle.", "A man rides a bicycle."),
        ("The Man in the Moon Lands on Earth", "The man in the moon lands on earth"),
        ("A Dark-haired Man In A Hat Doesn't Run.", "A dark-haired man in a hat doesn't run."),
        ("A Man Is In", "A man is in"),
        ("Anna Runs", "Anna Runs"),
        ("  \u201cSTOP IT!\u201d", "  \u201cStop it!\u201d"),
        ("3 KINDER SPIELEN", "3 Kinder spielen"),
        # Neither capitals nor a title.
        ("A man in Paris rides a bicycle.", "A man in Paris rides a bicycle."),
        ("I met Anna and Tom.", "I met Anna and Tom."),
        ("NATO", "NATO"),
        ("\u8fd9\u662f DNA \u6d4b\u8bd5", "\u8fd9\u662f DNA \u6d4b\u8bd5"),
        ("\u0647\u0630\u0627 \u0627\u062e\u062a\u0628\u0627\u0631 DNA",) * 2,
        ("I", "I"),
        ("", ""),
        ("12 + 3", "12 + 3"),
        ("The USA and the NATO meet.", "The USA and the NATO meet."),
    ],
)
def test_only_capitals_and_titles_change(text, wanted):
    assert natural_case(text, "en") == wanted


def test_other_languages_have_no_capital_pronoun():
    assert natural_case("GLI AMICI E I CANI", "it") == "Gli amici e i cani"


def test_german_nouns_make_no_title():
    for text in ("Der Mann hat Hunde.", "Ein Mann mit Hut und Bart.", "Der Mann Hat Hunde"):
        assert natural_case(text, "de") == text
    assert natural_case("DER MANN HAT HUNDE.", "de") == "Der mann hat hunde."


def test_no_text_changes_its_length():
    for text in ("\u0130STANBUL B\u00dcY", "\u1e9e UND HIER", "\ufb01X DEN TAG", "\u01c5ABC DEF"):
        assert len(natural_case(text, "tr")) == len(text)


def test_the_command_restores_the_case_of_lines_and_documents(run):
    sentence = "Two dogs are playing in the snow."
    (wanted,) = Translator.from_pretrained("aiayn-en-de")([sentence])
    command = ("translate.py", "--restore_case", "true", "--text")
    code, out, err = run(*command, sentence.upper(), sentence.title(), sentence)
    assert (code, out.splitlines()) == (0, [wanted] * 3), err
    code, out, err = run(*command, f"<p>{sentence.upper()}</p>", "--format", "html")
    assert (code, out) == (0, f"<p>{wanted}</p>\n"), err
    marked = "TWO DOGS ARE PLAYING IN <b>THE SNOW</b>."
    code, out, err = run(*command, marked, "--format", "markdown")
    assert (code, out) == (0, wanted.replace("im Schnee", "im <b>Schnee</b>") + "\n"), err
