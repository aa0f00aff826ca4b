"""What of a text is translated, what stays as it is, and where it stands then."""

import html
import random
import unicodedata
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from conftest import small_model
from pasted_texts import PASTED
from starlette.testclient import TestClient
from transformers import pipeline

from modeling_aiayn.documents.document import Document, DocumentLines
from modeling_aiayn.inspection.alignment import aligner
from modeling_aiayn.inspection.attention_weights import AttentionChoice
from modeling_aiayn.pages.translation_page import TranslationPage
from modeling_aiayn.saved.loading import find_model
from modeling_aiayn.saved.tokenizers import load_tokenizer
from modeling_aiayn.serving.batching import ModelThread
from modeling_aiayn.serving.service import Service, make_app, served_model
from modeling_aiayn.tokenization import clean_text, has_words
from modeling_aiayn.translation import Translator
from modeling_aiayn.translation.hypotheses import Hypothesis
from modeling_aiayn.translation.segments.numbers import with_numbers
from modeling_aiayn.translation.segments.placement import units_of
from modeling_aiayn.translation.segments.segment import Segment
from modeling_aiayn.translation.segments.word_attention import word_attention


class EchoEngine:
    """An engine whose translations are the sources; attention is along the diagonal."""

    source_positions = target_positions = None
    models = ()
    search_defaults = {}
    device = torch.device("cpu")

    class rules:
        forced_bos_token_id = None

    def __init__(self):
        self.read = []

    def searches(self, sentences, options, *sizes):
        self.read += [list(sentence.input_ids) for sentence in sentences]
        found = [[Hypothesis(tuple(s.input_ids), -1.0, -1.0)] for s in sentences]
        yield range(len(sentences)), found

    def attention(self, sources, targets):
        return [torch.eye(len(b), len(a)) for a, b in zip(sources, targets, strict=True)]

    def check_options(self, options):
        pass


@pytest.fixture(scope="module")
def tokenizer():
    """The bundled model's vocabulary."""
    return load_tokenizer(find_model("aiayn-en-de"))


@pytest.fixture(scope="module")
def bundled():
    return Translator.from_pretrained("aiayn-en-de")


@pytest.fixture
def echo(tokenizer):
    """A translator that repeats."""
    return Translator(None, tokenizer, engine=EchoEngine())


@pytest.mark.parametrize(
    ("kind", "text", "read", "kept"), PASTED, ids=lambda value: repr(value)[:30]
)
def test_a_pasted_text_comes_back_with_all_its_pieces(echo, kind, text, read, kept):
    (found,) = echo([text])
    if read is None:
        assert (found, echo.engine.read) == (text, [])
        return
    assert echo.engine.read == [echo.source_tokenizer(read).input_ids]
    for piece in kept:
        assert found.count(piece.strip()) == 1
    # All that the model wrote is there, too.
    for piece in kept:
        found = found.replace(piece.strip(), "", 1)
    assert found.replace(" ", "") == clean_text(read).replace(" ", "")
    is_bullet = bool(kept) and text.lstrip().startswith(kept[0]) and kept[0].endswith(" ")
    assert bool(Segment.of(text).bullet) == is_bullet


@contextmanager
def entrances(translator):
    """What translates a text at each entrance: the pieces that stay must be in what it returns."""

    def of_lines(format_name, text):
        if format_name != "text":
            document = Document(text, format_name, "en")
            attention = partial(word_attention, translator)
            return document.translated(translator(document.sentences), attention)
        lines = DocumentLines(text.splitlines() or [""], "en")
        written = [line for x in lines for line in lines.add(translator([x])[0])]
        return "\n".join(written)

    def http(client, format_name, text):
        fields = {"q": text, "source": "en", "target": "de", "format": format_name}
        return client.post("/translate", json=fields).json()["translatedText"]

    pipe = pipeline(
        "aiayn-translation",
        model=small_model(vocab_size=8000),
        tokenizer=translator.source_tokenizer,
    )
    pipe.translator = translator
    page = TranslationPage(translator, ModelThread(), "", "en", 10_000, [])
    model = served_model(translator, ModelThread(), str, 1000, "en-de", batch_size=8)
    with TestClient(make_app(Service({("en", "de"): model}, 100_000))) as client:
        yield {
            "lines": lambda text: translator([text])[0],
            "split": lambda text: translator([text], split_sentences=True)[0],
            "pipeline": lambda text: pipe([text])[0]["translation_text"],
            "page": lambda text: (
                [*page.translate(text, 4, 0.6, "")][-1][0] if has_words(text) else text
            ),
            "text": partial(of_lines, "text"),
            "html": lambda text: html.unescape(of_lines("html", html.escape(text, quote=False))),
            "markdown": lambda text: html.unescape(of_lines("markdown", text)).replace("\\", ""),
            "http": partial(http, client, "text"),
            "http, html": lambda text: html.unescape(
                http(client, "html", f"<p>{html.escape(text, quote=False)}</p>")
            ),
        }


