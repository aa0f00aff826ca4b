"""Texts in CAPITALS or In Title Case, written as a model has seen texts in training."""

import re

WORD = re.compile(r"[^\W\d_]+")
PRONOUN = re.compile(r"\bi\b")
# In a title, words of fewer letters may begin with a small letter.
LONG = 4


def has_capitals_alone(text: str) -> bool:
    """Whether a text has no small letter, and two words or more; one word may be an acronym."""
    words = [word for word in WORD.findall(text) if len(word) > 1]
    return len(words) > 1 and text.upper() == text


def is_title(text: str) -> bool:
    """Whether a text is a title.

    Either all words begin with a capital, three or more; or at least half of them, and among these
    all long ones, two or more.
    """
    words = [word for word in text.split() if word[0].isalpha()]
    is_capital = [word[0].isupper() for word in words]
    if all(is_capital):
        return len(words) > 2
    long_words = [word for word in words if sum(map(str.isalpha, word)) >= LONG]
    return (
        len(long_words) > 1
        and all(word[0].isupper() for word in long_words)
        and 2 * sum(is_capital) >= len(words)
    )


def natural_case(text: str, language: str) -> str:
    """A sentence with a capital at its beginning alone, if it is in capitals or a title.

    Other texts stay as they are. Names lose their capitals. No text changes its length.

    Args:
        text: A sentence.
        language: Its language, an ISO 639 code. English writes "I" with a capital.
    """
    if not (has_capitals_alone(text) or is_title(text)):
        return text
    small = "".join(sign.lower() if len(sign.lower()) == 1 else sign for sign in text)
    if language == "en":
        small = PRONOUN.sub("I", small)
    first = WORD.search(small)
    place = first.start() if first else 0
    capital = small[place].upper()
    return small if len(capital) > 1 else f"{small[:place]}{capital}{small[place + 1 :]}"
