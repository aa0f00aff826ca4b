"""Distillation: the teacher's translations as training pairs."""

import gzip
import json

import pytest
from sacrebleu import sentence_bleu

from modeling_aiayn.commands import distill
from modeling_aiayn.data.corpus import read_pairs
from modeling_aiayn.translation import Translator
from modeling_aiayn.translation.evaluation import nearest
from modeling_aiayn.translation.options import SearchOptions
from modeling_aiayn.translation.translator import Translation

PAIRS = [
    ("The dog sees my black cat.", "Der Hund sieht meine schwarze Katze."),
    ("We must see the key.", "Wir müssen den Schlüssel sehen."),
    ('The "old" man\\sleeps.', "Der „alte“ Mann schläft."),
]


def write_tsv(path, pairs):
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    return path


def test_the_nearest_hypothesis_is_chosen_and_of_equal_ones_the_best():
    found = [
        Translation("a", text, -index, -index, ())
        for index, text in enumerate(["x y", "Der Hund rennt", "Der Hund läuft", "Der Hund läuft"])
    ]
    assert nearest(found, "Der Hund läuft.") == "Der Hund läuft"
    assert nearest(found, "z") == "x y"


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
def test_pairs_of_the_teacher_are_written_in_a_format_that_training_reads(run, tmp_path, name):
    files = [
        write_tsv(tmp_path / f"{n}.tsv", part) for n, part in enumerate((PAIRS[:2], PAIRS[2:]))
    ]
    output = tmp_path / name
    code, out, err = run(
        *("distill.py", "--model", "aiayn-en-de", "--file", *files, "--output", output),
        *("--num_beams", "6"),
    )
    assert (code, out) == (0, ""), err
    pairs = read_pairs(str(output), "en", "de")
    assert list(pairs["source"]) == [source for source, _ in PAIRS]
    translator = Translator.from_pretrained("aiayn-en-de")
    options = SearchOptions(num_beams=6, nbest=6)
    found = translator.stream([source for source, _ in PAIRS], options)
    for text, hypotheses, (_, reference) in zip(pairs["target"], found, PAIRS, strict=True):
        scores = {each.text: sentence_bleu(each.text, [reference]).score for each in hypotheses}
        assert scores[text] == max(scores.values())


def test_the_number_of_hypotheses_to_choose_from_can_be_given(run, tmp_path):
    source = PAIRS[0][0]
    (beams,) = Translator.from_pretrained("aiayn-en-de").stream(
        [source], SearchOptions(num_beams=4, nbest=4)
    )
    file, output = write_tsv(tmp_path / "a.tsv", [(source, beams[2].text)]), tmp_path / "out.jsonl"
    command = ("distill.py", "--model", "aiayn-en-de", "--file", file, "--output", output)
    for flags, number in (((), 2), (("--nbest", "1"), 0), (("--nbest", "3"), 2)):
        assert run(*command, *flags)[0] == 0
        assert json.loads(output.read_text())["de"] == beams[number].text
        output.unlink()


def test_a_distillation_resumes(run, tmp_path, monkeypatch):
    def stopping(translations, reference):
        if reference == PAIRS[2][1]:
            raise OSError("stopped")
        return nearest(translations, reference)

    file, output = write_tsv(tmp_path / "pairs.tsv", PAIRS), tmp_path / "out.jsonl"
    command = ("distill.py", "--model", "aiayn-en-de", "--file", file, "--output", output)
    assert run(*command)[0] == 0
    expected = output.read_text()
    output.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(distill, "nearest", stopping)
        assert run(*command)[0] == 1
    assert (tmp_path / "out.jsonl.partial").read_text().count("\n") == 2
    assert run(*command, "--resume", "auto", "--nbest", "2")[0] == 1
    assert run(*command, "--resume", "auto")[0] == 0
    assert output.read_text() == expected


