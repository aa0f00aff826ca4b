"""Numbers that a translation has changed."""

import re
from difflib import SequenceMatcher
from unicodedata import decimal

# A whole number that is no part of a date, time, fraction or word, of 16 000, or of 1980's.
NUMBER = re.compile(
    r"(?<![\w.,:/'\u2019-])(?<!\d\s)(?:[0-9]{1,3}(?:[.,][0-9]{3})+|[0-9]+)"
    r"(?![.,:/]?\w|['\u2019-]\w|\s\d{3})"
)
DIGITS = re.compile(r"\d+")
# Scripts with words for 10,000 or without spaces: "1\u5104300\u4e07" is 103 million.
OTHER_SCRIPTS = re.compile("[\u0e00-\u1cff\u3040-\ud7ff]")
LEAST_DIGITS = 3  # fewer may be a time: 20 Uhr is 8 p.m.
MOST_PARTS = 4  # of a number, such as 1.234.567
SIMILARITY = 0.6  # of a changed number and the right one, at least


def with_numbers(text: str, translation: str) -> str:
    """Return a translation whose wrong numbers are replaced by similar ones of its sentence.

    A number is lost if the translation does not have its digits. Separators and zeros at the end do
    not count, and parts may have words between them: 250,000 may become "250 mil", and 3,500 "3 mil
    500". Round numbers are left alone, because the translation may have words for them.
    """
    if not DIGITS.search(text) or OTHER_SCRIPTS.search(translation):
        return translation
    known, written = _numbers(text), _numbers(translation)
    lost = [
        number
        for number in NUMBER.findall(text)
        if len(number) >= LEAST_DIGITS
        and len(digits := _digits(number)) > 1
        and digits not in written
    ]

    def right(found: re.Match[str]) -> str:
        number = found.group()
        if lost and _digits(number) not in known:
            likeness, best = max((_similarity(other, number), other) for other in lost)
            if likeness >= SIMILARITY:
                lost.remove(best)
                return re.sub("[.,]", "", best)
        return number

    return NUMBER.sub(right, translation) if lost else translation


def _similarity(number: str, other: str) -> float:
    """Return how many digits two numbers share; 0 if other is the end of number.

    A word for the rest may be before an end, as in "bin 250" for 1250.
    """
    number, other = _digits(number), _digits(other)
    ratio = SequenceMatcher(None, number, other).ratio()
    return 0.0 if number.endswith(other) else ratio


def _numbers(text: str) -> set[str]:
    """Return the digits of the numbers that a text may contain."""
    runs = DIGITS.findall(text)
    starts, sizes = range(len(runs)), range(1, MOST_PARTS + 1)
    return {_digits("".join(runs[start : start + size])) for start in starts for size in sizes}


def _digits(number: str) -> str:
    return "".join(str(decimal(sign, "")) for sign in number).strip("0")
