"""Lexical shortlists, against searches that suppress all other ids."""

import copy
import itertools
import json
import shutil

import pytest
import torch
from conftest import small_model

from modeling_aiayn.data.embedded_corpus import generate_pairs
from modeling_aiayn.inspection.alignment import count_links
from modeling_aiayn.saved.loading import BUNDLED_MODEL
from modeling_aiayn.tokenization import vocabulary_sha256
from modeling_aiayn.translation import Translator
from modeling_aiayn.translation.hypotheses import SourceSentence
from modeling_aiayn.translation.options import SearchOptions
from modeling_aiayn.translation.shortlist import LinkCounts, Shortlist
from modeling_aiayn.translation.torch_engine import TorchEngine

SOURCES = [[5, 6, 7, 2], [8, 9, 2], [10, 11, 12, 13, 2]]
V = 47


def shortlist_of(offered, always=()):
    """A shortlist that offers the same ids to each source id."""
    offered = torch.tensor(sorted(offered))
    starts = torch.arange(V + 1) * len(offered)
    return Shortlist(starts, offered.repeat(V), torch.tensor(always, dtype=torch.long), ["a", "b"])


def searched(engine, options, **given):
    sentences = [SourceSentence(ids, number=number, **given) for number, ids in enumerate(SOURCES)]
    return engine.search(sentences, options)


SEARCHES = [
    ({}, {}),
    ({"num_beams": 1}, {}),
    ({"num_beams": 5, "nbest": 3, "no_repeat_ngram_size": 2}, {}),
    ({}, {"prefix": (3, 30)}),
    ({}, {"phrases": [[(31, 4)], [(33,)]]}),
    ({"do_sample": True, "top_p": 0.8, "nbest": 2, "num_beams": 2}, {}),
    ({"coverage_penalty": 0.2}, {}),
]


