"""HTML and Markdown: what is translated, where marks are placed, and what stays as it is."""

import random
import re
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise

import pytest
import torch
from conftest import small_model
from marked_documents import Generator, structure

from modeling_aiayn.data.embedded_corpus import generate_pairs
from modeling_aiayn.documents.document import Document
from modeling_aiayn.documents.html_blocks import parse_html
from modeling_aiayn.documents.markdown_blocks import escape_markdown, parse_markdown
from modeling_aiayn.inspection.attention_weights import attention_maps
from modeling_aiayn.translation import Translator
from modeling_aiayn.translation.segments.marks import Block
from modeling_aiayn.translation.segments.placement import units_of
from modeling_aiayn.translation.segments.word_attention import word_attention

MARKDOWN = """\
---
title: A *dog*
---
# The *dog* runs #

We `see` a [link to **two** words](http://x.y "t & t") and
a second line. Next *sentence here. It goes* on!
A hard break@@
new line and https://a.b/c?d=e.

> - item <b>one</b> <kbd>Ctrl + *C*</kbd> key
>   more text
> - [ ] task ![pic](a.png) \\* star &amp; <http://a.b>

| a `x` | 2 |
|:--|---|
| **dog** runs | C# |

Setext *head*
===

<div class="x">
Some <i>html</i> &lt; text.
</div>

    code block

```py
the_dog = "*"
```
[ref]: http://x
Foo[^1] bar. ***both*** ~~C~~ [see][ref].

[^1]: A note.
""".replace("@@", "  ")
HTML = """\
<!DOCTYPE html>
<html lang="en"><head><title>A dog &amp; a cat</title><style>p { color: red }</style></head>
<body translate="yes">
\t<h1 class='x'>The <em>dog</em> runs</h1>
<p>We <b>see <i>a</i></b> <a href="http://x?a=1&amp;b=2">red hat</a>.<br/>Two <img src=a.png
 alt="A dog"> run.<ul><li>One<li>Two
</ul><pre>  A dog </pre><p translate=no>No <b>dog</b></p>Call <span class="x notranslate">Dog</span> now
<script>if (a < b) { "<b>" }</script><!-- A dog --><p>I &lt;3 you<code>x &lt; y</code>.</p>
<p>“é” &nbsp;</p><svg><text>dog</text></svg></body></html>
"""


def diagonal(source, target):
    """Each word looks at the word in its place."""
    return torch.eye(len(units_of(target)), len(units_of(source)))


def same(text, kind):
    document = Document(text, kind, "en")
    return document.translated(document.sentences, diagonal)


def attention_of(links):
    """Attention by pairs of words: "hut": "hat"."""

    def attention(source, target):
        rows, columns = (
            [text[slice(*span)] for span in units_of(text)] for text in (source, target)
        )
        weights = torch.full((len(columns), len(rows)), 0.01)
        for index, word in enumerate(columns):
            weights[index, rows.index(links.get(word, word))] = 1.0
        return weights / weights.sum(-1, keepdim=True)

    return attention


def random_attention(chance):
    def attention(source, target):
        size = (len(units_of(target)), len(units_of(source)))
        return torch.rand(size, generator=torch.Generator().manual_seed(chance.randrange(2**30)))

    return attention


def translated(text, kind, translations, links):
    document = Document(text, kind, "en")
    return document.translated(translations, attention_of(links))


def test_a_document_translated_to_itself_is_the_same():
    assert same(HTML, "html") == HTML.replace("&nbsp;", "\xa0")
    lines = MARKDOWN.replace(
        'words](http://x.y "t & t") and\na', 'words](http://x.y "t & t") and a'
    )
    lines = lines.replace("on!\nA hard", "on! A hard").replace("key\n>   more", "key more")
    assert same(MARKDOWN, "markdown") == lines.replace("&amp;", "&")


def test_only_text_is_translated():
    assert Document(HTML, "html", "en").sentences == [
        "A dog",  # of an attribute
        "A dog & a cat", "The dog runs", "We see a red hat.", "Two run.", "One", "Two",
        "Call now", "I <3 you.",  "“é”",
    ]  # fmt: skip
    assert Document(MARKDOWN, "markdown", "en").sentences == [
        "The dog runs", "We a link to two words and a second line.", "Next",
        "sentence here.", "It goes", "on!", "A hard break", "new line and.", "item one key more text",
        "task * star &", "a", "dog runs", "C#", "Setext head", "Some html < text.",
        "Foo bar.", "both C see.", "A note.",
    ]  # fmt: skip


