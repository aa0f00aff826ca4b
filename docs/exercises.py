"""Plant a bug in the model for a learner to find.

python docs/exercises.py 3

Bugs 1 to 10 and their tests are in exercises.yaml; exercises.md says how to look for them.
"""

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import yaml

DOCS = Path(__file__).parent
BUGS: list[dict[str, Any]] = yaml.safe_load((DOCS / "exercises.yaml").read_text("utf-8"))
PAGE = """# Exercises: find the bug

Each of these ten bugs changes one line of `modeling_aiayn`. There is no error message, but the
model is wrong. After `make demo` and `source .venv/bin/activate`, plant a bug, and find it with
[the paper beside the code](annotated.md):

```
python docs/exercises.py 3
```

If you cannot find it, run `make test`. The answer is below each symptom.
`git restore modeling_aiayn` restores the code and discards your own changes there.

Bugs 1 to 8 change translations. `aiayn translate` has attention code of its own, which hides most
of them; this program shows them. Without a bug, it prints `Hallo!` and `Die Kinder spielen im Park
Football und zwei Frauen sehen ihnen zu.` Bug 9 needs a classifier.

```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_aiayn.saved.loading import find_model

folder = find_model("aiayn-en-de")
model, tokenizer = (each.from_pretrained(folder) for each in (AutoModelForSeq2SeqLM, AutoTokenizer))
texts = ["Hello.", "The children play football in the park, and two women watch them."]
inputs = tokenizer(texts, padding=True, return_tensors="pt")
print(tokenizer.batch_decode(model.generate(**inputs), skip_special_tokens=True))
```

Bugs 5 and 10 show in `make demo`: the validation loss falls, but the BLEU stays at 0. Without a
bug, the BLEU is about 98 at the end. Afterwards, restore the code and repeat `make demo`, because
it has saved a model with the bug.
"""


def planted(bug: dict[str, Any], text: str) -> str:
    """The text of the bug's file with the bug in it.

    Raises:
        ValueError: The line that the bug replaces is not there.
    """
    if text.count(bug["old"]) != 1:
        raise ValueError(
            f"{bug['file']} has been changed already. Undo that first: git restore {bug['file']}"
        )
    return text.replace(bug["old"], bug["new"])


def exercises_page() -> str:
    """The page that lists all bugs."""
    parts = [PAGE]
    for number, bug in enumerate(BUGS, 1):
        name = Path(bug["file"]).name
        parts.append(
            f"## {number}\n\n{bug['symptom']}\n\n<details markdown='1'>"
            f"<summary>Answer</summary>\n\n{bug['answer']}\n`{name}` must have:\n\n"
            f"```py\n{bug['old']}\n```\n\nTest: `{bug['test']}`\n\n</details>\n"
        )
    return "\n".join(parts)


def main() -> None:
    """Plant the bug whose number was given."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("number", type=int, choices=range(1, len(BUGS) + 1))
    bug = BUGS[parser.parse_args().number - 1]
    path = DOCS.parent / bug["file"]
    try:
        path.write_text(planted(bug, path.read_text("utf-8")), "utf-8")
    except ValueError as error:
        sys.exit(str(error))
    sys.stdout.write(f"The bug is planted. What you may see: {bug['symptom']}\n")


if __name__ == "__main__":
    main()
