"""Attention maps: correct weights, correct labels, and pictures of any token."""

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from contextlib import contextmanager

import pytest
import torch
from conftest import small_model
from matplotlib.figure import Figure
from PIL import Image
from tokenizers import decoders

from modeling_aiayn import AiaynEncoderModel, AiaynForCausalLM, AiaynForSequenceClassification
from modeling_aiayn.inspection.alignment import maps_with_words
from modeling_aiayn.inspection.alignment_scores import GoldPair
from modeling_aiayn.inspection.attention_page import UNIT, write_attention_page
from modeling_aiayn.inspection.attention_weights import (
    AttentionChoice,
    AttentionMaps,
    attention_maps,
    text_attention_maps,
)
from modeling_aiayn.inspection.heat_maps import draw_alignment_matrix, draw_attention
from modeling_aiayn.inspection.pictures import MAX_PIXELS, labels_for, visible, write_figure
from modeling_aiayn.inspection.position_maps import (
    draw_positions,
    products_by_distance,
    wavelengths,
)
from modeling_aiayn.tokenization import byte_tokenizer, train_word_tokenizer
from modeling_aiayn.translation import Translator
from modeling_aiayn.translation.options import SearchOptions
from modeling_aiayn.translation.segments.token_words import Tokens, merge_words, tokens_of_ids

SOURCE, TARGET = "The dog sees the old cat.", "Der Hund sieht die Katze."
HOSTILE = [
    *("漢字", "שלום", "😀", "👩\u200d👧", "\x07\x1b", "a\u202eb", "\u2028"),
    *(r"$\frac{1}{2}$", r"$\badcmd$", "]]>", "&amp;", "\"'`", "{{DATA}}"),
    *("<script>alert(1)</script>", "</script><script>document.title='hurt'</script>"),
    "<img/src=x/onerror=alert(2)>",
]


@pytest.fixture
def translator(tokenizer):
    return Translator(small_model(vocab_size=len(tokenizer)), tokenizer)


@pytest.fixture(scope="module")
def hostile_maps():
    """Return maps whose tokens try to break pictures and pages."""
    torch.manual_seed(0)
    size = len(HOSTILE)
    source = Tokens([*HOSTILE, "</s>"], [*range(size), None], HOSTILE)
    # The first two target tokens are one word.
    names = [*HOSTILE[::-1], "</s>"]
    target = Tokens(names, [0, *range(size - 1), None], HOSTILE[:-1][::-1])
    inputs = Tokens(["<s>", *names[:-1]], [None, 0, *range(size - 1)], target.words)
    return AttentionMaps(
        source,
        target,
        inputs,
        encoder=torch.rand(2, 3, size + 1, size + 1).softmax(-1),
        decoder=torch.rand(4, 5, size + 1, size + 1).softmax(-1),
        cross=(9 * torch.rand(4, 5, size + 1, size + 1)).softmax(-1),
    )


@contextmanager
def weights_by_projections(model, is_causal):
    """Compute softmax(Q K^T / sqrt(d_k)) of each attention from the outputs of its projections."""
    found = {}

    def keep(name, side):
        def hook(module, arguments, output):
            found.setdefault(name, {})[side] = output[0]

        return hook

    hooks = [
        getattr(module, f"{side}_proj").register_forward_hook(keep(name, side))
        for name, module in model.named_modules()
        if name.endswith(("self_attn", "encoder_attn"))
        for side in "qk"
    ]
    weights = {}
    yield weights
    for hook in hooks:
        hook.remove()
    for name, sides in found.items():
        width = model.get_submodule(name).head_dim
        query, key = (sides[side].unflatten(-1, (-1, width)) for side in "qk")  # [T, H, K]
        scores = torch.einsum("thk,shk->hts", query, key) / math.sqrt(width)
        if is_causal(name):
            later = torch.ones(scores.shape[-2:]).triu(1).bool()
            scores = scores.masked_fill(later, -math.inf)
        weights[name] = scores.softmax(-1)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_weights_equal_softmax_of_queries_and_keys(translator, implementation):
    """The expected weights come from a pass with the model's own attention implementation."""
    model = translator.model
    model.set_attn_implementation(implementation)
    ids, labels = (translator.source_tokenizer(text).input_ids for text in (SOURCE, TARGET))
    decoder = "model.decoder.layers"
    with (
        torch.no_grad(),
        weights_by_projections(
            model, lambda name: name.startswith(decoder) and "self" in name
        ) as by_hand,
    ):
        model(input_ids=torch.tensor([ids]), decoder_input_ids=torch.tensor([[0, *labels[:-1]]]))
    maps = attention_maps(translator, SOURCE, TARGET)
    assert model.config._attn_implementation == implementation
    for kind in maps.kinds:
        half, attention = ("decoder", "encoder_attn") if kind == "cross" else (kind, "self_attn")
        weights = getattr(maps, kind)
        expected = [
            by_hand[f"model.{half}.layers.{layer}.{attention}"] for layer in range(len(weights))
        ]
        torch.testing.assert_close(weights, torch.stack(expected))
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    assert maps.encoder.shape[:2] == (2, 3)
    assert maps.cross.shape == (3, 2, len(labels), len(ids))
    assert maps.kinds == ["encoder", "decoder", "cross"]