LINKS = {"Heute": "today", "liest": "reads", "Frau": "woman", "rote": "red", "Bücher": "books"}


@pytest.mark.parametrize(
    ("text", "translation", "wanted"),
    [
        # German puts the adverb first, and the verb before the subject.
        ("<i>Old</i> reads <b>red books</b> today.", "Heute liest Old rote Bücher.",
         "Heute liest <i>Old</i> <b>rote Bücher</b>."),
        # Marks within marks, and side by side.
        ("<a>Old <b>red</b> <i>books</i></a> today.", "Heute rote Bücher Old.",
         "Heute <a><b>rote</b> <i>Bücher</i> Old</a>."),
        # A whole sentence, with its end.
        ("<b>Old woman.</b>", "Frau, Old.", "<b>Frau, Old.</b>"),
        # A mark does not take the full stop.
        ("Old <b>books</b>.", "Old Bücher.", "Old <b>Bücher</b>."),
        # Atoms after the word before them, before the word they lean on, and at the ends.
        ("<code>x</code> Old books <code>y</code>.", "Bücher Old.", "<code>x</code> Bücher <code>y</code> Old."),
        ("Old woman <code>y</code>", "Frau Old.", "Frau Old. <code>y</code>"),
        ("Old<code>1</code> books today.", "Heute Bücher Old.", "Heute Bücher Old<code>1</code>."),
        ("Old <code>1</code>books today.", "Heute Bücher Old.", "Heute <code>1</code>Bücher Old."),
        ("<code>x</code>: old books.", "Bücher old.", "<code>x</code> Bücher old."),
        ("<i>&nbsp;</i>Old<b> </b> books.", "Old Bücher.", "\xa0<i></i>Old<b></b> Bücher."),
        # Two marks whose words become one: none is lost.
        ("<b>Old</b> <i>woman</i>.", "Frau.", "<i>Frau</i>.<b></b>"),
        # Without a translation, everything is still there.
        ("Old <b>red <i>books</i></b> <img>.", "", "<b><i></i></b> <img>"),
    ],
)  # fmt: skip
def test_marks_are_placed_where_the_translation_looks(text, translation, wanted):
    assert translated(text, "html", [translation], LINKS) == wanted


@pytest.mark.parametrize(
    ("text", "sentences", "translations", "wanted"),
    [
        ("<p><b>Old</b> <a>woman. Red books.</a></p>", ["Old", "woman.", "Red books."],
         ["Old", "Frau.", "Rote Bücher."], "<p><b>Old</b> <a>Frau. Rote Bücher.</a></p>"),
        ("<p>Old <code>q</code> <i>woman. Red books.</i></p>", ["Old", "woman.", "Red books."],
         ["Old", "Frau.", "Rote Bücher."], "<p>Old <code>q</code> <i>Frau. Rote Bücher.</i></p>"),
        # A mark of whole sentences, and one around such a mark.
        ("<p><b>Old woman. <i>Red books. Old.</i></b> Woman.</p>",
         ["Old woman.", "Red books.", "Old.", "Woman."], ["Frau.", "Rote.", "Old.", "Frau."],
         "<p><b>Frau. <i>Rote. Old.</i></b> Frau.</p>"),
        ("<p><b>Old woman. Re</b><wbr>d books.</p>", ["Old woman.", "Re", "d books."],
         ["Frau.", "Re", "d Bücher."], "<p><b>Frau. Re</b><wbr>d Bücher.</p>"),
        ("Old <b>books today. She <i>woman</i> red</b> books.",
         ["Old", "books today.", "She woman red", "books."],
         ["Old", "Heute Bücher.", "rote Frau She", "Bücher."],
         "Old <b>Heute Bücher. rote <i>Frau</i> She</b> Bücher."),
    ],
)  # fmt: skip
def test_a_mark_around_the_end_of_a_sentence_stands_between_sentences(
    text, sentences, translations, wanted
):
    assert Document(text, "html", "en").sentences == sentences
    assert translated(text, "html", translations, LINKS) == wanted


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("> a_b\n> <br> text", "markdown"),
        ("<p>A dog.</p><![x[ y ]]>", "html"),
        ("A dog.\n\n<div>\nA cat.<![x[ y ]]>\n</div>\n", "markdown"),
    ],
)
def test_line_ends_and_unknown_declarations_are_copied(text, kind):
    assert same(text, kind) == text


