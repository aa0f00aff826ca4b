"""Translations as lines of a file."""

from collections.abc import Callable, Iterable, Iterator

from .translator import Translation


def translation_lines(
    found: Iterable[list[Translation]],
    nbest: int = 1,
    with_scores: bool = False,
    alignment: Callable[[Translation], str] | None = None,
) -> Iterator[str]:
    """Format each translation as a line; columns are separated by tabs.

    Args:
        found: The translations of each sentence, best first.
        nbest: If more than 1, lines start with the number of their sentence, counted from 0.
        with_scores: Whether to add a column with the score.
        alignment: Returns the text of the last column. None: there is no such column.

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
            if len(columns) > 1:
                columns = [column.replace("\t", " ") for column in columns]
            yield "\t".join(columns)
