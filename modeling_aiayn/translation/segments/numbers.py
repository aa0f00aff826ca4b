"""Numbers that a translation has changed."""

import re
from difflib import SequenceMatcher
from unicodedata import decimal

from .marks import Mark

# A number that is no part of a date, time, fraction, word, or of 16 000, and no decade.
NUMBER = re.compile(
    r"(?<![\w.,:/'\u2019-])(?<!\d\s)(?:[0-9]{1,3}(?:[.,][0-9]{3})+|[0-9]+)"
    r"(?![.,:/]?\w|['\u2019-]\w|\s\d{3})"
)
DIGITS = re.compile(r"\d+")
# Scripts with words for 10,000 or without spaces: "1\u5104300\u4e07" is 103 million.
OTHER_SCRIPTS = re.compile("[\u0e00-\u1cff\u3040-\ud7ff]")
LEAST_DIGITS = 3  # that are not a time: 20 Uhr is 8 p.m.
MOST_PARTS = 4  # of a number, such as 1.234.567
SIMILARITY = 0.6  # of a changed number and the right one, at least
LOST_NUMBER = "lost number"  # name of marks


def lost_numbers(text: str, translation: str) -> list[Mark]:
    """Return marks for the numbers of a sentence that its translation may have changed.

    Separators and zeros at the end do not count, and parts may have words between them: 250,000 may
    become "250 mil", and 3,500 "3 mil 500". Round numbers are not sought, because the translation
    may have words for them.
    """
    can_be_wrong = DIGITS.search(text) and not OTHER_SCRIPTS.search(translation)
    if not can_be_wrong or not new_numbers(text, translation):
        return []
    written = _numbers(translation)
    return [
        Mark(*found.span(), "", written=re.sub("[.,]", "", found.group()), name=LOST_NUMBER)
        for found in NUMBER.finditer(text)
        if len(found.group()) >= LEAST_DIGITS
        and len(digits := _digits(found.group())) > 1
        and digits not in written
    ]


def new_numbers(text: str, translation: str) -> list[tuple[int, int]]:
    """Return the start and end of the numbers of a translation that its sentence does not have."""
    known = _numbers(text)
    found = NUMBER.finditer(translation)
    return [number.span() for number in found if _digits(number.group()) not in known]


def are_similar(number: str, other: str) -> bool:
    """Whether another number may be a mistake for a number: it has most of its digits.

    The last digits alone may follow a word for the first ones, as in "bin 250" for 1250.
    """
    number, other = _digits(number), _digits(other)
    ratio = SequenceMatcher(None, number, other).ratio()
    return ratio >= SIMILARITY and not number.endswith(other)


def _numbers(text: str) -> set[str]:
    """Return the numbers that a text may contain."""
    runs = DIGITS.findall(text)
    starts, sizes = range(len(runs)), range(1, MOST_PARTS + 1)
    return {_digits("".join(runs[start : start + size])) for start in starts for size in sizes}


def _digits(number: str) -> str:
    return "".join(str(decimal(sign, "")) for sign in number).strip("0")
