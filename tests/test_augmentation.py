"""Training pairs in both directions, and with noisy sources."""

import random
from collections import Counter

import pytest
from datasets import Dataset

from modeling_aiayn.data.augmentation import (
    NOISES,
    with_noisy_sources,
    with_reversed_pairs,
    with_typing_errors,
)
from modeling_aiayn.training.data import DataArguments, load_splits

PAIRS = Dataset.from_dict(
    {
        "source": [f"The {word} sees my black cat." for word in ("dog", "man", "girl", "boy")],
        "target": [f"{word} sieht." for word in ("Der Hund", "Er", "Das Kind", "Sie")],
    }
)
TEXT = "The quick brown fox doesn't jump over 13 lazy dogs. " * 400


def test_pairs_are_followed_by_the_same_in_the_other_direction():
    found = with_reversed_pairs(PAIRS)
    assert found["source"][:] == [*PAIRS["source"], *PAIRS["target"]]
    assert found["target"][:] == [*PAIRS["target"], *PAIRS["source"]]
    assert found.column_names == ["source", "target"]


def test_each_kind_of_noise():
    generator = random.Random(0)
    found = {name: noise("We don't see Anna's cat.", generator) for name, noise in NOISES.items()}
    assert found["capitals"] == "WE DON'T SEE ANNA'S CAT."
    assert found["title_case"] == "We Don't See Anna's Cat."
    assert found["no_final_punctuation"] == "We don't see Anna's cat"
    assert NOISES["no_final_punctuation"]("...", generator) == "..."


def test_typing_errors_hit_letters_at_their_rate_and_are_of_each_kind():
    found = with_typing_errors(TEXT, random.Random(1))
    assert "13" in found and found.count(" ") == TEXT.count(" ")
    lengths = Counter(len(word) for word in found.split())
    assert lengths[14] == 0
    changed = sum(a != b for a, b in zip(TEXT.split(), found.split(), strict=True))
    letters = sum(letter.isalpha() for letter in TEXT)
    assert changed == pytest.approx(0.04 * letters, rel=0.2)
    words = set(found.split())
    # Left out, doubled, swapped, replaced.
    assert {"brwn", "broown", "borwn"} <= words
    assert any(len(word) == 5 and sum(a != b for a, b in zip(word, "brown", strict=True)) == 1 for word in words if len(word) == 5)  # fmt: skip
    assert with_typing_errors(TEXT, random.Random(1)) == found
    assert with_typing_errors("", random.Random(1)) == ""
    assert all(with_typing_errors("I", random.Random(seed)) for seed in range(200))


@pytest.mark.parametrize(("share", "copies"), [(0.0, 0), (0.5, 2), (1.0, 4)])
def test_a_share_of_the_pairs_comes_again_with_noise(share, copies):
    found = with_noisy_sources(PAIRS, share, [*NOISES], 3)
    assert found[:4] == PAIRS[:]
    assert len(found) == 4 + copies
    targets = Counter(found["target"][4:])
    assert set(targets) <= set(PAIRS["target"]) and all(count == 1 for count in targets.values())
    assert not set(found["source"][4:]) & set(PAIRS["source"]) or copies == 4
    assert with_noisy_sources(PAIRS, share, [*NOISES], 3)[:] == found[:]


def test_only_the_given_kinds_of_noise_are_used():
    found = with_noisy_sources(PAIRS, 1.0, ["no_final_punctuation", "capitals"], 3)
    sources = Counter(found["source"][4:])
    assert sum(source.isupper() for source in sources) == 2
    assert sum(source.endswith("my black cat") for source in sources) == 2


def test_flags_change_the_training_pairs_alone(tmp_path):
    lines = "".join(f"{row['source']}\t{row['target']}\n" for row in PAIRS)
    (tmp_path / "pairs.tsv").write_text(lines)
    path = [str(tmp_path / "pairs.tsv")]
    files = {"train_file": path, "validation_file": path, "test_file": path}
    splits = load_splits(DataArguments(**files, both_directions=True, noisy_sources=0.5))
    assert len(splits["train"]) == 12
    assert splits["validation"][:] == splits["test"][:] == PAIRS[:]
    # Noise is in sources alone, also in those of the reversed pairs.
    assert {*splits["train"]["target"]} == {*PAIRS["source"], *PAIRS["target"]}
    kinds = {"noise_kinds": ["capitals"]}
    found = load_splits(DataArguments(**files, noisy_sources=1.0, **kinds))["train"]
    assert all(source.isupper() for source in found["source"][4:])
    typos = {**files, "noisy_sources": 1.0, "noise_kinds": ["typing_errors"]}
    seeds = [load_splits(DataArguments(**typos, noise_seed=seed))["train"] for seed in (0, 1)]
    assert len(seeds[0]) == len(seeds[1]) == 8
    assert sorted(seeds[0]["source"]) != sorted(seeds[1]["source"])
