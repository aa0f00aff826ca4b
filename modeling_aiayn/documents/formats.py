"""The formats of texts with several sentences. To add a format, add an entry to FORMATS."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..translation.segments.marks import Block
from ..translation.translator import check_package
from .catalogues import parse_po
from .html_blocks import Value, html_values, parse_html
from .markdown_blocks import parse_markdown
from .subtitles import parse_srt, parse_vtt, without_breaks
from .word_blocks import WordReader, with_runs
from .xml_blocks import OPEN_DOCUMENT, XHTML, XLIFF, XliffReader, with_nested

Parts = list[str | Block]


@dataclass(frozen=True)
class TextFormat:
    """A format of a text."""

    name: str  # its name in commands and requests
    endings: tuple[str, ...]  # of file names
    # Splits a text into markup, which is copied, and blocks, which are translated.
    parse: Callable[[str], Parts]
    # Whether a text is read as one document. Without markup, each line is read alone.
    has_markup: bool = True
    packages: tuple[str, ...] = ()  # optional packages that it needs; `extra` installs them
    extra: str = "documents"
    values: Callable[[str], list[Value]] = lambda _: []  # attribute values to translate
    finish: Callable[[str], str] = str  # the last step, on the translated text
    members: str | None = None  # in a zip: pattern of the files with text

    def check_packages(self) -> None:
        """Check that the packages are installed."""
        for package in self.packages:
            check_package(package, self.extra)


def parse_plain(text: str) -> Parts:
    """Read a text without markup: one block."""
    return [Block(text, [], lambda translated, _: translated)]


def parse_xliff(text: str) -> Parts:
    """Read XLIFF 1.2 or 2: sources without a target get one."""
    return XliffReader(XLIFF).read(text)


def parse_word(text: str) -> Parts:
    """Read a part of a Word document."""
    return WordReader().read(text)


PAGES = r".*\.(x?html?|ncx)"
CONTENT = r"(content|styles)\.xml"
WORD = r"word/(document|header|footer|footnotes|endnotes)\d*\.xml"
FORMATS = {
    text_format.name: text_format
    for text_format in (
        TextFormat("text", (".txt",), parse_plain, has_markup=False),
        TextFormat("html", (".html", ".htm"), parse_html, values=html_values),
        TextFormat("markdown", (".md", ".markdown"), parse_markdown, packages=("markdown_it",)),
        TextFormat("srt", (".srt",), parse_srt, finish=without_breaks),
        TextFormat("vtt", (".vtt",), parse_vtt, finish=without_breaks),
        TextFormat("po", (".po", ".pot"), parse_po, packages=("polib",)),
        TextFormat("xliff", (".xlf", ".xliff"), parse_xliff, finish=with_nested),
        TextFormat("docx", (".docx",), parse_word, finish=with_runs, members=WORD),
        TextFormat("odt", (".odt",), OPEN_DOCUMENT.parse, finish=with_nested, members=CONTENT),
        TextFormat("epub", (".epub",), XHTML.parse, finish=with_nested, members=PAGES),
    )
}
ENDINGS = [ending for text_format in FORMATS.values() for ending in text_format.endings]


def format_of(path: str | Path) -> TextFormat | None:
    """Return the format for the ending of a file's name, or None."""
    name = str(path).lower()
    return next((x for x in FORMATS.values() if name.endswith(x.endings)), None)
