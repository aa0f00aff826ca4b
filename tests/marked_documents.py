"""Documents with markup, of the embedded grammar's sentences, and the places their marks should get.

python tests/marked_documents.py runs/demo translates 300 of them and scores the places.
"""

import random
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from html.parser import HTMLParser

from markdown_it import MarkdownIt

from modeling_aiayn.data.embedded_corpus import AlignedPair, generate_pairs
from modeling_aiayn.documents.document import Document
from modeling_aiayn.documents.formats import FORMATS
from modeling_aiayn.documents.html_blocks import VOID
from modeling_aiayn.translation import Translator
from modeling_aiayn.translation.segments.marks import Block
from modeling_aiayn.translation.segments.placement import units_of
from modeling_aiayn.translation.segments.word_attention import word_attention

# Code, pictures and addresses, which stay as they are.
ATOMS = {
    "html": ("<code>x &lt; y</code>", '<img src="a.png">', "<!-- no -->", "https://a.b/c?d=e"),
    "markdown": ("`x < y`", "![A pic](a.png)", "<kbd>Ctrl</kbd>", "https://a.b/c?d=e"),
}
# Markup between the blocks, and around the text of a block.
BETWEEN = {
    "html": (
        *("<pre>\n  The dog\n</pre>\n", "<script>let a = '<b>';</script>\n"),
        *("<!-- The dog. -->\n", "<hr>\n"),
    ),
    "markdown": ("```py\nthe_dog = 1\n```\n\n", "---\n\n", "<!-- The dog. -->\n\n"),
}
AROUND = {
    "html": (
        *(("<h2>", "</h2>\n"), ("<p>", "</p>\n"), ("<ul>\n  <li>", "\n  </li>\n</ul>\n")),
        ("<blockquote><div>\n\t", "</div></blockquote>\n"),
        ("<table><tr><td>", "</td></tr></table>\n"),
    ),
    "markdown": (
        *(("## ", " ##\n\n"), ("", "\n\n"), ("1. ", "\n\n"), ("> - ", "\n\n")),
        ("| 1 | 2 |\n|---|---|\n| ", " | 3 |\n\n"),
        ("", "\n===\n\n"),
    ),
}


@dataclass
class GoldBlock:
    """The sentences of a block, and the target words of each mark by its address."""

    pairs: list[AlignedPair]
    words: dict[str, set[int]] = field(default_factory=dict)


class Generator:
    """Writes documents of one kind."""

    def __init__(self, kind, seed, pairs, any_words=False) -> None:
        self.kind, self.pairs, self.any_words = kind, iter(pairs), any_words
        self.random = random.Random(f"{kind} {seed}")
        self.number = 0

    def document(self) -> tuple[str, list[GoldBlock]]:
        """A document, and the gold translation and places of its blocks."""
        written, gold = [], []
        for _ in range(self.random.randint(1, 6)):
            before, after = self.random.choice(AROUND[self.kind])
            text, block = self.block()
            written.append(f"{before}{text}{after}")
            gold.append(block)
            if self.random.random() < 0.3:
                written.append(self.random.choice(BETWEEN[self.kind]))
        return "".join(written), gold

    def block(self) -> tuple[str, GoldBlock]:
        gold, texts, shift = GoldBlock([]), [], 0
        for _ in range(self.random.randint(1, 3)):
            pair = next(self.pairs)
            gold.pairs.append(pair)
            texts.append(self.sentence(pair, gold, shift))
            shift += len(pair.target_words)
        return " ".join(texts), gold

    def sentence(self, pair: AlignedPair, gold: GoldBlock, shift: int) -> str:
        """A sentence with marks around some of its words, and with atoms."""
        words = list(pair.source_words)
        words[0] = words[0][0].upper() + words[0][1:]
        before, after = [""] * len(words), [""] * len(words)
        start = 0
        while start < len(words) - 1 and self.random.random() < 0.7:
            start = self.random.randrange(start, len(words) - 1)
            end = min(start + self.random.randint(1, 4), len(words) - 1)
            while words[end - 1] == ",":
                end -= 1
            if "," in words[start] or end <= start:
                start += 1
                continue
            if self.may_mark(pair, (start, end)):
                self.mark(pair, gold, shift, (start, end), before, after)
                inner = (start + 1, end - 1)
                if end - start > 2 and self.may_mark(pair, inner) and self.random.random() < 0.5:
                    self.mark(pair, gold, shift, inner, before, after, is_inner=True)
            start = end
        for place in range(len(words) - 1):
            if self.random.random() < 0.05:
                after[place] += f" {self.random.choice(ATOMS[self.kind])}"
        marked = [f"{a}{word}{b}" for a, word, b in zip(before, words, after, strict=True)]
        return " ".join(marked).replace(" ,", ",").replace(" .", ".")

    def may_mark(self, pair: AlignedPair, span: tuple[int, int]) -> bool:
        """Whether a mark may be around some words: if their translation is one run of words."""
        words = {target for source, target in pair.alignment if span[0] <= source < span[1]}
        return self.any_words or (len(words) > 0 and max(words) - min(words) + 1 == len(words))

    def mark(self, pair, gold, shift, span, before, after, is_inner=False) -> None:
        self.number += 1
        address = f"http://x/{self.number}"
        opening, closing = ("[", f"]({address})")
        if is_inner:  # links cannot be nested
            opening, closing = (f'<b id="{address}">', "</b>")
        elif self.kind == "html":
            opening, closing = (f'<a href="{address}">', "</a>")
        before[span[0]] += opening
        after[span[1] - 1] = closing + after[span[1] - 1]
        gold.words[address] = {
            shift + target for source, target in pair.alignment if span[0] <= source < span[1]
        }


