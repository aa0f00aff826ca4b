"""The pages under docs name only tests, files and cards that exist."""

import re

import pytest
from conftest import ROOT

PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_named_tests_exist(page):
    named = re.findall(r"`(tests/\w+\.py)::(\w+)`", page.read_text())
    assert named or page.stem != "seeds"
    assert not re.search(r"@\w+@", page.read_text())
    for path, name in named:
        assert re.search(rf"^def {name}\b", (ROOT / path).read_text(), flags=re.M), (path, name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_existing_files(page):
    for target in re.findall(r"\]\((?!http)([^)]+)\)", page.read_text()):
        assert (page.parent / target.split("#")[0]).exists(), target


def test_each_trap_has_a_test():
    """All 25 have a row."""
    traps = (ROOT / "docs" / "seeds.md").read_text().split("## The traps")[1]
    rows = re.findall(r"^\| (\d+) \| [^|]+ \| (.*) \|$", traps, flags=re.M)
    assert [int(number) for number, _ in rows] == list(range(1, 26))
    assert all(re.search(r"`tests/\w+\.py::\w+`", tests) for _, tests in rows)


def test_the_model_card_is_that_of_the_bundled_model():
    """Edit the card in the model's folder, then copy it."""
    card = (ROOT / "modeling_aiayn" / "checkpoints" / "aiayn-en-de" / "README.md").read_text(
        "utf-8"
    )
    assert (ROOT / "model_card.md").read_text("utf-8") == card
