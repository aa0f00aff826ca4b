"""Subtitles, catalogues, XLIFF, office files: the text is translated, and nothing else changes."""

import io
import random
import re
import time
from xml.etree import ElementTree
from zipfile import ZIP_DEFLATED, ZipFile

import polib
import pytest
import torch
import webvtt

from modeling_aiayn.documents.document import Document
from modeling_aiayn.documents.files import DocumentFile
from modeling_aiayn.documents.formats import FORMATS
from modeling_aiayn.translation import Translator
from modeling_aiayn.translation.segments.placement import units_of

SRT = """\
1
00:00:01,000 --> 00:00:02,000
<i>The dog runs across</i>
<i>the green</i>

2
00:00:02,100 --> 00:00:03,000
{\\an8}<i>grass and
sleeps.</i>

3
00:00:04,000 --> 00:00:05,000
- Hello, <b>Tom</b>!
- Hi, Ann. How
are you?

4
00:00:06,000 --> 00:00:07,000
♪ 102 ♪

5
00:00:07,000 --> 00:00:08,000

6
01:00:07,000 --> 01:00:08,000 X1:40 X2:600
a < b & c
"""
VTT = """\
WEBVTT - a title

STYLE
::cue { color: red }

NOTE A dog
runs.

id 1
00:01.000 --> 00:02.000 align:start
<v Roger>I &lt;3 the <c.x>dog
that</c> <00:00:01.500>never

NOTE A dog

00:02.000 --> 00:03.000
runs &amp; sleeps.
"""
PO = """\
# A comment.
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\\n"
"Plural-Forms: nplurals=3; plural=n;\\n"

#. A dog.
#: a.c:3
#, c-format
msgctxt "menu"
msgid ""
"The <b class=\\"x\\">dog</b> has %d \\"cats\\".\\n"
"\\tSecond line.\\n"
msgstr ""

msgid "%d dog"
msgid_plural "%d dogs"
msgstr[0] ""
msgstr[1] ""
msgstr[2] ""

msgid "done"
msgstr "fertig"

#~ msgid "old"
#~ msgstr "alt"
"""
XLIFF = """\
<?xml version="1.0"?>
<xliff version="1.2"><file source-language="en"><body>
<!-- A dog. --><trans-unit id="1"><source>The <g id="1">red dog</g> runs<x id="2"/>. It
 <bpt id="3">&lt;b&gt;</bpt>sleeps<ept id="3">&lt;/b&gt;</ept> &amp; <![CDATA[<b>]]>.</source>
 <alt-trans><source>A cat.</source><target>Eine Katze.</target></alt-trans></trans-unit>
<trans-unit id="2"><source>102</source><target/></trans-unit>
<trans-unit id="3" translate="no"><source>No dog</source></trans-unit>
<trans-unit id="4"><source>A cat</source><target>Katze</target></trans-unit>
</body></file></xliff>
"""
W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main" xmlns:r="r"'
BOLD = "<w:rPr><w:b/></w:rPr>"


def run_of(text, properties=""):
    return f'<w:r w:rsidR="{len(text)}">{properties}<w:t xml:space="preserve">{text}</w:t></w:r>'


def field_of(instruction, shown):
    kinds = ('"begin"/>', '"separate"/>', '"end"/>')
    begin, middle, end = (f"<w:r><w:fldChar w:fldCharType={kind}</w:r>" for kind in kinds)
    return f"{begin}<w:r><w:instrText>{instruction}</w:instrText></w:r>{middle}{shown}{end}"