@pytest.mark.parametrize("kind", ["html", "markdown"])
def test_no_translation_and_no_attention_can_break_the_markup(kind):
    """Words that look like markup, in any number, at places drawn at random."""
    chance = random.Random(kind)
    hostile = (
        "<b>", "</p>", "<script>", "&amp;", "&", "*", "**x", "_y_", "`", "[a](b)", "]", "![", "#", "-",
        "1.", "2)", "+", "|", "~~~", "~~", "> q", "===", "---", "\\", "<!--", "Hund", "läuft", "a_b",
    )  # fmt: skip
    generator = Generator(kind, 7, generate_pairs("train", 900))
    for _ in range(40):
        text, _ = generator.document()
        document = Document(text, kind, "en")
        translations = [
            " ".join(chance.choices(hostile, k=chance.randint(1, 12))) for _ in document.sentences
        ]
        result = document.translated(translations, random_attention(chance))
        assert structure(result, kind) == structure(text, kind), (text, result)
        words = "".join(translations).replace(" ", "")
        parts = [part for part in Document(result, kind, "de").parts if isinstance(part, Block)]
        found = "".join(part.text for part in parts).replace(" ", "")
        # Blocks without letters are not translated again; signs at their ends are in no block.
        assert set(found) <= set(words)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a * b _c_ d_e `f`", r"a \* b \_c\_ d_e \`f\`"), ("# a", r"\# a"), ("#a", "#a"),
        ("- a", r"\- a"), ("-a", "-a"), ("12. a", r"12\. a"), ("12.5 a", "12.5 a"), ("> a", r"\> a"),
        ("a > b < c <d &lt; & e", r"a > b < c \<d \&lt; & e"),
        ("[a] ~~b~ c~", r"\[a\] \~~b~ c\~"), ("===", r"\==="), ("a\\b", r"a\\b"),
    ],
)  # fmt: skip
def test_signs_that_would_be_markup_are_escaped(text, wanted):
    assert escape_markdown(text) == wanted
    (block,) = (part for part in parse_markdown(f"{wanted} x") if isinstance(part, Block))
    # #a is a tag of a social network, which stays.
    assert (block.marks[0].opening if block.marks else block.text).startswith(text)


@pytest.mark.parametrize("kind", ["html", "markdown"])
def test_a_document_without_words_stays_as_it_is(kind):
    for text in ("", "\n", "<", "<b><i>", "&amp;", "</p>\n", "<!-- ", "\ufffd", "12 | 3"):
        document = Document(text, kind, "en")
        assert document.sentences == [] and document.translated([], diagonal) == text


@pytest.mark.parametrize(
    ("text", "sentences", "written"),
    [
        ("<p>A &# b</p><p>C <b>d</b> e.</p>", ["A &# b", "C d e."], "<p>A &amp;# b</p><p>C <b>d</b> e.</p>"),
        ("<p>A &#45a b</p><p>C</p>", ["A -a b", "C"], "<p>A -a b</p><p>C</p>"),
        # Text that looks like markup stays text, also where it is copied.
        ("<p>A [^&lt;b&gt;] c</p>", ["A c"], "<p>A [^&lt;b&gt;] c</p>"),
        ("See http://x.y?a=1&amp;copy=2&amp;b now", ["See now"], "See http://x.y?a=1&amp;copy=2&amp;b now"),
        # Comments end as in browsers.
        ("<p>A</p><!-- b c", ["A"], "<p>A</p><!-- b c"),
        ("A<!-- b --!> c", ["A c"], "A<!-- b --!> c"),
        ("A<!--> b --> c", ["A b --> c"], "A<!--> b --&gt; c"),
        ("A<!---> b", ["A b"], "A<!---> b"),
    ],
)  # fmt: skip
def test_html_is_read_as_browsers_read_it(text, sentences, written):
    assert Document(text, "html", "en").sentences == sentences
    assert same(text, "html") == written


def test_a_translation_that_fills_a_learned_table_keeps_its_markup(tokenizer, caplog):
    """Its text may be split into more tokens than the search wrote."""
    sizes = {"position_type": "learned", "max_position_embeddings": 9}
    translator = Translator(small_model(vocab_size=len(tokenizer), **sizes), tokenizer)
    target = "Der alte Hund. " * 9
    assert len(tokenizer(target).input_ids) > 9
    found = word_attention(translator, "The old dog.", target)
    assert len(found) == len(units_of(target))
    assert "cut from" in caplog.text


def test_a_link_whose_text_is_its_reference_goes_on_working():
    text = "Read the [red\nbooks] and [old *books*][], not [books][b].\n\n[red books]: x\n"
    text += "[old *books*]: y\n[b]: z\n"
    translation = "Lies the rote Bücher und old Bücher, nicht Bücher."
    result = Document(text, "markdown", "en").translated([translation], diagonal)
    expected = (
        "Lies the [rote Bücher][red books] und [old *Bücher*][old *books*], nicht [Bücher][b]."
    )
    assert result.startswith(expected)
    assert structure(result, "markdown")[1][-1] == structure(text, "markdown")[1][-1]


def shouted(text, kind):
    document = Document(text, kind, "en")
    return document.translated([*map(str.upper, document.sentences)], diagonal)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        # Elements that are copied, and are not closed.
        ('A man <video src="a.mp4" controls /> runs.', 'A MAN <video src="a.mp4" controls /> RUNS.'),
        ("Press <kbd>Enter to go.\n\nNext.", "PRESS <kbd>Enter to go.\n\nNEXT."),
        ('A <i translate="no">Red</i> hat.', 'A <i translate="no">Red</i> HAT.'),
        ("One line<br>second<br/>\nthird.", "ONE LINE<br>SECOND<br/>\nTHIRD."),
        ("https://a.b/c &mdash; our page", "https://a.b/c — OUR PAGE"),
        # Links beside comments.
        ("(see <!-- c --> <i>it</i> *red* <!-- c --> [r](u)",
         "(SEE <!-- c --> <i>IT</i> *RED* <!-- c --> [R](u)"),
        ("> [!NOTE]\n> Two dogs.", "> [!NOTE]\n> TWO DOGS."),
        # Blanks to Python, but not to Markdown.
        ("One.\n\n\x85two.\n\n\x1cthree.", "ONE.\n\n\x85TWO.\n\n\x1cTHREE."),
        ("A\x00dog", "A\ufffdDOG"),
        # Parts that cannot be found in the document, or not parsed.
        ("| a \\| b | dog |\n|---|---|\n| x | y |\n", "| a \\| b | DOG |\n|---|---|\n| X | Y |\n"),
        ("> <p align=center>\n>   A man.\n> </p>\n>\n> Text\n",
         "> <p align=center>\n>   A man.\n> </p>\n>\n> TEXT\n"),
    ],
)  # fmt: skip
def test_markdown_around_text_is_copied(text, wanted, caplog):
    assert shouted(text, "markdown") == wanted
    is_reported = text.startswith(("| a", "> <p"))
    assert ("is not translated: " in caplog.text) == is_reported


def test_a_cell_is_not_taken_for_the_code_or_link_before_it():
    before = [
        "`name`",
        "`dog`",
        "https://a.b/bar",
        "[`batch`](#x)",
        "![size](x.png)",
        "a \\| b",
        "",
    ]
    after = ["name", "dog", "bar", "batch", "size", "b", "x"]
    head, *rows = (f"| {first} | {{}} |\n" for first in before)
    table = "".join([head, "|---|---|\n", *rows])
    assert shouted(table.format(*after), "markdown") == table.format(*map(str.upper, after))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        # End tags that HTML lets people leave out.
        ("<ul><li class=notranslate>Acme<li>Dogs</ul><p>Men.</p>",
         "<ul><li class=notranslate>Acme<li>DOGS</ul><p>MEN.</p>"),
        ("<ul><li translate=no>A<ul><li>x</ul><li>Dogs</ul>",
         "<ul><li translate=no>A<ul><li>x</ul><li>DOGS</ul>"),
        ("<p class='a notranslate'>Cut<p>A man.<div><p translate=no>No</div>Yes",
         "<p class='a notranslate'>Cut<p>A MAN.<div><p translate=no>No</div>YES"),
        ("<table><tr><td translate=no>No<td>yes<tr><td>yes</table>",
         "<table><tr><td translate=no>No<td>YES<tr><td>YES</table>"),
        ('<div translate="NO">ab <div>c</div> d</div> e',
         '<div translate="NO">ab <div>c</div> d</div> E'),
        # Stray end tags.
        ("<code>x</i>y</code> dog", "<code>x</i>y</code> DOG"),
        ("<p translate=no>a</b> c</p><p>dog</p>", "<p translate=no>a</b> c</p><p>DOG</p>"),
        # Attributes that only look like it.
        ('<b data-translate="no">f</b> <b title="translate=no">g</b>',
         '<b data-translate="no">F</b> <b title="TRANSLATE=NO">G</b>'),
        ("<li><code>ls</code> &ndash; two dogs</li>", "<li><code>ls</code> \u2013 TWO DOGS</li>"),
    ],
)  # fmt: skip
def test_html_that_is_not_translated_ends_where_html_ends_it(text, wanted):
    assert shouted(text, "html") == wanted


@pytest.mark.parametrize("sign", ["<b/", "<x ", "<svg ", '<a href="', "<?", "<![", "</p "])
def test_an_unfinished_tag_is_not_read_again_from_each_sign(sign, monkeypatch):
    """A text of 20 kB took seconds, in which a server answered nobody."""
    looked = []
    find = HTMLParser.check_for_whole_start_tag

    def count(self, i):
        looked.append(i)
        return find(self, i)

    monkeypatch.setattr(HTMLParser, "check_for_whole_start_tag", count)
    text = "<p>The dog</p>" + sign * 3000
    tag, block, *_ = parse_html(text)
    assert (tag, block.text, looked) == ("<p>", "The dog", [0])


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Old <b>books.", ["Old", "books."]),
        ("Old</b> books.", ["Old", "books."]),
        ("<b>Old <i>red</b> books</i> now.", ["Old", "red", "books", "now."]),
        # A block begins within inline elements.
        ("<b>one</b> <a>two <i>three<br></i></a> four", ["one", "two", "three", "four"]),
        ("<p><a href=x>The <b>old</b> dog<br>runs</a> now.</p>", ["The old dog", "runs", "now."]),
        # Elements without text between them, but for styles.
        ("<a>The house</a><a>The car</a>", ["The house", "The car"]),
        ("<em><span>Price</span><span>102</span></em> now", ["Price", "102", "now"]),
        ("<a>A</a><img><a>B</a>", ["A", "B"]),
        ("<a>A <img></a> <a>B</a>", ["A B"]),
        ("<b>W</b><i>ord</i>, <a>Rome</a><sup><a>[x]</a></sup> and <a>c</a><a></a> d.",
         ["Word, Rome[x] and c d."]),
    ],
)  # fmt: skip
def test_tags_across_blocks_divide_a_text(text, sentences):
    document = Document(text, "html", "en")
    assert document.sentences == sentences
    assert document.translated(sentences, diagonal) == text
    backwards = document.translated([f"X {sentence}" for sentence in sentences], diagonal)
    assert tree(backwards) == tree(text)


def tree(text):
    """The elements of a document, without text and the order of siblings; None: tags cross."""
    found = [("", [])]
    for raw, name in re.findall(r"(</?(\w+)[^>]*>)", text):
        if not raw.startswith("</"):
            found.append((raw, []))
        elif found[-1][0].startswith(f"<{name}"):
            opened, inner = found.pop()
            found[-1][1].append((opened, sorted(inner)))
        else:
            return None
        if name in ("br", "img", "hr"):
            found[-2][1].append((found.pop()[0], []))
    return sorted(found[0][1]) if len(found) == 1 else None


def random_html(chance, depth=0):
    """A well-formed document: blocks in inline elements, too."""
    words = ("the", "dog", "sees.", "A", "cat,", "red", "{x}", "102", "-", "")
    parts = []
    for _ in range(chance.randint(1, 4)):
        name = chance.choice(
            ["b", "i", "a", "span", "em", "p", "div", "ul", "kbd", "br", "img", "sup"]
        )
        if name in ("br", "img"):
            parts.append(f'<{name} id="{chance.random()}">')
        elif depth < 5 and chance.random() < 0.7:
            inner = random_html(chance, depth + 1)
            parts.append(f'<{name} id="{chance.random()}">{inner}</{name}>')
        parts.append(
            chance.choice(["", " "]) + " ".join(chance.choices(words, k=chance.randint(0, 4)))
        )
    return "".join(parts)


def test_no_tags_cross_in_random_documents():
    """Every tag stays byte for byte, and within the same elements."""
    chance = random.Random(0)
    for number in range(1000):
        text = random_html(chance)
        document = Document(text, "html", "en")
        translations = [
            " ".join(chance.sample(sentence.split(), len(sentence.split())))
            for sentence in document.sentences
        ]
        result = document.translated(translations, random_attention(chance))
        assert tree(result) == tree(text) is not None, (number, text, result)


def test_random_signs_raise_no_error_and_lose_no_tag():
    chance = random.Random(3)
    signs = {
        "html": "<b> </b> <i> </i> <a> </a> <p> <br> <img> <code> </code> <!--c--> &nbsp; &amp; . "
        "dog Run! x. Y <span> </span> https://a.b < & ' ( \u2028 <script> </script>",
        "markdown": "** * _ ` [ ](u) ] ][r] ![ ~~ \n \n\n \\\n > - 1. # | dog Run! <b> </b> <kbd> </kbd> "
        "<div> http://a.b <http://a.b> &amp; \\* [^1] ``` --- \x00 <video/> <br> <!--c--> [!NOTE] \x85 \x1c",
    }
    for number in range(400):
        kind = "html" if number % 2 else "markdown"
        words = [*signs[kind].split(" "), " ", "\n"]
        text = "".join(chance.choices(words, k=chance.randint(1, 25)))
        document = Document(text, kind, "en")
        counts = [chance.randint(0, 4) for _ in document.sentences]
        translations = [" ".join(chance.choices(("Hund", "läuft."), k=count)) for count in counts]
        result = document.translated(translations, random_attention(chance))
        if kind == "html":
            tags = re.compile(r"</?[a-z]+>|<!--c-->")
            assert Counter(tags.findall(result)) == Counter(tags.findall(text)), (text, result)


