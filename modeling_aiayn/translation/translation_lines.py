"""Translations as lines of a file."""

from collections.abc import Callable, Iterable, Iterator

from .translator import Translation


def translation_lines(
    found: Iterable[list[Translation]],
    nbest: int = 1,
    with_scores: bool = False,
    alignment: Callable[[Translation], str] | None = None,
) -> Iterator[str]:
    """A line for each translation; with more than its text, columns between tabs.

    Args:
        found: The translations of each sentence, best first.
        nbest: Of how many. With more than one, lines start with the number of their sentence,
            counted from 0.
        with_scores: Whether a column has each one's score.
        alignment: What the last column says of a translation. None: there is none.

    Yields:
        The lines, without line ends.
    """
    for number, translations in enumerate(found):
        for translation in translations:
            columns = [translation.text]
            if nbest > 1:
                columns.insert(0, str(number))
            if with_scores:
                columns.append(f"{translation.score:.4f}")
            if alignment is not None:
                columns.append(alignment(translation))
            is_text_alone = len(columns) == 1
            yield (
                columns[0]
                if is_text_alone
                else "\t".join(" ".join(column.split("\t")) for column in columns)
            )