def test_each_module_keeps_its_training_mode_also_after_an_error(translator):
    model = translator.model
    model.config.dropout = model.config.attention_dropout = 0.5
    expected = attention_maps(translator, SOURCE, TARGET)
    model.set_attn_implementation("sdpa")
    model.train()
    model.model.encoder.eval()
    modes = [module.training for module in model.modules()]
    maps = attention_maps(translator, SOURCE, TARGET)
    torch.testing.assert_close(maps.cross, expected.cross)
    with pytest.raises((IndexError, ValueError), match=r"1000000|index out of range"):
        attention_maps(translator, SOURCE, [10**6, 5])
    assert [module.training for module in model.modules()] == modes
    assert model.config._attn_implementation == "sdpa"


def test_default_target_is_the_best_hypothesis(translator):
    options = {"num_beams": 3, "max_length_factor": 0.0, "max_length_offset": 9}
    ((best, *_),) = translator.stream([SOURCE], SearchOptions(**options))
    maps = attention_maps(translator, SOURCE, **options)
    tokens = translator.target_tokenizer.convert_ids_to_tokens(list(best.token_ids))
    assert maps.target.tokens == tokens
    assert " ".join(maps.target.words).split() == best.text.split()
    assert attention_maps(translator, " ").target.tokens == ["</s>"]


def test_long_source_is_truncated_as_for_translation(translator, caplog):
    maps = attention_maps(translator, "dog " * 5000, "Der Hund.")
    assert "cut from 5001 to 512 tokens" in caplog.text
    assert maps.cross.shape[-1] == len(maps.source.tokens) == 512
    assert maps.source.tokens[-1] == "</s>" and maps.source.word_of[-1] is None