def test_a_model_of_the_other_direction_translates_the_other_side(run, tmp_path):
    file, output = write_tsv(tmp_path / "pairs.tsv", PAIRS), tmp_path / "out.jsonl.gz"
    flags = ("--columns", "en,de", "--num_beams", "1")
    command = ("distill.py", "--model", "aiayn-de-en", "--file", file, "--output", output)
    assert run(*command, *flags)[0] == 0
    records = [json.loads(line) for line in gzip.decompress(output.read_bytes()).splitlines()]
    assert [record["de"] for record in records] == [target for _, target in PAIRS]


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("out.tsv", "must end in .jsonl or .jsonl.gz, got"),
        ("pairs.jsonl", "--output would overwrite"),
    ],
)
def test_impossible_outputs_are_rejected(run, tmp_path, output, message):
    (tmp_path / "pairs.jsonl").write_text(
        json.dumps(dict(zip(("en", "de"), PAIRS[0], strict=True)))
    )
    command = ("distill.py", "--model", "aiayn-en-de", "--file", tmp_path / "pairs.jsonl")
    code, _, err = run(*command, "--output", tmp_path / output)
    assert code == 1 and message in err
    languages = ("--source_lang", "de", "--target_lang", "de")
    code, _, err = run(*command, "--output", tmp_path / "out.jsonl", *languages)
    assert code == 1 and "source_lang and target_lang must differ, got 'de'." in err
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("job", ["distill", "back_translate"])
def test_sources_alone_are_translated_and_resumed(run, tmp_path, monkeypatch, job):
    sources = [source for source, _ in PAIRS]
    (tmp_path / "a.en").write_text("\n".join([*sources[:2], ""]), "utf-8")
    (tmp_path / "b.en").write_text(f"{sources[2]}\n", "utf-8")
    output = tmp_path / "out.jsonl"
    command = (f"{job}.py", "--model", "aiayn-en-de", "--output", output)
    command += ("--input", tmp_path / "a.en", tmp_path / "b.en")
    code, _, err = run(*command)
    assert code == 0, err
    pairs = read_pairs(str(output), "de", "en")  # of the other direction, too
    assert list(pairs["target"]) == sources
    translator = Translator.from_pretrained("aiayn-en-de")
    sampling = SearchOptions(do_sample=True)
    options = {"distill": SearchOptions(), "back_translate": sampling}[job]
    found = [best.text for best, *_ in translator.stream(sources, options)]
    assert list(pairs["source"]) == found

    expected = output.read_text()
    lines = expected.splitlines(keepends=True)
    partial = tmp_path / "out.jsonl.partial"
    real = json.dumps
    monkeypatch.setattr(json, "dumps", fail_at_third_pair(real))
    output.unlink()
    assert run(*command)[0] == 1
    monkeypatch.setattr(json, "dumps", real)
    assert partial.read_text() == "".join(lines[:2])
    code, _, err = run(*command, "--resume", "auto")
    assert code == 0, err
    assert output.read_text() == expected


def fail_at_third_pair(dumps):
    def stopping(value, **options):
        if isinstance(value, dict) and value.get("en") == PAIRS[2][0]:
            raise OSError("stopped")
        return dumps(value, **options)

    return stopping


def test_beam_search_translates_back_and_pairs_or_sources_are_needed(run, tmp_path):
    (tmp_path / "a.en").write_text(f"{PAIRS[0][0]}\n", "utf-8")
    command = ("back_translate.py", "--model", "aiayn-en-de", "--input", tmp_path / "a.en")
    output = tmp_path / "out.jsonl"
    assert run(*command, "--output", output, "--do_sample", "false", "--num_beams", 2)[0] == 0
    translator = Translator.from_pretrained("aiayn-en-de")
    (text,) = translator([PAIRS[0][0]], num_beams=2)
    assert json.loads(output.read_text()) == {"en": PAIRS[0][0], "de": text}
    code, _, err = run("distill.py", "--output", output)
    assert code == 1 and "Give either --file or --input" in err
