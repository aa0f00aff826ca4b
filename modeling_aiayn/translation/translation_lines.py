"""Translations as lines of a file."""

from collections.abc import Callable, Iterable

from .translator import Translation


def translation_lines(
    translations: Iterable[Translation],
    number: int | None = None,
    with_scores: bool = False,
    alignment: Callable[[Translation], str] | None = None,
) -> list[str]:
    """Format the translations of a sentence as lines; columns are separated by tabs.

    Args:
        translations: The translations, best first.
        number: The first column. None: there is no such column.
        with_scores: Whether to add a column with the score.
        alignment: Returns the text of the last column. None: there is no such column.

    Returns:
        The lines, without line ends.
    """
    lines = []
    for translation in translations:
        columns = [translation.text]
        if number is not None:
            columns.insert(0, str(number))
        if with_scores:
            columns.append(f"{translation.score:.4f}")
        if alignment is not None:
            columns.append(alignment(translation))
        if len(columns) > 1:
            columns = [column.replace("\t", " ") for column in columns]
        lines.append("\t".join(columns))
    return lines
