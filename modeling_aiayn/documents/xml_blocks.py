"""Read the blocks of an XML document, such as OpenDocument, EPUB or XLIFF."""

import html
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from xml.dom import minidom
from xml.parsers.expat import ExpatError

from ..tokenization import has_words
from ..translation.segments.marks import Block, BlockBuilder
from .html_blocks import FIXED, INLINE, VOID, escape_html, name_set

DECLARATION = re.compile(r"\s*<\?xml[^>]*\?>\s*")
ENCODING = re.compile(r"""encoding\s*=\s*(?:"[^"]*"|'[^']*')""")
# HTML's named characters, which XHTML may contain: the parser would drop them.
NAMED = re.compile(r"<!\[CDATA\[.*?\]\]>|&(?!(?:amp|lt|gt|quot|apos);)\w+;", re.DOTALL)
# The placeholder of a text that is nested in another, such as a footnote, and the separator before
# each nested text. No XML document contains these characters.
NESTED, SEPARATOR = re.compile("\0(\\d+)\1"), "\0\0"
# Elements that begin or end a range, such as a bookmark, and attributes that name it.
RANGE = re.compile("(start|end)$", re.IGNORECASE)
RANGE_NAMES = ("w:id", "text:name", "text:change-id", "office:name")
# Plural and select messages (ICU), which are not translated.
FORMS = re.compile(r"\{\s*\w+\s*,\s*(?:plural|select|selectordinal)\s*,")


def tags(node: Any) -> tuple[str, str]:
    """Return the start tag and the end tag of an element."""
    return f"{node.cloneNode(False).toxml()[:-2]}>", f"</{node.tagName}>"


def is_kept(node: Any) -> bool:
    """Whether an element has translate="no"."""
    return node.localName is not None and node.getAttribute("translate") == "no"


def child_of(node: Any, name: str) -> Any:
    """Return the first child with a name, or None."""
    return next((child for child in node.childNodes if child.localName == name), None)


def range_of(node: Any) -> str:
    """Return the name of a range that begins and ends in the same parent element, or ""."""
    if not RANGE.search(node.localName or ""):
        return ""
    kind = RANGE.sub("", node.localName)
    name = next(filter(None, map(node.getAttribute, RANGE_NAMES)), "")
    both = [
        x
        for x in node.parentNode.childNodes
        if RANGE.sub("", x.localName or "") == kind and name in map(x.getAttribute, RANGE_NAMES)
    ]
    return f"{kind} {name}" if name and len(both) == 2 else ""


def _unescaped(found: re.Match[str]) -> str:
    return found[0] if found[0].startswith("<") else html.unescape(found[0])


@dataclass(frozen=True)
class Elements:
    """The roles of a format's elements, by their names without prefixes."""

    texts: frozenset[str]  # with text to translate
    inline: frozenset[str] = frozenset()  # around a part of a sentence
    atoms: frozenset[str] | None = None  # are copied; None: all others
    breaks: frozenset[str] = frozenset()  # end a sentence
    begins: frozenset[str] = frozenset()  # empty elements that start a mark; `ends` end it
    ends: frozenset[str] = frozenset()

    def parse(self, text: str) -> list[str | Block]:
        """Read a document of the format."""
        return XmlReader(self).read(text)

    def ends_sentence(self, node: Any) -> bool:
        """Whether a sentence ends at an element within a text."""
        is_other = self.atoms is not None and node.localName not in (None, *self.atoms)
        return node.localName in self.breaks or (is_other and not is_kept(node))

    def half_of(self, node: Any) -> tuple[bool, str] | None:
        """Return whether an empty element begins a mark (or ends it), and its name; else None."""
        if node.localName in self.begins | self.ends:
            return node.localName in self.begins, "pair"
        name = range_of(node)
        return (node.localName.lower().endswith("start"), name) if name else None


# The content or the styles of an OpenDocument text.
OPEN_DOCUMENT = Elements(
    texts=name_set("p h"),
    inline=name_set("span a ruby ruby-base meta meta-field"),
    breaks=name_set("line-break tab"),
)
# A page of an EPUB, or its table of contents, whose labels are in "text".
XHTML = Elements(
    texts=name_set("title body text"), inline=INLINE - FIXED - VOID, atoms=FIXED | (INLINE & VOID)
)
XLIFF = Elements(
    texts=name_set("source"),
    inline=name_set("g mrk pc"),
    begins=name_set("bpt bx sc"),
    ends=name_set("ept ex ec"),
)