def assert_same(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert [best.token_ids for best in ours] == [best.token_ids for best in theirs]
        scores = [best.score for best in theirs]
        assert [best.score for best in ours] == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize(("options", "given"), SEARCHES, ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_a_shortlist_of_all_ids_changes_nothing(options, given, bias):
    model = small_model(lm_head_bias=bias, vocab_size=V)
    options = SearchOptions(max_length_offset=6, **options)
    for models in ([model], [model] * 2):
        found = searched(TorchEngine(models, shortlist=shortlist_of(range(V))), options, **given)
        assert_same(found, searched(TorchEngine(models), options, **given))


@pytest.mark.parametrize(("options", "given"), SEARCHES, ids=str)
def test_other_ids_get_no_probability(options, given):
    """As in a model whose generation config suppresses them, with a softmax over the others."""
    model = small_model(vocab_size=V)
    offered = {2, *range(20, 40)}
    options = SearchOptions(max_length_offset=6, **options)
    found = searched(TorchEngine([model], shortlist=shortlist_of(offered)), options, **given)
    needed = {
        *given.get("prefix", ()),
        *itertools.chain(*(x[0] for x in given.get("phrases", []))),
    }
    hidden = copy.deepcopy(model)
    hidden.generation_config.suppress_tokens = sorted({*range(V)} - offered - needed)
    hidden.generation_config.renormalize_logits = True
    assert_same(found, searched(TorchEngine([hidden]), options, **given))
    used = {token for each in found for best in each for token in best.token_ids}
    assert used <= offered | needed


def test_suppressed_ids_stay_suppressed():
    model = small_model(vocab_size=V)
    model.generation_config.suppress_tokens = [21, 45]
    options = SearchOptions(max_length_offset=6)
    expected = searched(TorchEngine([model]), options, prefix=(45,))
    found = searched(TorchEngine([model], shortlist=shortlist_of(range(V))), options, prefix=(45,))
    assert_same(found, expected)


def test_the_ids_of_a_batch_are_those_of_its_sources():
    shortlist = Shortlist(
        torch.tensor([0, 0, 2, 2, 3]), torch.tensor([7, 4, 9]), torch.tensor([1]), ["a", "b"]
    )
    batch = [
        SourceSentence([1, 0]),
        SourceSentence([1, 2], prefix=[5], phrases=[[(6,), (8,)]]),
    ]
    assert shortlist.for_batch(batch[:1], [2]).tolist() == [1, 2, 4, 7]
    assert shortlist.for_batch(batch, [2]).tolist() == [1, 2, 4, 5, 6, 7, 8]


def test_links_are_added_up_by_pair_of_ids(monkeypatch):
    monkeypatch.setattr(LinkCounts, "MAX_STORED_LINKS", 2)
    counts = LinkCounts(5, 7)
    attention = torch.tensor([[[0.8, 0.2], [0.05, 0.95]], [[1.0, 0.0], [0.0, 0.0]]])
    for _ in range(2):
        counts.add(torch.tensor([[3, 4], [3, 0]]), torch.tensor([[6, 1], [6, 0]]), attention)
    keys, weights = counts.total()
    found = {divmod(int(key), 7): float(each) for key, each in zip(keys, weights, strict=True)}
    assert found == pytest.approx({(3, 6): 3.6, (4, 6): 0.4, (4, 1): 1.9})
    assert counts.of_targets.tolist() == [0, 2, 0, 0, 0, 0, 4]
    shared, separate = (
        Shortlist.from_counts(counts, ["a", "b"], per_id=1, frequent=1, is_shared=is_shared)
        for is_shared in (True, False)
    )
    assert separate.starts.tolist() == [0, 0, 0, 0, 1, 2] and separate.ids.tolist() == [6, 1]
    assert shared.starts.tolist() == [0, 1, 2, 3, 5, 7]
    assert shared.ids.tolist() == [0, 1, 2, 3, 6, 1, 4]
    assert separate.always.tolist() == [6]


def test_a_file_holds_the_same(tmp_path):
    path = tmp_path / "shortlist.safetensors"
    shortlist = shortlist_of({3, 4}, [9])
    shortlist.save(path)
    found = Shortlist.read(path)
    for name in ("starts", "ids", "always"):
        assert torch.equal(getattr(found, name), getattr(shortlist, name))
    assert found.vocabularies == ["a", "b"]
    with pytest.raises(ValueError, match="was made for other tokenizers"):
        Translator.from_pretrained(BUNDLED_MODEL, shortlist=path)


def test_attention_links_words_with_their_translations():
    translator = Translator.from_pretrained(BUNDLED_MODEL)
    pairs = [("A dog runs.", "Ein Hund rennt."), ("The dog sleeps.", "Der Hund schläft.")] * 2
    counts = count_links(translator, *zip(*pairs, strict=True), batch_size=3)
    keys, weights = counts.total()
    dog, hund = (translator.source_tokenizer(word).input_ids[0] for word in ("dog", "Hund"))
    is_dog = keys // counts.targets == dog
    assert keys[is_dog][weights[is_dog].argmax()] % counts.targets == hund
    assert translator.model.config._attn_implementation == "eager"
    vocabularies = [vocabulary_sha256(translator.source_tokenizer)] * 2
    shortlist = Shortlist.from_counts(counts, vocabularies, per_id=5, frequent=5, is_shared=True)
    assert hund in shortlist.for_batch([SourceSentence([dog])], [])


def test_the_scripts_make_and_use_a_shortlist(run, model_folder, tmp_path):
    pairs = list(generate_pairs("train", 30))
    for language, side in (("en", "source"), ("de", "target")):
        lines = "\n".join(getattr(pair, side) for pair in pairs)
        (tmp_path / f"t.{language}").write_text(lines + "\n")
    model_folder = shutil.copytree(model_folder, tmp_path / "model")
    output = model_folder / "shortlist.safetensors"
    flags = ("--model", model_folder, "--file", tmp_path / "t", "--output", output)
    for _ in range(2):  # the second one replaces the first
        code, out, err = run("make_shortlist.py", *flags, "--per_token", 9, "--frequent", 4)
        assert code == 0, err
    assert out.startswith(f"{output}: ") and "target tokens for each source token" in out
    assert output.stat().st_mode & 0o777 == model_folder.stat().st_mode & 0o666
    texts = ("--model", model_folder, "--text", pairs[0].source, "--shortlist", output)
    code, out, err = run("translate.py", *texts)
    assert code == 0 and out.strip(), err
    for script, given, target in (
        ("make_shortlist.py", flags[:4], tmp_path / "t.en"),
        ("make_shortlist.py", flags[:4], model_folder / "model.safetensors"),
        ("translate.py", texts, output),
    ):
        code, _, err = run(script, *given, "--output", target)
        assert code == 1 and "would overwrite" in err


def test_a_shortlist_of_the_other_direction_is_rejected(run, model_folder, tmp_path):
    (tmp_path / "t.en").write_text("The dog sees.\nWe see.\n")
    (tmp_path / "t.de").write_text("Der Hund sieht.\nWir sehen.\n")
    folders = {}
    for name, source, target in (("there", "en", "de"), ("back", "de", "en"), ("any", None, None)):
        folders[name] = shutil.copytree(model_folder, tmp_path / name)
        path = folders[name] / "tokenizer_config.json"
        languages = {"source_lang": source, "target_lang": target}
        path.write_text(json.dumps(json.loads(path.read_text()) | languages))
    output = tmp_path / "list.safetensors"
    flags = ("--model", folders["there"], "--file", tmp_path / "t", "--output", output)
    code, _, err = run("make_shortlist.py", *flags)
    assert code == 0, err
    for name in ("there", "any"):
        Translator.from_pretrained(folders[name], shortlist=output)
    with pytest.raises(ValueError, match="other languages than de to en"):
        Translator.from_pretrained(folders["back"], shortlist=output)
    message = r"same languages, got .*there': \('en', 'de'\), .*back': \('de', 'en'\)"
    with pytest.raises(ValueError, match=message):
        Translator.from_pretrained([folders["there"], folders["any"], folders["back"]])
    assert len(Translator.from_pretrained([folders["there"], folders["any"]]).models) == 2