WORD = (
    f'<?xml version="1.0"?><w:document {W}><w:body><w:p><w:pPr><w:jc w:val="start"/></w:pPr>'
    '<w:bookmarkStart w:id="0" w:name="x"/>'
    f"{run_of('We s')}<w:proofErr/>{run_of('ee a ')}{run_of('big', BOLD)}{run_of(' ', BOLD)}"
    f'<w:bookmarkEnd w:id="0"/><w:hyperlink r:id="rId2">{run_of("red hat")}</w:hyperlink>'
    f'{run_of(".")}<w:r><w:footnoteReference w:id="2"/></w:r>{run_of(" We go &lt;home&gt;.")}'
    "</w:p><w:p><w:r><w:t>Name:</w:t><w:tab/><w:t>the man</w:t></w:r></w:p><w:p>"
    f"{run_of('See page ')}{field_of('PAGEREF x', run_of('12'))}{run_of(' of ')}"
    f"{field_of('HYPERLINK x', run_of('this book'))}{run_of('.')}</w:p><w:p>{run_of('102')}"
    f"<w:r><w:pict><w:txbxContent><w:p>{run_of('Text in a ')}{run_of('box', BOLD)}</w:p>"
    f'</w:txbxContent></w:pict></w:r></w:p><w:p><w:r><w:fldChar w:fldCharType="begin"/></w:r>'
    f"<w:r><w:instrText>TOC</w:instrText></w:r>{run_of('One dog')}</w:p>"
    f'<w:p>{run_of("Two dogs")}<w:r><w:fldChar w:fldCharType="end"/></w:r></w:p>'
    "<w:sectPr/></w:body></w:document>"
)
ODT = """<?xml version="1.0" encoding="UTF-8"?>
<office:document xmlns:office="o" xmlns:text="t" xmlns:draw="d"><office:body>
<text:h>The <text:span>dog</text:span> runs</text:h>
<text:p>We <text:bookmark-start text:name="x"/>see<text:bookmark-end text:name="x"/> a
 <text:span>hat</text:span>.<text:note><text:note-citation>1</text:note-citation><text:note-body>
<text:p>A note <draw:frame><text:p>in <text:span>a box</text:span></text:p></draw:frame></text:p>
</text:note-body></text:note> We go.<text:s text:c="2"/>Two sleep.</text:p>
<text:p>Name:<text:tab/>the man<text:line-break/>next</text:p><text:p/>
</office:body></office:document>
"""
XHTML = """<?xml version="1.0"?>
<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.1//EN" "http://www.w3.org/TR/xhtml11/DTD/xhtml11.dtd">
<html xmlns="http://www.w3.org/1999/xhtml"><head><title>A&nbsp;dog</title><style>p { }</style>
</head><body><h1><a id="x"/>The <em>dog</em> runs</h1>
<p><span class="a">Two </span><span class="b">cats</span><span class="a"> sleep.</span>
<sup><a href="#f">1</a></sup> See <img src="a.png"/> &amp; <code>x &lt; y</code>.<br/>Go!</p>
<ul><li>One</li><li>Two</li></ul></body></html>
"""


def zipped(files, method=ZIP_DEFLATED):
    content = io.BytesIO()
    with ZipFile(content, "w", method) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return content.getvalue()


FILES = {
    "docx": {
        "[Content_Types].xml": "<Types/>",
        "word/document.xml": WORD,
        "word/footnotes.xml": f"<w:footnotes {W}><w:p>{run_of('A note.')}</w:p></w:footnotes>",
        "word/styles.xml": f"<w:styles {W}><w:p>{run_of('A style')}</w:p></w:styles>",
        "word/media/a.png": b"\x89PNG\0",
    },
    "odt": {"mimetype": "application/vnd.oasis.opendocument.text", "content.xml": ODT},
    "epub": {
        "mimetype": "application/epub+zip",
        "OEBPS/a.xhtml": XHTML,
        "OEBPS/toc.ncx": "<ncx><navLabel><text>The dog</text></navLabel></ncx>",
    },
}
TEXTS = {"srt": SRT, "vtt": VTT, "po": PO, "xliff": XLIFF}


def diagonal(source, target):
    """Each word looks at the word in its place."""
    return torch.eye(len(units_of(target)), len(units_of(source)))


def translated(text, kind, change=str):
    document = Document(text, kind, "en")
    return document.translated([*map(change, document.sentences)], diagonal)


def changed_files(content, kind, change=str):
    document = DocumentFile(content, kind, "en")
    written = document.translated([*map(change, document.sentences)], diagonal)
    with ZipFile(io.BytesIO(written)) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def content_of(xml):
    """The elements and texts of a document, with blanks as one and without empty spans."""
    return " ".join("".join(ElementTree.fromstring(xml).itertext()).split())