class XmlReader:
    """Reads markup and blocks from a document."""

    def __init__(self, elements: Elements) -> None:
        self.elements = elements
        self.parts: list[str | Block] = []
        self._nested: list[Any] = []
        self._begin()

    def _begin(self) -> None:
        self._builder, self._raw, self.ranges = BlockBuilder(), "", {"start": "", "end": ""}

    def read(self, text: str) -> list[str | Block]:
        """Return markup and blocks; nested texts come last."""
        if "<!ENTITY" in text:
            raise ValueError("An XML document must not define entities.")
        found = DECLARATION.match(text)
        declaration = ENCODING.sub('encoding="UTF-8"', found.group()) if found else ""
        content = NAMED.sub(_unescaped, text[found.end() if found else 0 :])
        try:
            parsed = minidom.parseString((declaration + content).encode())
            self.parts.append(declaration)
            for node in parsed.childNodes:
                self.walk(node)
            for node in self._nested:  # walk() may append to it
                self.parts.append(SEPARATOR)
                self.walk(node)
        except ExpatError as error:
            raise ValueError(f"Invalid XML: {error}.") from error
        except RecursionError as error:
            raise ValueError("Invalid XML: its elements are nested too deeply.") from error
        return [part for part in self.parts if part]

    def walk(self, node: Any) -> None:
        """Read an element outside texts."""
        is_text = node.localName in self.elements.texts
        if is_kept(node) or not (is_text or self._has_texts(node)):
            self.parts.append(node.toxml())
            return
        opening, closing = tags(node)
        self.parts.append(opening)
        if is_text:
            self.read_text(node)
        else:
            for child in node.childNodes:
                self.walk(child)
        self.parts.append(closing)

    def read_text(self, node: Any) -> None:
        """Read the content of a text."""
        self._take_all(node)
        self._flush()

    def _has_texts(self, node: Any) -> bool:
        names = self.elements.texts if node.localName else ()
        return any(node.getElementsByTagNameNS("*", name) for name in names)

    def kept(self, node: Any) -> str:
        """Return an element that is copied. Texts in it are translated separately."""
        if not self._has_texts(node):
            return str(node.toxml())
        self._nested.append(node)
        return f"\0{len(self._nested) - 1}\1"

    def is_range(self, node: Any, raw: str) -> bool:
        """Whether an element begins or ends a range whose other half is in another text.

        Such an element then moves before or after the text.
        """
        side = RANGE.search(node.localName or "")
        if side and not range_of(node):
            self.ranges[side[1].lower()] += raw
            return True
        return False

    def _take_all(self, node: Any) -> None:
        for child in node.childNodes:
            self._take(child)

    def _take(self, node: Any) -> None:
        elements, name = self.elements, node.localName
        if node.nodeType in (node.TEXT_NODE, node.CDATA_SECTION_NODE):
            self._raw += node.toxml()
            self._builder.add_text(node.data, escape_html)
        elif name in elements.inline and not is_kept(node):
            opening, closing = tags(node)
            self._mark(self._builder.open, name, opening)
            self._take_all(node)
            self._mark(self._builder.close, name, closing)
        elif half := elements.half_of(node):
            mark = self._builder.open if half[0] else self._builder.close
            self._mark(mark, half[1], node.toxml())
        elif elements.ends_sentence(node):
            opening, closing = tags(node) if node.childNodes else (node.toxml(), "")
            self._flush()
            self.parts.append(opening)
            self._take_all(node)
            self._flush()
            self.parts.append(closing)
        else:
            raw = self.kept(node)
            self._raw += raw
            if not self.is_range(node, raw):
                self._builder.add_atom(raw)

    def _mark(self, mark: Callable[[str, str], None], name: str, raw: str) -> None:
        self._raw += raw
        mark(name, raw)

    def _flush(self) -> None:
        if has_words(self._builder.text):
            parts = self._builder.parts(escape_html)
            before, _, after = self._raw.partition(self._raw.strip())
            self.parts += [before, self.ranges["start"], *parts, self.ranges["end"], after]
        else:
            self.parts.append(self._raw)
        self._begin()


class XliffReader(XmlReader):
    """Writes the translation of each source without a target into a new target."""

    def walk(self, node: Any) -> None:
        """Read an element outside texts."""
        source, target = child_of(node, "source"), child_of(node, "target")
        if source is None:
            super().walk(node)
        elif is_kept(node) or (target and target.childNodes) or FORMS.search(source.toxml()):
            self.parts.append(node.toxml())
        else:
            opening, closing = tags(node)
            name = source.tagName.replace("source", "target")
            state = ' state="needs-review-translation"' if node.localName == "trans-unit" else ""
            self.parts.append(opening)
            for child in node.childNodes:
                self.parts.append("" if child is target else child.toxml())
                if child is (child_of(node, "seg-source") or source):
                    self.parts.append(f"<{name}{state}>")
                    self.read_text(source)
                    self.parts.append(f"</{name}>")
            self.parts.append(closing)


def with_nested(text: str) -> str:
    """Put the nested texts of a translated document into their places."""
    outer, *nested = text.split(SEPARATOR)

    def filled(part: str) -> str:
        return NESTED.sub(lambda found: filled(nested[int(found[1])]), part)

    return filled(outer)