@pytest.mark.parametrize("model", ["echo", pytest.param("bundled", marks=pytest.mark.long)])
def test_every_entrance_keeps_the_pieces_of_every_pasted_text(tokenizer, model):
    is_echo = model == "echo"
    translator = (
        Translator(None, tokenizer, engine=EchoEngine())
        if is_echo
        else Translator.from_pretrained("aiayn-en-de", dtype="int8")
    )
    with entrances(translator) as ways:
        for name, translate in ways.items():
            for kind, text, read, kept in PASTED:
                if name in ("http, html", "html", "markdown") and kind in (
                    "invisible",
                    "markup",
                    "sign",
                ):
                    continue  # signs of markup have their own tests
                found, plain = translate(text), text.strip("\ufeff \t")
                if name == "markdown":  # which escapes by this sign
                    plain, kept = (str(x).replace("\\", "") for x in (plain, "\n".join(kept)))
                    kept = kept.splitlines()
                if read is None:
                    assert plain in found, name
                for piece in kept:
                    assert found.count(piece.strip()) == 1, (name, text, found)


PIECES = ["https://a.example/x", "joe@b.example", "{name}", "%d", "@anna", "😀", "5 km", "/a/b.c"]
WORDS = ["the", "old", "dog", "sees", "my", "red", "cat", "in", "our", "house"]


def test_mixtures_keep_every_piece_once_at_every_entrance(echo):
    rng = random.Random(0)
    with entrances(echo) as ways:
        for number in range(1000):
            chosen = rng.sample(PIECES, rng.randint(1, 4))
            parts = [*chosen, *rng.choices(WORDS, k=rng.randint(1, 6))]
            rng.shuffle(parts)
            text = " ".join(parts)
            name = [*ways][number % len(ways)]
            found = ways[name](text).replace("<p>", "").replace("</p>", "")
            for piece in chosen:
                assert found.count(piece) == 1, (name, text, found)
            assert sorted(found.split()) == sorted(text.split()), (name, text, found)


def test_alignment_counts_the_words_of_whole_texts(bundled):
    text = "- The dog {name} runs. 😀"
    (best,) = next(bundled.stream([text]))
    assert best.read == "The dog runs."
    words = (text.split(), best.text.split())
    assert (words[1][0], words[1][-1]) == ("-", "😀") and "{name}" in words[1]
    links = [
        tuple(map(int, x.split("-"))) for x in aligner(bundled, AttentionChoice())(best).split()
    ]
    assert all(source < len(words[0]) and target < len(words[1]) for source, target in links)
    assert (2, words[1].index("Hund")) in links


def test_a_text_of_several_sentences_is_split_if_asked(bundled):
    sentences = ["The dog runs.", "See {name}!", "We see Mr. Smith."]
    text = f"  {sentences[0]}  {sentences[1]}\n\n{sentences[2]} "
    one, two, three = bundled(sentences)
    assert bundled([text, "", "A cat."], split_sentences=True) == [
        f"  {one}  {two}\n\n{three} ", "", *bundled(["A cat."])
    ]  # fmt: skip
    (found,) = pipeline("aiayn-translation", model=find_model("aiayn-en-de"))([text])
    assert found == {"translation_text": f"  {one}  {two}\n\n{three} "}


def test_pieces_in_documents_are_those_of_plain_texts():
    sentences = Document("<p>Hello {name}, see /a/b.txt 😀 <b>now</b>.</p>", "html", "en").sentences
    assert sentences == ["Hello, see now."]
    assert units_of(sentences[0])


