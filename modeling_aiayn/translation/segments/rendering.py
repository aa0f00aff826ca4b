"""A translated block, with its marks."""

from collections.abc import Iterator, Sequence
from itertools import accumulate

from .marks import Block, Mark
from .placement import Attention, Place, PlacedSentence
from .whole_texts import SplitText

EMPHASIS = ("*", "**", "_", "__", "~", "~~")  # opening markup in Markdown


def translated_block(
    block: Block, split: SplitText, translations: list[str], attention: Attention
) -> str:
    """The text of a block's translated sentences, with its marks where the attention says."""
    places: dict[Mark, Place] = {}
    starts = _starts(split, split.sentences)
    bounds = [0, *starts[1:], len(block.text) + 1]
    target = split.joined(translations)
    shifts = _starts(split, translations)
    for index, (start, source) in enumerate(zip(starts, split.sentences, strict=True)):
        atom_range = range(bounds[index], bounds[index + 1])
        sentence = PlacedSentence(
            *(block.text, start, start + len(source), atom_range, translations[index], attention)
        )
        for mark, place in sentence.places(block.marks).items():
            begin = places[mark].start if mark in places else place.start + shifts[index]
            places[mark] = Place(begin, place.end + shifts[index], place.before, place.after)
    return "".join(_rendered(block, block.marks, places, target, 0, len(target)))


def _starts(split: SplitText, sentences: Sequence[str]) -> list[int]:
    """Where sentences begin in their joined text."""
    lengths = (
        len(sentence) + len(blank)
        for sentence, blank in zip(sentences, split.blanks[1:], strict=True)
    )
    return list(accumulate(lengths, initial=len(split.blanks[0])))[:-1]


def _rendered(
    block: Block, marks: Sequence[Mark], places: dict[Mark, Place], text: str, start: int, end: int
) -> Iterator[str]:
    """The parts of a translated text from start to end, with the marks in it."""
    here, before = start, ""
    for mark in sorted(marks, key=lambda mark: (places[mark].start, places[mark].end)):
        place = places[mark]
        inner = mark.written or "".join(
            _rendered(block, mark.inner, places, text, place.start, place.end)
        )
        # Markdown reads delimiters without text between them, such as ****, as text.
        if mark.opening in EMPHASIS and not inner.strip():
            continue
        if mark.written and place.start == place.end:
            inner = f" {inner}"
        raw = f"{place.before}{mark.opening}{inner}{mark.closing}"
        if here == place.start and before.endswith("`") and raw.startswith("`"):
            raw = f" {raw}"  # two spans of code without a blank would be one
        yield block.escape(text[here : place.start], raw)
        yield raw + place.after
        here, before = place.end, raw + place.after
    yield block.escape(text[here:end], "")