def test_the_attention_of_words_is_that_of_their_tokens(tokenizer):
    model = small_model(vocab_size=len(tokenizer), decoder_layers=3).eval()
    translator = Translator(model, tokenizer)
    source, target = "The old dog sees the.", "Der alte Hund."
    found = word_attention(translator, source, target)
    maps = attention_maps(translator, source, target)
    weights = maps.cross.mean((0, 1))
    sizes = []
    for text, ends in ((source, [0, 3, 7, 11, 16, 20, 21]), (target, [0, 3, 8, 13, 14])):
        tokens = [len(tokenizer.tokenize(text[:end])) for end in ends]
        sizes.append([last - first for first, last in pairwise(tokens)])
    assert (sum(sizes[1]) + 1, sum(sizes[0]) + 1) == weights.shape
    rows = weights[:-1].split(sizes[1])
    merged = torch.stack([row.mean(0) for row in rows])[:, :-1]
    shares = torch.stack([part.sum(-1) for part in merged.split(sizes[0], 1)], 1).square()
    torch.testing.assert_close(found, shares / shares.sum(-1, keepdim=True))


def test_the_command_translates_documents(run, tmp_path, caplog):
    translator = Translator.from_pretrained("aiayn-en-de")
    (tmp_path / "a.md").write_text("# A dog\n\nA **dog** runs. `x`\n\n- Two\n  cats\n")
    code, out, err = run("translate.py", "--format", "markdown", "--input", tmp_path / "a.md")
    dog, two = translator(["A dog", "Two cats"])
    assert code == 0, err
    assert out == f"# {dog}\n\nEin **Hund** rennt. `x`\n\n- {two}\n"
    code, out, err = run("translate.py", "--format", "html", "--text", "<p>A <i>dog</i> runs.</p>")
    assert (code, out) == (0, "<p>Ein <i>Hund</i> rennt.</p>\n"), err
    code, out, err = run("translate.py", "--format", "text", "--text", "A dog \udcff.")
    assert code == 0 and "Line 1: replaced invalid Unicode with U+FFFD." in caplog.text, err
    code, out, err = run("translate.py", "--format", "html", "--text", "<p>")
    assert (code, out) == (1, "") and "no untranslated text" in err