def model_that_attends_to_equal_tokens():
    """Build a model whose decoder attends to the source token equal to the one that it reads.

    Embeddings are unit vectors, sub-layers add nothing, and scores are large for equal tokens.
    """
    model = small_model(vocab_size=12, encoder_layers=1, decoder_layers=1, scale_embedding=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for module in model.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.weight.fill_(1.0)
        model.model.encoder.embed_tokens.weight.copy_(100 * torch.eye(12))
        attention = model.model.decoder.layers[0].encoder_attn
        attention.q_proj.weight.copy_(4 * torch.eye(12))
        attention.k_proj.weight.copy_(4 * torch.eye(12))
    return model


def test_rows_are_labelled_by_the_predicted_token():
    """Row t reads token t - 1 and attends to it; its label is token t."""
    tokenizer = train_word_tokenizer(["a b c d e f"], min_frequency=1)
    translator = Translator(model_that_attends_to_equal_tokens(), tokenizer)
    maps = attention_maps(translator, "c f a b", "b a f c")
    assert maps.target.tokens == ["b", "a", "f", "c", "</s>"]
    assert maps.inputs.tokens == ["<s>", "b", "a", "f", "c"]
    view = maps.view("cross")
    looked_at = view.weights.mean((0, 1)).argmax(-1).tolist()
    found = {row: view.columns[column] for row, column in zip(view.rows, looked_at, strict=True)}
    assert found | {"b": None} == {"b": None, "a": "b", "f": "a", "c": "f", "</s>": "c"}
    view = maps.view("decoder")
    assert (view.rows, view.columns) == (maps.target.tokens, maps.inputs.tokens)
    assert not view.weights.triu(1).any()


@pytest.mark.parametrize("cls", [AiaynForSequenceClassification, AiaynEncoderModel])
def test_encoder_only_model_has_encoder_self_attention(cls, tokenizer, caplog):
    model = small_model(cls, vocab_size=len(tokenizer))
    model.set_attn_implementation("sdpa")
    ids = torch.tensor([tokenizer(SOURCE).input_ids])
    with torch.no_grad(), weights_by_projections(model, lambda name: False) as by_hand:
        model(ids)
    maps = text_attention_maps(model, tokenizer, SOURCE)
    torch.testing.assert_close(maps.encoder, torch.stack(list(by_hand.values())))
    assert maps.kinds == ["encoder"] and maps.view().rows == maps.view().columns
    assert maps.source.tokens == tokenizer.convert_ids_to_tokens(ids[0].tolist())
    with pytest.raises(ValueError, match="kind must be encoder for this model, got 'cross'"):
        maps.view("cross")
    short = text_attention_maps(model, tokenizer, SOURCE, max_length=4)
    assert short.source.tokens == [*maps.source.tokens[:3], "</s>"]
    assert f"truncated from {ids.size(1)} to 4 tokens" in caplog.text


def test_language_model_predicts_all_tokens_but_the_first(tokenizer):
    model = small_model(AiaynForCausalLM, vocab_size=len(tokenizer))
    tokens = tokenizer(TARGET).tokens()
    with torch.no_grad(), weights_by_projections(model, lambda name: True) as by_hand:
        model(torch.tensor([tokenizer(TARGET).input_ids[:-1]]))
    maps = text_attention_maps(model, tokenizer, TARGET)
    torch.testing.assert_close(maps.decoder, torch.stack(list(by_hand.values())))
    assert (maps.inputs.tokens, maps.target.tokens) == (tokens[:-1], tokens[1:])
    assert maps.kinds == ["decoder"]
    merged = maps.merged()
    assert merged.inputs.tokens == TARGET.split()
    torch.testing.assert_close(merged.decoder.sum(-1), torch.ones(merged.decoder.shape[:-1]))
    with pytest.raises(ValueError, match="The text must have at least 2 tokens, got 1 in ''"):
        text_attention_maps(model, tokenizer, "")


def test_a_language_model_s_text_keeps_its_blanks_and_words_like_the_end():
    tokenizer = byte_tokenizer()
    model = small_model(AiaynForCausalLM, vocab_size=len(tokenizer))
    maps = text_attention_maps(model, tokenizer, "\nR</s> ")
    assert len(maps.inputs.tokens) == 6 and len(maps.target.tokens) == 6


def test_merging_words_adds_columns_and_averages_rows():
    weights = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.5, 0.1, 0.1, 0.3], [0.25, 0.25, 0.0, 0.5]])
    columns = Tokens(["▁a", "▁b", "c", "</s>"], [0, 1, 1, None], ["a", "bc"])
    rows = Tokens(["▁x", "y", "</s>"], [0, 0, None], ["xy"])
    merged = merge_words(weights, rows, columns)
    torch.testing.assert_close(merged, torch.tensor([[0.3, 0.35, 0.35], [0.25, 0.25, 0.5]]))
    assert columns.merged().tokens == ["a", "bc", "</s>"]
    assert rows.merged().merged() == rows.merged()


def test_words_are_separated_by_spaces(tokenizer):
    ids = tokenizer("Der a 漢字 Hund.").input_ids
    tokens = tokens_of_ids(tokenizer, [0, *ids, 1])
    assert tokens.merged().tokens == ["<s>", "Der", "a", "漢字", "Hund.", "</s>", "<pad>"]
    assert "".join(tokens.tokens[1:-2]).startswith("\u2581D")
    assert tokens_of_ids(tokenizer, []).tokens == []


