"""Convert texts in CAPITALS or In Title Case to the usual case of training texts."""

import re

WORD = re.compile(r"[^\W\d_]+")
PRONOUN = re.compile(r"\bi\b")
# Languages whose nouns begin with a capital: their ordinary sentences look like titles.
CAPITAL_NOUNS = ("de", "lb")
# In a title, words with fewer letters may begin in lower case.
LONG_WORD_LETTERS = 4


def is_in_capitals(text: str) -> bool:
    """Whether a text is in capitals and at least two of its words are in a script with case."""
    words = [word for word in WORD.findall(text) if len(word) > 1 and word.lower() != word]
    return len(words) > 1 and text.upper() == text


def is_title(text: str) -> bool:
    """Whether all words (3 or more) begin with a capital, or half of them and all long words."""
    words = [word for word in text.split() if word[0].isalpha()]
    is_capital = [word[0].isupper() for word in words]
    if all(is_capital):
        return len(words) > 2
    long_words = [word for word in words if sum(map(str.isalpha, word)) >= LONG_WORD_LETTERS]
    return (
        len(long_words) > 1
        and all(word[0].isupper() for word in long_words)
        and 2 * sum(is_capital) >= len(words)
    )


def natural_case(text: str, language: str) -> str:
    """Lower-case all letters but the first, if a sentence is IN CAPITALS or In Title Case.

    Other texts do not change, nor do titles in the languages of CAPITAL_NOUNS. Names lose their
    capitals. The length of a text never changes. language is an ISO 639 code.
    """
    if not is_in_capitals(text) and (language in CAPITAL_NOUNS or not is_title(text)):
        return text
    lowered = ((character, character.lower()) for character in text)
    small = "".join(lower if len(lower) == 1 else character for character, lower in lowered)
    if language == "en":
        small = PRONOUN.sub("I", small)
    first = WORD.search(small)
    index = first.start() if first else 0
    capital = small[index].upper()
    return small if len(capital) > 1 else f"{small[:index]}{capital}{small[index + 1 :]}"