def test_the_box_of_a_task_is_copied_whatever_follows_it():
    text = "- [ ] **Important**: buy milk\n- [x] __Done__ now\n- [X] ***Both*** and ~~no~~\n- [x] a *\n"
    sentences = ["Important: buy milk", "Done now", "Both and no", "a *"]
    assert Document(text, "markdown", "en").sentences == sentences
    assert same(text, "markdown") == text.replace("a *", "a \\*")


def test_each_footnote_keeps_its_line_even_if_it_is_one_word():
    text = "A dog[^1] sees[^url] a [cat][c].\n\n[^1]: Dog\n[^url]: https://a.b/c\n"
    text += "[^two]: The cat sleeps.\nIt is black.\n  [^3]: End\n\n[c]: /cat\n"
    sentences = ["A dog sees a cat.", "Dog", "The cat sleeps.", "It is black.", "End"]
    assert Document(text, "markdown", "en").sentences == sentences
    assert same(text, "markdown") == text.replace("sleeps.\nIt", "sleeps. It")


def test_front_matter_is_yaml_or_toml_and_no_rule():
    for front in ("---\ntitle: A dog\n---\n", '+++\ntitle = "A dog"\ndate = 1\n+++\n'):
        document = Document(f"{front}\nThe dog runs.\n", "markdown", "en")
        assert document.sentences == ["The dog runs."]
    between_rules = "---\n\nThe dog runs.\n\n---\n"
    assert Document(between_rules, "markdown", "en").sentences == ["The dog runs."]


