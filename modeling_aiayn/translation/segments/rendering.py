"""Write a translated sentence with its marks."""

from collections.abc import Iterator, Sequence

from .marks import Block, Mark
from .placement import Attention, Place, PlacedSentence

EMPHASIS = ("*", "**", "_", "__", "~", "~~")  # opening markup in Markdown


def translated_block(block: Block, translation: str, attention: Attention) -> str:
    """Return a translated sentence with its marks, which are placed by attention."""
    places = PlacedSentence(block.text, translation, attention).places(block.marks)
    return "".join(_rendered(block, block.marks, places, translation, 0, len(translation)))


def _rendered(
    block: Block, marks: Sequence[Mark], places: dict[Mark, Place], text: str, start: int, end: int
) -> Iterator[str]:
    """Yield the parts of a translated text from start to end, with the marks in it."""
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
            raw = f" {raw}"  # without a space, Markdown would join two code spans
        yield block.escape(text[here : place.start], raw)
        yield raw + place.after
        here, before = place.end, raw + place.after
    yield block.escape(text[here:end], "")