@pytest.mark.parametrize("kind", ["srt", "vtt"])
def test_subtitles_with_the_same_text_are_the_same(kind):
    assert translated(TEXTS[kind], kind) == TEXTS[kind]
    assert translated(TEXTS[kind].replace("\n", "\r\n"), kind).split() == TEXTS[kind].split()


def test_sentences_go_on_over_lines_and_cues():
    assert Document(SRT, "srt", "en").sentences == [
        "The dog runs across the green grass and sleeps.",
        *("- Hello, Tom!", "- Hi, Ann.", "How are you?", "a < b & c"),
    ]
    (sentence,) = Document(VTT, "vtt", "en").sentences
    assert sentence == "I <3 the dog that never runs & sleeps."


def lines_of(kind, text):
    """The times and the lines of each cue, as another library reads them."""
    cues = webvtt.from_buffer(io.StringIO(text), format=kind)
    return [(cue.start, cue.end, cue.raw_text.split("\n")) for cue in cues]


def random_subtitles(rng, kind):
    words = [
        *["a", "dog", "runs", "and", "we", "see", "the", "big", "red", "hat"],
        "Yes.",
        "No!",
        "- Well",
        "<i>so</i>",
    ]
    time, cues = 0, []
    for number in range(1, rng.randint(2, 9)):
        start, time = time + rng.choice([0, 80, 2500]), time + rng.randint(2600, 5000)
        times = " --> ".join(
            f"{x // 3_600_000:02}:{x // 60_000 % 60:02}:{x // 1000 % 60:02},{x % 1000:03}"
            for x in (start, time)
        )
        lines = [
            " ".join(rng.choices(words, k=rng.randint(1, 5))) for _ in range(rng.randint(1, 3))
        ]
        around = rng.choice([("", ""), ("<i>", "</i>"), ("{\\an8}", "")])
        text = "\n".join(lines).join(around)
        cues.append(f"{number}\n{times}\n{text}\n" if kind == "srt" else f"{times}\n{text}\n")
    text = "\n".join(cues)
    return text if kind == "srt" else "WEBVTT\n\n" + text.replace(",", ".")


@pytest.mark.parametrize("kind", ["srt", "vtt"])
def test_no_cue_is_lost_moved_or_emptied_in_1000_random_files(kind):
    rng = random.Random(0)

    def other(sentence):
        words = sentence.split()
        rng.shuffle(words)
        return " ".join(words[: rng.randint(1, len(words))]) or "x"

    def attention(source, target):
        shape = len(units_of(target)), len(units_of(source))
        return torch.tensor([[rng.random() for _ in range(shape[1])] for _ in range(shape[0])])

    for _ in range(500):
        text = random_subtitles(rng, kind)
        document = Document(text, kind, "en")
        found = document.translated([*map(other, document.sentences)], attention)
        before, after = lines_of(kind, text), lines_of(kind, found)
        assert [cue[:2] for cue in after] == [cue[:2] for cue in before]
        assert [len(cue[2]) for cue in after] == [len(cue[2]) for cue in before]
        for line in (line for *_, lines in after for line in lines):
            assert re.sub(r"<[^>]*>|\{[^}]*\}|- ", "", line).strip(), found


def test_a_break_stands_where_the_attention_divides_the_words():
    """The verb of a German clause comes last, so that parts of the sentence change their places."""
    links = torch.zeros(7, 7)
    for target, source in enumerate((0, 1, 4, 5, 2, 3, 6)):
        links[target, source] = 1.0
    text = "1\n00:00:01,000 --> 00:00:02,000\nI have seen\n\n2\n00:00:02,000 --> 00:00:03,000\nthe old man again\n"
    for target, parts in (
        ("Ich habe den alten Mann wieder gesehen", ("Ich habe", "den alten Mann wieder gesehen")),
        ("Ja", ("Ja", "Ja")),
    ):
        document = Document(text, "srt", "en")
        size = len(target.split())
        found = document.translated([target], lambda *_, n=size: links[:n])
        assert [line for *_, lines in lines_of("srt", found) for line in lines] == [*parts]