@pytest.mark.parametrize("kind", ["html", "markdown"])
@pytest.mark.parametrize(
    ("text", "translation", "expected"),
    [
        ("The H<sub>2</sub>O and CO<sub>2</sub> here.\n", "Hier CO2 und H2O.",
         "Hier CO<sub>2</sub> und H<sub>2</sub>O.\n"),
        ("A <b>C<sub>6</sub>H<sub>6</sub> cup</b> is <i>red</i>.\n", "Eine C6H6 Tasse ist rot.",
         "Eine <b>C<sub>6</sub>H<sub>6</sub> Tasse</b> ist <i>rot</i>.\n"),
        # The word is another one, so the mark stands around the whole word.
        ("The <b>t</b>ea is hot.\n", "Der Tee ist heiß.", "Der <b>Tee</b> ist heiß.\n"),
        # Marks of two same words do not repeat text.
        ("H<sub>2</sub>O is not H<sub>2</sub>O.\n", "H2O ist nicht H2O.",
         "H<sub>2</sub>O ist nicht H<sub>2</sub>O.\n"),
        ("<b>H2</b>O and H<sub>2</sub>O run.\n", "H2O läuft.", "<b>H2</b>O <sub>läuft</sub>.\n"),
    ],
)  # fmt: skip
def test_marks_within_a_word_stay_there_if_the_word_stays(kind, text, translation, expected):
    words = {"Hier": "here", "und": "and", "Eine": "A", "Tasse": "cup", "ist": "is", "rot": "red"}
    words |= {"Der": "The", "Tee": "tea", "heiß": "hot", "nicht": "not", "läuft": "run"}
    assert translated(text, kind, [translation], words) == expected