def test_token_that_joins_the_word_before_it_belongs_to_that_word():
    """Clean-up joins the apostrophe to the word before it only once the next letter is decoded."""
    tokenizer = train_word_tokenizer(["der hund ' s tag ."], min_frequency=1)
    tokenizer.backend_tokenizer.decoder = decoders.WordPiece(cleanup=False)
    tokenizer.clean_up_tokenization_spaces = True
    tokens = tokens_of_ids(tokenizer, tokenizer("Der Hund's Tag.").input_ids)
    assert tokens.words == ["der", "hund's", "tag."]
    assert tokens.word_of == [0, 1, 1, 1, 2, 2, None]


def test_invisible_characters_become_code_points():
    assert visible("a\x07b\u202e\n\u2028") == "aU+0007bU+202EU+000AU+2028"
    assert visible("👩\u200d👧 漢 שלום é") == "👩\u200d👧 漢 שלום é"
    assert [visible(blank) for blank in (" ", "\u3000 ", "")] == ["␣", "␣␣", ""]


def test_character_without_a_glyph_becomes_a_code_point():
    labels, families = labels_for("a.png", ["Hund", "\ue000漢" * 9, r"$\frac$", "\U000e0fff"])
    assert labels[0] == "Hund" and labels[1].startswith("U+E000") and labels[2] == r"$\frac$"
    assert labels[3] == "U+E0FFF" and families[0] == "DejaVu Sans"
    assert labels_for("a.svg", ["漢"])[0] == ["漢"]


def test_hostile_tokens_are_drawn_without_a_warning(hostile_maps, tmp_path):
    draw_attention(hostile_maps.view(), "1,2", tmp_path / "map.png")
    draw_attention(hostile_maps.merged().view("decoder"), "layers", tmp_path / "layers.png")
    draw_attention(hostile_maps.view("encoder"), "heads", tmp_path / "grid.svg")
    for path in tmp_path.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_svg_contains_the_tokens_as_text(hostile_maps, tmp_path):
    path = tmp_path / "map.svg"
    draw_attention(hostile_maps.view(), "mean", path)
    again = tmp_path / "again.svg"
    draw_attention(hostile_maps.view(), "mean", again)
    assert path.read_bytes() == again.read_bytes()
    root = ElementTree.parse(path).getroot()
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    for token in HOSTILE:
        label = token if len(token) <= 30 else f"{token[:29]}…"
        assert texts.count(visible(label)) == 2, token
    assert not list(root.iter("{http://www.w3.org/2000/svg}script"))


def test_long_words_are_cut(tmp_path):
    address = f"https://example.com/{'page/' * 9}"
    tokens = Tokens([address, "b"], [None, None], [])
    maps = AttentionMaps(source=tokens, encoder=torch.rand(3, 2, 2, 2))  # two rows of 0.16 inch
    draw_attention(maps.view(), "heads", tmp_path / "map.svg")
    root = ElementTree.parse(tmp_path / "map.svg").getroot()
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count(f"{address[:29]}…") == 2 + 3  # below two maps, and beside three