def found_words(block: Block) -> dict[str, set[int]]:
    """The words of a block within each mark, by the mark's address."""
    found, waiting = {}, list(block.marks)
    while waiting:
        mark = waiting.pop()
        waiting += mark.inner
        if number := re.search(r"http://x/\d+", mark.opening + mark.closing):
            found[number[0]] = {
                word
                for word, (start, end) in enumerate(units_of(block.text))
                if mark.start <= start and end <= mark.end
            }
    return found


class Tags(HTMLParser):
    """The tags of a document; an error if they are not balanced."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.seen = [], Counter()
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.seen[tag, *attrs] += 1
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_comment(self, data):
        self.seen["comment", data] += 1


def structure(text: str, kind: str) -> object:
    """The structure that translation must keep: tags, or Markdown's blocks and the marks in each."""
    if kind == "html":
        return Tags(text).seen
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    return [
        (token.type, token.markup, token.info, "" if token.type == "inline" else token.content)
        + ((_marks(token.children),) if token.type == "inline" else ())
        for token in parser.parse(text)
    ]


def _marks(tokens: list) -> Counter:
    kept = [token for token in tokens if token.type not in ("text", "softbreak")]
    return Counter((token.type, token.markup, str(token.attrs), token.content) for token in kept)


def score_places(translator: Translator, any_words: bool) -> float:
    """Translate 300 documents, check their markup, and return the F1 of the places, in percent."""
    pairs = generate_pairs("test", 3000)
    right = proposed = gold_words = blocks = scored = 0
    for kind in ("html", "markdown"):
        generator = Generator(kind, 0, pairs, any_words)
        for _ in range(150):
            text, gold = generator.document()
            document = Document(text, kind, "en")
            sentences = document.sentences
            assert sentences == [pair.source for block in gold for pair in block.pairs], text
            result = document.translated(translator(sentences), partial(word_attention, translator))
            assert structure(result, kind) == structure(text, kind), (text, result)
            parts = FORMATS[kind].parse(result)
            found = [part for part in parts if isinstance(part, Block)]
            for block, wanted in zip(found, gold, strict=True):
                blocks += 1
                if block.text != " ".join(pair.target for pair in wanted.pairs):
                    continue  # another translation than the gold one
                scored += 1
                places = found_words(block)
                assert places.keys() == wanted.words.keys(), result
                for address, words in wanted.words.items():
                    right += len(words & places[address])
                    proposed += len(places[address])
                    gold_words += len(words)
    score = 200 * right / (proposed + gold_words)
    marked = "any words" if any_words else "words that stay together"
    print("300 documents are well-formed, and have all their markup.")
    print(f"Marks around {marked}: F1 {score:.1f} %, in {scored} of {blocks} blocks.")
    return score


def main() -> None:
    """Score marks around words that stay together, and around any words."""
    translator = Translator.from_pretrained(sys.argv[1])
    score = score_places(translator, any_words=False)
    score_places(translator, any_words=True)
    if score <= 95:
        raise SystemExit("F1 must be above 95 %.")


if __name__ == "__main__":
    main()