@pytest.mark.parametrize(
    ("text", "wrong", "right"),
    [
        ("I have 682 cats.", "Ich habe 68 Katzen.", "Ich habe 682 Katzen."),
        ("In 2026 we sold 12345.", "1235 verkauft in 2062.", "12345 verkauft in 2026."),
        ("He paid 1,250 euros.", "Er zahlte 120 Euro.", "Er zahlte 1250 Euro."),
        ("I have 9429 cats.", "Ich habe 942,000 Katzen.", "Ich habe 9429 Katzen."),
        # 575 is right, and of two lost numbers only one has a place.
        ("From 1812 to 1813 or 575", "Von 575 bis 181", "Von 575 bis 1813"),
    ],
)
def test_a_lost_number_replaces_a_similar_wrong_one(text, wrong, right):
    assert with_numbers(text, wrong) == right
    assert with_numbers(text, right) == right


@pytest.mark.parametrize(
    ("text", "translation"),
    [
        ("He paid 1,250 euros.", "Er zahlte 1.250 Euro."),
        ("He paid 12345 euros.", "Il a payé 12\u202f345 euros."),
        ("It costs 1,234\u20135,678 euros.", "Es kostet 1.234-5.678 Euro."),
        ("250,000 people", "250 mil personas"),
        ("3,500 people", "3 mil 500 personas"),
        ("103 million people", "1億300万人"),
        ("12,345 people", "1만 2345명"),
        ("120,000 people", "1 लाख 20 हज़ार लोग"),
        ("in 2019 of 34", "۲۰۱۹ में 43"),
        ("1250 people", "bin 250 kişi"),
        ("1'250 francs or 123 456", "1250 Franken oder 123456"),
        ("16 345 Liter", "16 barrels of 34"),
        ("on 28.11.2026", "on 28 November 26"),  # dates may be written in other ways
        ("at 1345 on 11/29/2024", "um 13 Uhr 45"),
        ("the 1980s, a B747", "die 190, eine 77"),
        ("in 1,234 million", "in 1,2 Milliarden"),
        ("of 1980", "der 80er, '81"),
        ("48 cats", "84 Katzen"),  # as 11 pm becomes 23 Uhr
        ("100 cats, 3 dogs", "hundert Katzen, 10 Hunde"),
        ("He drove 135 in town", "Er fuhr 84"),
        ("120 cats", "hundertzwanzig Katzen"),
        ("9" * 5000, "9" * 4000),
    ],
)
def test_numbers_of_good_translations_stay(text, translation):
    assert with_numbers(text, translation) == translation


def test_the_bundled_model_writes_long_numbers_right(bundled):
    rng = random.Random(0)
    texts = ["I have {} cats.", "There are {} books on the table.", "The book costs {} dollars."]
    numbers = [str(rng.randrange(201, 9_999)) for _ in range(60)]
    sources = [text.format(number) for text, number in zip(texts * 20, numbers, strict=True)]
    found = bundled(sources)
    ours = sum(number in text for number, text in zip(numbers, found, strict=True))
    by_model = sum(
        number in bundled.target_tokenizer.decode(best.token_ids)
        for number, (best,) in zip(numbers, bundled.stream(sources), strict=True)
    )
    assert ours > 50 > 40 > by_model


def test_numbers_beside_terms_marks_and_accents(bundled):
    translator = bundled.directed(None)
    translator.use_glossary({"Room 333": "=Saal 444", "250 euros": "=300 Euro"})
    (found,) = translator(["Room 333 is empty."])
    assert "Saal 444" in found and "333" not in found
    (found,) = translator(["We pay 1,250 euros."])
    assert "300 Euro" in found and "1250" not in found
    page = Document("<p>I have <b>683 cats</b>.</p>", "html", "en")
    assert page.translated(translator(page.sentences), partial(word_attention, translator)) == (
        "<p>Ich habe <b>683 Katzen</b>.</p>"
    )
    # Letters and accents that the model reads as one.
    for word in ("café", "কো", "سُئِلَ"):
        text = unicodedata.normalize("NFD", f"In 1987 the {word} had 4821 guests.")
        (found,) = translator([text])
        assert "1987" in found
    assert len(word_attention(translator, "A café.", text)) == len(units_of(text))
    # The beginning that a user gives stays.
    ((found,),) = translator.stream(["I have 683 cats."], prefixes=["Ich habe 68"])
    assert found.text.startswith("Ich habe 68")
