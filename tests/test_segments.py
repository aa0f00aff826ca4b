"""What of a text is translated, what stays as it is, and where it stands then."""

import random

import pytest
import torch
from pasted_texts import PASTED
from transformers import pipeline

from modeling_aiayn.documents.document import Document, document_lines
from modeling_aiayn.inspection.alignment import aligner
from modeling_aiayn.inspection.attention_weights import AttentionChoice
from modeling_aiayn.saved.loading import find_model
from modeling_aiayn.saved.tokenizers import load_tokenizer
from modeling_aiayn.translation import Translator
from modeling_aiayn.translation.hypotheses import Hypothesis
from modeling_aiayn.translation.segments.placement import units_of
from modeling_aiayn.translation.segments.segment import Segment


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

    def search(self, sentences, options):
        self.read += [list(sentence.input_ids) for sentence in sentences]
        return [[Hypothesis(tuple(s.input_ids), -1.0, -1.0)] for s in sentences]

    def attention(self, sources, targets):
        return [torch.eye(len(b), len(a)) for a, b in zip(sources, targets, strict=True)]

    def check_options(self, options):
        pass


@pytest.fixture(scope="module")
def tokenizer():
    """The bundled model's vocabulary."""
    return load_tokenizer(find_model("aiayn-en-de"))


@pytest.fixture
def echo(tokenizer):
    """A translator that repeats."""
    return Translator(None, tokenizer, engine=EchoEngine())


@pytest.mark.parametrize(("text", "read", "kept"), PASTED, ids=lambda value: repr(value)[:30])
def test_a_pasted_text_comes_back_with_all_its_pieces(echo, text, read, kept):
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
    assert found.replace(" ", "") == read.replace(" ", "")
    assert Segment.of(text).bullet == (kept[0] if kept and text.startswith(kept[0] + "The") else "")


def test_mixtures_keep_every_piece_once_at_every_entrance(echo):
    """Lines, texts, HTML and Markdown; Translator serves the page and HTTP, too."""
    pieces = [
        "https://a.example/x",
        "joe@b.example",
        "{name}",
        "%d",
        "@anna",
        "😀",
        "5 km",
        "/a/b.c",
    ]
    rng, words = (
        random.Random(0),
        ["the", "old", "dog", "sees", "my", "red", "cat", "in", "our", "house"],
    )
    for number in range(300):
        chosen = rng.sample(pieces, rng.randint(1, 4))
        parts = [*chosen, *rng.choices(words, k=rng.randint(1, 6))]
        rng.shuffle(parts)
        text = " ".join(parts)
        format_name = ["lines", "text", "html", "markdown"][number % 4]
        if format_name == "lines":
            (found,) = echo([text])
        else:
            lines = document_lines(echo, [text], format_name, "en", str)
            (found,) = next(done for line in lines if (done := lines.add(echo([line])[0])))
            found = found.replace("\\", "")
        for piece in chosen:
            assert found.count(piece) == 1, (text, found)
        assert sorted(found.split()) == sorted(text.split()), (text, found)


def test_alignment_counts_the_words_of_whole_texts():
    translator = Translator.from_pretrained("aiayn-en-de")
    text = "- The dog {name} runs. 😀"
    (best,) = next(translator.stream([text]))
    assert best.read == "The dog runs."
    words = (text.split(), best.text.split())
    assert (words[1][0], words[1][-1]) == ("-", "😀") and "{name}" in words[1]
    links = [
        tuple(map(int, x.split("-"))) for x in aligner(translator, AttentionChoice())(best).split()
    ]
    assert all(source < len(words[0]) and target < len(words[1]) for source, target in links)
    assert (2, words[1].index("Hund")) in links


def test_a_text_of_several_sentences_is_split_if_asked():
    translator = Translator.from_pretrained("aiayn-en-de")
    sentences = ["The dog runs.", "See {name}!", "We see Mr. Smith."]
    text = f"  {sentences[0]}  {sentences[1]}\n\n{sentences[2]} "
    one, two, three = translator(sentences)
    assert translator([text, "", "A cat."], split_sentences=True) == [
        f"  {one}  {two}\n\n{three} ", "", *translator(["A cat."])
    ]  # fmt: skip
    (found,) = pipeline("aiayn-translation", model=find_model("aiayn-en-de"))([text])
    assert found == {"translation_text": f"  {one}  {two}\n\n{three} "}


def test_pieces_in_documents_are_those_of_plain_texts():
    sentences = Document("<p>Hello {name}, see /a/b.txt 😀 <b>now</b>.</p>", "html", "en").sentences
    assert sentences == ["Hello, see now."]
    assert units_of(sentences[0])
