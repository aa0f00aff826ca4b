"""Write annotated.md, every line of attention.py and layers.py beside the paper, and exercises.md.

python docs/annotate.py
"""

import re
from pathlib import Path
from typing import Any

import yaml
from exercises import exercises_page

DOCS = Path(__file__).parent
TITLE = """# The paper beside the code

Every line of [`attention.py`](../modeling_aiayn/attention.py) and
[`layers.py`](../modeling_aiayn/layers.py), in order, each below the part of "Attention Is All You
Need" ([arXiv:1706.03762](https://arxiv.org/abs/1706.03762)) that it implements. `python
docs/annotate.py` makes this page from the code, and a test fails if they differ.
[Exercises](exercises.md): ten bugs to find.

[![Figure 1 of the paper; in the site, its boxes lead to the code](figure-1.svg)](figure-1.svg)
"""


def annotated_page() -> str:
    """The whole page.

    Raises:
        ValueError: A note belongs to no line of its file, or to an earlier one than the note above.
    """
    files = yaml.safe_load((DOCS / "annotated.yaml").read_text("utf-8"))
    return "\n".join([TITLE, *map(_annotated_file, files)])


def _annotated_file(file: dict[str, Any]) -> str:
    lines = (DOCS.parent / file["file"]).read_text("utf-8").splitlines()
    starts = [_line_of(note, lines, file["file"]) for note in file["notes"]]
    if starts != sorted(set(starts)) or starts[0] != 0:
        raise ValueError(
            f"The notes of {file['file']} are not in the order of its lines: {starts}."
        )
    blocks = [f"## {Path(file['file']).name}\n\n{file['intro']}"]
    for note, start, end in zip(file["notes"], starts, [*starts[1:], len(lines)], strict=True):
        code = "\n".join(lines[start:end]).strip("\n")
        name = re.match(r"(?:def|class) (\w+)", note["at"])
        heading = f"### {name[1]}\n\n" if name and not lines[start].startswith(" ") else ""
        blocks.append(f"{heading}{note['note']}\n```py\n{code}\n```\n")
    return "\n".join(blocks)


def _line_of(note: dict[str, Any], lines: list[str], name: str) -> int:
    """The index of a note's first line. A decorator belongs to its function."""
    matches = [index for index, line in enumerate(lines) if line.strip().startswith(note["at"])]
    place = note.get("occurrence", 1) - 1
    if place >= len(matches) or ("occurrence" not in note and len(matches) > 1):
        raise ValueError(f"{name} has {len(matches)} lines that begin with {note['at']!r}.")
    index = matches[place]
    while index and lines[index - 1].strip().startswith("@"):
        index -= 1
    return index


if __name__ == "__main__":
    (DOCS / "annotated.md").write_text(annotated_page(), "utf-8")
    (DOCS / "exercises.md").write_text(exercises_page(), "utf-8")
