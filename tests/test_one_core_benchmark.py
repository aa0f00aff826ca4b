"""The benchmark of one core measures the same work for all; no test asserts a speed."""

import re
import shutil

import pytest
import torch
from benchmark_one_core import with_vmap, write_vmap

from modeling_aiayn.interop.ctranslate2_export import export_ctranslate2
from modeling_aiayn.saved.loading import find_model
from modeling_aiayn.tokenization import vocabulary_sha256
from modeling_aiayn.translation import Translator
from modeling_aiayn.translation.shortlist import LinkCounts, Shortlist

TEXTS = ["A dog runs across the grass.", "We see the key."]


@pytest.fixture
def shortlist(tmp_path):
    """Only the words of the first sentence and its translation."""
    translator = Translator.from_pretrained("aiayn-en-de")
    size = len(translator.source_tokenizer)
    counts = LinkCounts(size, size)
    source = torch.tensor([translator.encode(TEXTS[0])])
    target = torch.tensor([translator.encode_target("Ein Hund rennt über das Gras.")])
    counts.add(source, target, torch.ones(1, target.size(1), source.size(1)))
    hashes = [vocabulary_sha256(translator.source_tokenizer)] * 2
    found = Shortlist.from_counts(counts, hashes, per_id=100, frequent=4, is_shared=True)
    found.save(tmp_path / "shortlist.safetensors")
    return tmp_path / "shortlist.safetensors"


def test_both_engines_get_the_same_candidates(tmp_path, shortlist):
    export_ctranslate2(Translator.from_pretrained("aiayn-en-de"), tmp_path / "ct2", "float32")
    theirs = Translator.from_pretrained(tmp_path / "ct2", engine="ctranslate2")
    write_vmap(Shortlist.read(shortlist), theirs, tmp_path / "ct2")
    theirs = Translator.from_pretrained(tmp_path / "ct2", engine="ctranslate2")
    unrestricted = theirs(TEXTS, num_beams=1)
    theirs.engine.translator = with_vmap(theirs.engine.translator)
    ours = Translator.from_pretrained("aiayn-en-de", shortlist=shortlist)
    for text in TEXTS:  # one by one: a batch shares its candidates
        found = ours([text], num_beams=1)
        assert theirs([text], num_beams=1) == found
    assert unrestricted[1] != found[0]


@pytest.mark.long
def test_the_script_prints_a_row_for_each_model_and_engine(run, tmp_path, shortlist):
    (tmp_path / "pairs.tsv").write_text("".join(f"{text}\tEin Hund.\n" for text in TEXTS))
    copy = shutil.copytree(find_model("aiayn-en-de"), tmp_path / "copy")
    command = (
        *("../benchmarks/benchmark_one_core.py", "--model", "aiayn-en-de", copy, "--rounds", 1),
        *("--file", tmp_path / "pairs.tsv", "--sentences", 3, "--join", 2),
        *("--shortlist", shortlist),
    )
    code, _, err = run(*command)
    assert code == 1
    assert err.endswith("\nerror: --shortlist needs a file for each of the 2 models, got 1.\n")
    code, out, err = run(*command, shortlist)
    assert code == 0, err
    heading, _, *rows = out.splitlines()
    assert heading == "3 sentences of 10.0 words on average, greedy, int8, one thread"
    names = ("Translator, shortlist", "CTranslate2, vmap", "Translator", "CTranslate2")
    expected = [f"{model}: {name}" for model in ("aiayn-en-de", copy) for name in names]
    assert [re.split("  +", row)[0] for row in rows] == expected
    assert rows[0].split()[-1] == rows[4].split()[-1] == "3"