def test_rejects_pictures_that_are_not_png_or_svg(hostile_maps, tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.png or \.svg, got '.*map\.pdf'"):
        draw_attention(hostile_maps.view(), "layers", tmp_path / "map.pdf")


def test_very_large_picture_gets_a_lower_resolution(tmp_path):
    figure = Figure(figsize=(100, 80))
    figure.subplots().plot([0, 1])
    write_figure(figure, tmp_path / "large.png")
    with Image.open(tmp_path / "large.png") as image:
        assert 0.3 * MAX_PIXELS < image.width * image.height <= MAX_PIXELS


def test_alignment_matrix_frames_the_links(translator, tmp_path):
    words = (
        ["The", "dog", "sees", "the", "old", "cat", "."],
        ["Der", "Hund", "sieht", "die", "Katze", "."],
    )
    sure = frozenset({(0, 0), (1, 1), (2, 2), (5, 4)})
    pair = GoldPair(SOURCE, TARGET, words, sure, sure | {(3, 3), (4, 4)})
    maps = maps_with_words(translator, SOURCE, TARGET, words).merged()
    assert maps.source.tokens == [*words[0], "</s>"]
    assert maps.target.tokens == [*words[1], "</s>"]
    path = tmp_path / "matrix.svg"
    draw_alignment_matrix(maps, AttentionChoice(1), pair, path)
    svg = path.read_text()
    assert "sure link" in svg and "possible link" in svg
    # Two possible links and the legend's sample are dashed.
    dashed = re.findall(r"stroke-dasharray: [^;]*; stroke-dashoffset: 0; stroke: #ff7f0e", svg)
    assert len(dashed) == 3
    assert len(re.findall(r"stroke: #ff7f0e", svg)) == len(pair.possible) + 2
    cut = GoldPair("", "", ((), ()), frozenset({(9, 0)}), frozenset({(9, 0)}))
    draw_alignment_matrix(maps, AttentionChoice(), cut, tmp_path / "matrix.png")


def test_wavelengths_and_dot_products_follow_the_formula(tmp_path):
    torch.testing.assert_close(wavelengths(4, 100.0), torch.tensor([2 * math.pi, 2 * math.pi * 10]))
    # By sin a sin b + cos a cos b = cos(a - b) the product is a sum of cosines of the distance.
    distances = torch.tensor([0, 3, -5])
    expected = [math.cos(k) + math.cos(k / 10) for k in (0, 3, 5)]
    torch.testing.assert_close(products_by_distance(4, distances, 100.0), torch.tensor(expected))
    draw_positions(8, tmp_path / "positions.png", num_positions=11)
    assert (tmp_path / "positions.png").read_bytes().startswith(b"\x89PNG")


def test_page_data_cannot_end_its_html_element(hostile_maps, tmp_path):
    path = tmp_path / "attention.html"
    write_attention_page(hostile_maps, path)
    page = path.read_text()
    (before, data, after) = re.fullmatch(
        r'(.*<script id="data" type="application/json">)(.*?)(</script>.*)', page, re.DOTALL
    ).groups()
    assert not set(data) & set("<>&\u2028\u2029") and data.isascii()
    assert before.count("<script") == 1 and after.count("<script") == 1
    layouts = json.loads(data)["layouts"]
    assert [layout["name"] for layout in layouts] == ["tokens", "words"]
    assert layouts[0]["kinds"][0]["rows"] == [visible(token) for token in [*HOSTILE, "</s>"]]
    assert "default-src 'none'" in before and "unsafe" not in before
    assert "http" not in (before + after).replace("http-equiv", "")
    write_attention_page(hostile_maps.merged(), path)
    assert '"words"' not in path.read_text()


@pytest.fixture
def page(browser, hostile_maps, tmp_path):
    """Open the page; at the end check that no foreign script ran and nothing was requested."""
    path = tmp_path / "attention.html"
    write_attention_page(hostile_maps, path)
    page = browser.new_page()
    messages, requests = [], []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("dialog", lambda dialog: (messages.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    yield page
    assert messages == []
    assert requests == [path.as_uri()]
    assert page.title() == "Attention"
    assert page.locator("script").count() == 2 and page.locator("img").count() == 0
    page.close()


def hover(page, row, column):
    cells = page.locator("#cells")
    box = cells.bounding_box()
    size = box["width"] / page.locator("#columns span").count()
    cells.hover(position={"x": (column + 0.5) * size, "y": (row + 0.5) * size})
    return float(page.locator("#weight").text_content())


@pytest.mark.long
@pytest.mark.parametrize(
    ("layout", "kind"), [("tokens", "encoder"), ("tokens", "cross"), ("words", "decoder")]
)
def test_page_shows_the_weight_under_the_pointer(page, hostile_maps, kind, layout):
    maps = hostile_maps if layout == "tokens" else hostile_maps.merged()
    page.select_option("#layout", layout)
    page.select_option("#kind", kind)
    weights = getattr(maps, kind)
    for choice in (AttentionChoice(1, 2), AttentionChoice(0), AttentionChoice(head=1)):
        page.select_option("#layer", "mean" if choice.layer is None else str(choice.layer))
        page.select_option("#head", "mean" if choice.head is None else str(choice.head))
        for row, column in ((0, 0), (3, 7), (weights.size(2) - 1, weights.size(3) - 1)):
            expected = float(choice.of(weights)[row, column])
            assert hover(page, row, column) == pytest.approx(expected, abs=5e-5 + 1 / UNIT)


def test_page_shows_tokens_as_plain_text(page, hostile_maps):
    shown = [visible(token) for token in hostile_maps.source.tokens]
    assert page.locator("#columns span").all_text_contents() == shown
    assert page.locator("#column-strip button").all_text_contents() == shown
    hover(page, 0, HOSTILE.index(r"$\badcmd$"))
    assert r"$\badcmd$" in page.locator("#shown").text_content()


def test_page_shows_all_weights_of_a_token(page, hostile_maps):
    weights = hostile_maps.cross.mean((0, 1))
    page.locator("#row-strip button").nth(2).hover()
    says = page.locator("#shown").text_content()
    best = int(weights[2].argmax())
    assert f"attends to {visible(hostile_maps.source.tokens[best])} {weights[2, best]:.4f}" in says
    titles = page.locator("#column-strip button").evaluate_all("all => all.map(one => one.title)")
    assert [float(title) for title in titles] == pytest.approx(weights[2].tolist(), abs=1e-4)
    page.locator("#column-strip button").nth(5).click()
    assert "gets attention from" in page.locator("#shown").text_content()
    page.locator("#row-title").hover()
    assert "gets attention from" in page.locator("#shown").text_content()


def test_page_works_by_keyboard(page, hostile_maps):
    page.locator("#layout").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    name = visible(hostile_maps.target.tokens[1])
    assert page.locator("#shown").text_content().startswith(f"{name} (target predicted)")
    page.keyboard.press("Tab")
    page.keyboard.press("End")
    assert page.locator("#shown").text_content().startswith("</s> (source attended to)")
    page.keyboard.press("Tab")
    for key in ("ArrowUp", "ArrowDown", "ArrowDown", "ArrowLeft"):
        page.keyboard.press(key)
    shown = float(page.locator("#weight").text_content())
    expected = hostile_maps.cross.mean((0, 1))[2, len(HOSTILE) - 1]
    assert shown == pytest.approx(float(expected), abs=1e-4)


def test_script_draws_attention_of_a_translator(run, model_folder, tmp_path):
    options = ("--model", model_folder, "--text", "The dog.", "--target", "Der Hund.")
    for name, flags in (
        ("a.png", ("--kind", "decoder", "--attention", "heads")),
        ("a.svg", ("--attention", "1,0", "--words")),
        ("a.html", ()),
    ):
        code, out, err = run("show_attention.py", *options, "--output", tmp_path / name, *flags)
        assert code == 0, err
        assert out == f"The dog. -> Der Hund.: {tmp_path / name}\n"
        assert (tmp_path / name).stat().st_size > 5000


@pytest.mark.parametrize(
    "cls", [AiaynForSequenceClassification, AiaynForCausalLM, AiaynEncoderModel]
)
def test_script_draws_attention_of_other_models(run, tokenizer, tmp_path, cls):
    small_model(cls, vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    options = ("--model", tmp_path, "--text", "The dog.", "--output", tmp_path / "a.svg")
    code, out, err = run("show_attention.py", *options)
    assert (code, out) == (0, f"The dog.: {tmp_path / 'a.svg'}\n"), err


def test_changed_target_token_affects_later_rows_only(translator):
    one, other = (
        attention_maps(translator, SOURCE, f"Der Hund {last}.") for last in ("sieht", "bringt")
    )
    pairs = zip(one.target.tokens, other.target.tokens, strict=False)
    first = next(index for index, (a, b) in enumerate(pairs) if a != b)
    for kind in ("decoder", "cross"):
        a, b = (getattr(maps, kind)[0, 0, : first + 2, : first + 1] for maps in (one, other))
        torch.testing.assert_close(a[: first + 1], b[: first + 1])
        assert not torch.allclose(a[first + 1], b[first + 1])