def test_emphasis_without_words_leaves_no_delimiters():
    for text, expected in (
        ("- **Tennis** *player*.\n", "- **Tennisspieler**.\n"),
        ("~~Tennis~~ __player__.\n", "~~Tennisspieler~~.\n"),
        # A mark with a picture alone stays.
        ("**Tennis** **![p](u)** *player*.\n", "**Tennisspieler** **![p](u)**.\n"),
    ):
        links = {"Tennisspieler": "Tennis"}
        assert translated(text, "markdown", ["Tennisspieler."], links) == expected


@pytest.mark.parametrize("kind", ["html", "markdown"])
@pytest.mark.parametrize(
    "raised",
    ["<sup>1</sup>", "<sup>[2]</sup>", "<a href='#1'><sup>3</sup></a>", "<sup>-2</sup>"],
)
def test_raised_numbers_stay_behind_their_word(kind, raised):
    text = f"The dog{raised} runs.\n"
    assert Document(text, kind, "en").sentences == ["The dog runs."]
    links = {"Hund": "dog", "läuft": "runs", "Der": "The"}
    expected = f"Der Hund{raised} läuft.\n"
    assert translated(text, kind, ["Der Hund läuft."], links) == expected
    assert Document("A <sup>big</sup> dog.", kind, "en").sentences == ["A big dog."]


