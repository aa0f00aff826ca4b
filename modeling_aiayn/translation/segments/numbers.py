"""Numbers that a translation has lost or changed."""

import re
from unicodedata import decimal

from .marks import Mark

# A number of three or more digits that is no part of a date, time, fraction, word, or 16 000.
NUMBER = re.compile(r"(?<![\w.,:/-])(?<!\d\s)(?:\d{1,3}(?:[.,]\d{3})+|\d{3,})(?![.,:/]?\w)")
# Digits alone, and digits with one other character between them.
RUN, CHAIN = re.compile(r"\d+"), re.compile(r"\d+(?:\D\d+)+")


def lost_numbers(text: str, translation: str) -> list[Mark]:
    """Return marks that write the numbers of a sentence which its translation lacks.

    Separators and zeros at the end do not count: 250,000 may become "250 mil" or "25万". A
    translation without digits may have words for a round number, such as "hundert" for 100.
    """
    numbers = [(_digits(found.group()), found) for found in NUMBER.finditer(text)]
    runs = [*RUN.findall(translation), *CHAIN.findall(translation)] if numbers else []
    written = {_digits(run) for run in runs}
    return [
        Mark(*found.span(), "", written=found.group())
        for digits, found in numbers
        if digits not in written and (written or len(digits) > 1)
    ]


def _digits(number: str) -> str:
    return "".join(str(decimal(sign, "")) for sign in number).strip("0")