def test_a_catalogue_gets_its_missing_translations():
    found = translated(PO, "po", str.upper)
    before, after = polib.pofile(f"\n{PO}"), polib.pofile(f"\n{found}")
    assert [(x.msgid, x.occurrences) for x in after] == [(x.msgid, x.occurrences) for x in before]
    first, plural, done, old = after
    assert first.msgstr == 'THE <b class="x">DOG</b> HAS %d "CATS".\n\tSECOND LINE.\n'
    assert plural.msgstr_plural == {0: "%d DOG", 1: "%d DOGS", 2: "%d DOGS"}
    assert (done.msgstr, old.msgstr, old.obsolete) == ("fertig", "alt", True)
    assert [x.fuzzy for x in after] == [True, True, False, False]
    assert not Document(found, "po", "en").sentences


def test_sources_of_xliff_get_a_target():
    found = translated(XLIFF, "xliff", str.upper)
    assert re.sub(r"<target state[^>]*>.*?</target>", "", found, flags=re.DOTALL) == re.sub(
        "<target/>", "", XLIFF.rstrip()
    )
    one, two = re.findall(r"<target state=\"needs-review-translation\">(.*?)</target>", found)
    assert one == (
        'THE <g id="1">RED DOG</g> RUNS<x id="2"/>. IT <bpt id="3">&lt;b&gt;</bpt>SLEEPS'
        '<ept id="3">&lt;/b&gt;</ept> &amp; &lt;B&gt;.'
    )
    assert two == "102"
    second = '<xliff version="2.0"><unit><segment><source>A <pc id="1">dog</pc></source></segment>'
    found = translated(f"{second}</unit></xliff>", "xliff", str.upper)
    assert '</source><target>A <pc id="1">DOG</pc></target></segment>' in found


@pytest.mark.parametrize("kind", FILES)
def test_office_files_change_in_their_texts_alone(kind):
    content = zipped(FILES[kind])
    before = {name: x if isinstance(x, bytes) else x.encode() for name, x in FILES[kind].items()}
    same, other = changed_files(content, kind), changed_files(content, kind, str.upper)
    assert [*same] == [*other] == [*before]
    for name, data in before.items():
        if not re.fullmatch(FORMATS[kind].members or "", name):
            assert data == same[name] == other[name]
            continue
        data, mine, theirs = (
            x.replace(b"&nbsp;", "\xa0".encode()) for x in (data, same[name], other[name])
        )
        tags = [
            sorted(node.tag for node in ElementTree.fromstring(x).iter() if "}" in node.tag)
            for x in (data, mine)
        ]
        if kind != "docx":  # whose runs are divided by marks
            assert tags[0] == tags[1]
        assert content_of(mine) == content_of(data)
        kept = ("x < y", "p { }", "PAGEREF x", "HYPERLINK x", "TOC")
        text = content_of(theirs)
        assert not re.search("[a-z]", "".join(re.split("|".join(kept), text)).replace("", "")), text


def test_runs_of_a_word_document_keep_their_formats():
    document = changed_files(zipped(FILES["docx"]), "docx", str.upper)["word/document.xml"].decode()
    empty = '<w:t xml:space="preserve"></w:t>'
    assert empty not in document
    shown = re.sub(r' w:rsidR="\d+"|<w:pPr>.*?</w:pPr>|<w:(?:body|document)[^>]*>', "", document)
    first, tabbed, page, box, begin, end = shown.split("<w:p>", 4)[1:] + shown.split("<w:p>")[-2:]
    assert first.startswith('<w:bookmarkStart w:id="0" w:name="x"/><w:r>')
    assert f'<w:r>{BOLD}<w:t xml:space="preserve">BIG</w:t></w:r>' in first
    link = (
        '<w:hyperlink r:id="rId2"><w:r><w:t xml:space="preserve">RED HAT</w:t></w:r></w:hyperlink>'
    )
    assert link in first
    assert "GO &lt;HOME&gt;." in first
    assert tabbed.index("NAME:") < tabbed.index("<w:tab/>") < tabbed.index("THE MAN")
    assert field_of("PAGEREF x", run_of("12")).replace(' w:rsidR="2"', "") in page
    assert page.index('"separate"') < page.index("THIS BOOK") < page.rindex('"end"')
    assert "102" in box
    assert begin.index('"begin"') < begin.index("TOC") < begin.index("ONE DOG")
    assert end.index("TWO DOGS") < end.index('"end"')