@pytest.mark.parametrize(
    ("text", "sentences", "expected"),
    [
        (r"See http://a.example/x\_y now.", ["See now."], "See http://a.example/x_y now."),
        ("See http://a.b/?x=1&amp;y=2 now.", ["See now."], "See http://a.b/?x=1&y=2 now."),
        (r"See http://a.b/\_y\_ now.", ["See now."], r"See http://a.b/\_y\_ now."),
        ("See http://a.b/_y. Now!", ["See.", "Now!"], "See http://a.b/_y. Now!"),
        (r"Call \_\_init\_\_ now.", ["Call __init__ now."], r"Call \_\_init\_\_ now."),
        ("Call x_y now.", ["Call x_y now."], "Call x_y now."),
        (r"Not \[^1] but[^1].", ["Not [^1] but."], r"Not \[^1\] but[^1]."),
        ("Write to a.b+c@x-y.de.", ["Write to."], "Write to a.b+c@x-y.de."),
    ],
)
def test_addresses_and_escaped_signs_stay(text, sentences, expected):
    document = Document(text, "markdown", "en")
    assert document.sentences == sentences
    assert document.translated(sentences, diagonal) == expected


def test_spans_of_code_side_by_side_stay_apart():
    """Two backticks together would make one span of both."""
    document = Document("We hear `x`, `y` now.", "markdown", "en")
    # hören looks at "hear" and at the comma.
    weights = torch.tensor([[1, 0, 0, 0, 0], [0, 0.5, 0.5, 0, 0], [0, 0, 0, 0.5, 0.5]])
    assert document.translated(["Wir hören."], lambda *_: weights) == "Wir hören `x` `y`."


PAGE = """\
<!DOCTYPE html><HTML Lang=en dir="ltr" class=" lang=xx"><head>
<meta charset="utf-8"><meta name="description" content="A dog &amp; a cat. We see."><meta name=x content="No">
</head><body lang="fr"><img alt='The "red" hat' src="a dog.png"><p title="102">A <b title="The cat">dog</b>.</p>
<input placeholder=Name value="Old"><button aria-label="Go">X</button><textarea title="Your text">No</textarea>
<p translate=no title="No">No</p><code title="Some code"><b title="No">no</b></code><!-- <img alt="No"> -->
</body></HTML>
"""


def test_values_that_people_read_and_the_language_are_translated():
    document = Document(PAGE, "html", "en", "de")
    after = [
        "A dog & a cat.",
        "We see.",
        'The "red" hat',
        "The cat",
        "Name",
        "Go",
        "Your text",
        "Some code",
    ]
    assert document.sentences == [*after, "A dog.", "X"]
    result = document.translated([text.upper() for text in document.sentences], diagonal)
    expected = (
        PAGE.replace("A <b", "A <b").replace(">dog<", ">DOG<").replace("Lang=en", 'Lang="de"')
    )
    for old, new in {
        '"A dog &amp; a cat. We see."': '"A DOG &amp; A CAT. WE SEE."',
        "'The \"red\" hat'": '"THE &quot;RED&quot; HAT"',
        '"The cat"': '"THE CAT"', "=Name": '="NAME"', '"Go"': '"GO"', '"Your text"': '"YOUR TEXT"',
        '"Some code"': '"SOME CODE"',
    }.items():  # fmt: skip
        assert old in expected
        expected = expected.replace(old, new)
    assert result == expected
    # Nothing changes that is not translated.
    assert Document(PAGE, "html", "en").translated(document.sentences, diagonal) == PAGE


def test_a_value_keeps_its_own_quotes():
    document = Document("""<img alt="'Red' dogs'" title='"'>""", "html", "en")
    assert document.sentences == ["'Red' dogs'"]


def test_a_value_cannot_become_markup():
    document = Document('<img alt="A dog">', "html", "en")
    (result,) = [document.translated(['"><script>x</script>'], diagonal)]
    assert result == '<img alt="&quot;&gt;&lt;script&gt;x&lt;/script&gt;">'
