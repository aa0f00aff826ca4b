"""The formats of texts with several sentences. A new format is one entry of FORMATS."""

from collections.abc import Callable
from dataclasses import dataclass

from ..translation.segments.marks import Block
from ..translation.translator import check_package
from .html_blocks import Value, html_values, parse_html
from .markdown_blocks import parse_markdown


@dataclass(frozen=True)
class TextFormat:
    """A format of a text."""

    name: str  # by which commands and requests choose it
    endings: tuple[str, ...]  # of the names of its files
    # Reads a text: markup, which is copied, and blocks, which are translated.
    parse: Callable[[str], list[str | Block]]
    # Whether a text is read as one document. Without markup, each line is read alone.
    has_markup: bool = True
    packages: tuple[str, ...] = ()  # optional packages that it needs, and the extra with them
    extra: str = "documents"
    values: Callable[[str], list[Value]] = lambda _: []  # of attributes that are translated

    def check_packages(self) -> None:
        """Check that the packages are installed."""
        for package in self.packages:
            check_package(package, self.extra)


def parse_plain(text: str) -> list[str | Block]:
    """Read a text without markup: one block."""
    return [Block(text, [], lambda translated, _: translated)]


FORMATS = {
    text_format.name: text_format
    for text_format in (
        TextFormat("text", (".txt",), parse_plain, has_markup=False),
        TextFormat("html", (".html", ".htm"), parse_html, values=html_values),
        TextFormat("markdown", (".md", ".markdown"), parse_markdown, packages=("markdown_it",)),
    )
}