def test_a_paragraph_without_text_of_its_own_stays(tmp_path):
    formula = "<m:oMath><m:r><m:t>velocity</m:t></m:r></m:oMath>"
    text = f"<w:p {W} xmlns:m='m'>{formula}<w:del><w:r><w:t>Old</w:t></w:r></w:del></w:p>"
    document = Document(text, "docx", "en")
    assert document.sentences == []
    assert document.translated([], diagonal) == text.replace("'", '"')


def test_a_field_without_a_separator_keeps_its_words():
    begin, end = (f'<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>' for kind in ("begin", "end"))
    text = f"<w:p {W}>{begin}{run_of('A dog')}{end}</w:p>"
    assert content_of(translated(text, "docx", str.upper)) == "A DOG"


def test_texts_in_atoms_side_by_side_stay_apart():
    note = "<text:note><text:p>{}</text:p></text:note>"
    odt = (
        f"<x xmlns:text='t'><text:p>A dog{note.format('One')}{note.format('Two')} runs</text:p></x>"
    )
    found = translated(odt, "odt", str.upper)
    assert content_of(found) == "A DOGONETWO RUNS" and "\0" not in found
    boxes = "".join(f"<w:r><w:pict><w:p>{run_of(x)}</w:p></w:pict></w:r>" for x in ("One", "Two"))
    assert content_of(translated(f"<w:p {W}>{boxes}</w:p>", "docx", str.upper)) == "ONETWO"


def test_ranges_within_a_text_are_marks():
    begin, end = '<w:bookmarkStart w:id="1"/>', '<w:bookmarkEnd w:id="1"/>'
    text = f"<w:p {W}>{run_of('See ')}{begin}{run_of('Figure 1')}{end}{run_of(' here')}</w:p>"
    found = translated(text, "docx", str.upper)
    assert found.index("SEE") < found.index(begin) < found.index("FIGURE") < found.index(end)
    assert found.index(end) < found.index("HERE")
    half = f"<w:p {W}>{run_of('See ')}{begin}{run_of('it')}</w:p>"
    assert translated(half, "docx").index(begin) < translated(half, "docx").index("See")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("srt", "1\n00:00:00,5 --> 00:00:01,0\n\n\n2\n00:00:01,1 --> 00:00:02,0\na dog\nruns\n"),
        ("srt", "1\n00:00:01 --> 00:00:02\na dog\n\n2\n00:00:02, 100 --> 00:00:03\nruns"),
        ("vtt", "WEBVTT\n\n00:00.500 --> 00:01.000\n \na dog\n\n00:01.000 --> 00:02.000\nis\n"),
        ("epub", "<html><body><p>a dog<br/>runs</p><hr/></body></html>"),
    ],
)
def test_odd_files_are_read(kind, text):
    wanted = re.sub("a dog|runs|is", lambda found: found[0].upper(), text)
    assert translated(text, kind, str.upper) == wanted


def test_odd_sources_of_xliff():
    for source, target in (
        (" a <![CDATA[&nbsp;<b>]]> ", " A &amp;NBSP;&lt;B&gt; "),
        ("ä", "Ä"),
        ("{N, plural, =0 {none} other {many}}", None),
    ):
        text = f"<x><unit><source>{source}</source></unit></x>"
        text = f'<?xml version="1.0" encoding="ISO-8859-1"?>\n{text}'
        found = translated(text, "xliff", str.upper)
        added = f"</source><target>{target}</target>" if target else "</source>"
        assert found == text.replace("ISO-8859-1", "UTF-8").replace("</source>", added)


def test_an_empty_translation_loses_no_cue():
    document = Document("1\n00:01,0 --> 00:02,0\nA dog\nruns\n", "srt", "en")
    assert document.translated([""], diagonal).count("\n") == 4


def test_a_partly_translated_plural_keeps_its_translation():
    text = 'msgid "a"\nmsgid_plural "b"\nmsgstr[0] "ein A"\nmsgstr[1] ""\n'
    header = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=CHARSET\\n"\n\n'
    found = polib.pofile(translated(header + text, "po", str.upper))
    assert found[0].msgstr_plural == {0: "ein A", 1: "B"}
    assert found.metadata["Content-Type"] == "text/plain; charset=UTF-8"


def test_long_runs_of_blanks_and_tags_take_no_long_time():
    """A pattern that tries each place again would take minutes."""
    many = 100_000
    cue = "1\n00:01,0 --> 00:02,0\n"
    for kind, text in (
        ("po", f'msgid "a{" " * many}b"\nmsgstr ""\n'),
        ("po", f'msgid "<{"a" * many}"\nmsgstr ""\n'),
        ("srt", cue + "".join(f"<a{n}>" for n in range(many // 10))),
        ("srt", f"{cue}a{' ' * many}\nb"),
    ):
        started = time.monotonic()
        translated(text, kind)
        assert time.monotonic() - started < 20, text[:40]


def test_a_wrong_file_is_one_line(tmp_path, run):
    entities = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 9))
    bomb = f'<!DOCTYPE x [<!ENTITY a0 "a">{entities}]><office><p>&a8;</p></office>'
    good = zipped(FILES["odt"])
    damaged = bytearray(good)
    damaged[120:160] = b"\xff" * 40
    with io.BytesIO() as large, ZipFile(large, "w", ZIP_DEFLATED) as archive:
        for number in range(3):
            archive.writestr(str(number), bytes(100_000_000))
        archive.close()
        unpacked = large.getvalue()
    for name, content, message in (
        ("a.odt", good[: len(good) // 2], "not a valid .odt: File is not a zip file"),
        ("b.odt", bytes(damaged), "not a valid .odt"),
        ("c.odt", zipped({"content.xml": bomb}), "must not define entities"),
        ("e.odt", zipped({"content.xml": "<p>A dog"}), "Invalid XML"),
        ("f.docx", zipped({**FILES["docx"], "word/vbaProject.bin": "x"}), "has macros"),
        ("d.odt", zipped({"content.xml": "<p>" * 3000 + "</p>" * 3000}), "nested too deeply"),
        ("l.odt", zipped({"content.xml": b" " * 21_000_000}), "at most 20,000,000 bytes"),
        ("g.docx", unpacked, "at most 200,000,000 bytes"),
        ("h.epub", good, "no untranslated text"),
        ("i.srt", "A dog".encode("utf-16"), "not UTF-8"),
        ("j.srt", b"1\n\n2\n", "no untranslated text"),
        ("k.po", b"msgid", "Syntax error"),
    ):
        (tmp_path / name).write_bytes(content)
        out = tmp_path / "out"
        code, _, err = run("translate.py", "--input", tmp_path / name, "--output", out)
        assert code == 1, name
        assert message in err.splitlines()[-1], err
        assert not out.exists()


def test_the_bundled_model_translates_each_format(tmp_path, run, caplog):
    caplog.set_level("INFO")
    translator = Translator.from_pretrained("aiayn-en-de")
    contents = {kind: text.encode() for kind, text in TEXTS.items()}
    contents |= {kind: zipped(files) for kind, files in FILES.items()}
    written = {}
    for kind, content in contents.items():
        file = DocumentFile(content, kind, "en", "de")
        written[kind] = file.translate(translator, translator.search_options())
        again = DocumentFile(written[kind], kind, "de")
        assert kind in ("po", "xliff") or "Hund" in " ".join(again.sentences)
    path, output = tmp_path / "a.odt", tmp_path / "b.odt"
    path.write_bytes(contents["odt"])
    code, out, err = run("translate.py", "--input", path, "--output", output)
    assert (code, out) == (0, ""), err
    assert f"Reading {path} as --format odt." in caplog.text
    assert f"Translated {len(DocumentFile(contents['odt'], 'odt', 'en').sentences)} " in caplog.text
    assert output.read_bytes() == written["odt"]
