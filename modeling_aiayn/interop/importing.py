"""A foreign model as a folder that AutoModelForSeq2SeqLM, Translator and trainers open."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import PreTrainedModel

from ..modeling_aiayn import AiaynForConditionalGeneration
from ..tokenization import TARGET_TOKENIZER_FOLDER
from .foreign_model import ForeignModel, convert
from .parity import SOURCES, ImportReport, compare_models
from .reference import ReferenceModel

CARD = """---
library_name: transformers
pipeline_tag: translation
license: {license}
tags:
- translation
- aiayn
---

# {title}

Weights of {system}, imported by modeling_aiayn: the same model under other names, in the paper's
layout. Nothing was trained.

```python
from modeling_aiayn.translation import Translator

translator = Translator.from_pretrained("{title}")  # of a repository: hub=True
```

## Is it the same model?

```
{report}
```

Left out: {left_out}.
Biases that the source does not have, here 0: {absent}.
Tokenizer: {tokenizer}.
"""


def reference_of(foreign: ForeignModel) -> tuple[PreTrainedModel, str]:
    """What an import is compared with, and its name.

    Args:
        foreign: The foreign model.

    Returns:
        The model in its own class where that is at hand, else its weights in torch's own layers.
    """
    if foreign.peer is not None:
        return foreign.peer, f"transformers' {type(foreign.peer).__name__}"
    return ReferenceModel(foreign), "the same tensors in torch.nn's Transformer layers"


def import_model(
    foreign: ForeignModel,
    folder: str | Path,
    *,
    sources: int = SOURCES,
    dtype: torch.dtype | None = None,
    license: str = "other",
    show_progress: bool = False,
) -> ImportReport:
    """Convert a foreign model, prove that it is the same, and write it down.

    Args:
        foreign: The model, as one of the readers gives it.
        folder: The folder to write. It must not hold anything yet.
        sources: Random sources to compare on.
        dtype: What weights are written in. None: as they were kept.
        license: The weights' licence, for the model card.
        show_progress: Whether to show a bar on stderr.

    Returns:
        The proof.

    Raises:
        OSError: The folder is not empty, or cannot be written.
        ValueError: The converted model is not the same; nothing is written then.
    """
    folder = Path(folder)
    refuse_used(folder)
    model = convert(foreign)
    reference, name = reference_of(foreign)
    rows = len(foreign.positions_of("encoder"))
    report = compare_models(model, reference, name, sources, show_progress, rows)
    if not report.is_within():
        raise ValueError(f"The import is not the same model, and is not written:\n{report}")
    with new_folder(folder) as aside:
        write_model(foreign, model.to(dtype or foreign.dtype), aside)
        card = model_card(foreign, folder.name, report, license)
        (aside / "README.md").write_text(card, "utf-8")
    return report


def refuse_used(folder: Path) -> None:
    """Refuse a folder that holds something.

    Args:
        folder: The folder.

    Raises:
        FileExistsError: It does, or is none.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} is not empty: write into a new folder.")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder that is there whole or not at all.

    Args:
        folder: Where it is to be.

    Yields:
        Where to write in the meantime.

    Raises:
        OSError: It holds something already, or cannot be written.
    """
    refuse_used(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as aside:
        written = Path(aside) / folder.name
        written.mkdir()
        yield written
        written.replace(folder)


def write_model(foreign: ForeignModel, model: AiaynForConditionalGeneration, folder: Path) -> None:
    """The model and its tokenizers as files.

    Args:
        foreign: Where they came from.
        model: The model.
        folder: The folder.
    """
    model.save_pretrained(folder)
    if foreign.source_tokenizer is not None:
        foreign.source_tokenizer.save_pretrained(folder)
    if foreign.target_tokenizer is not None:
        foreign.target_tokenizer.save_pretrained(folder / TARGET_TOKENIZER_FOLDER)


def model_card(foreign: ForeignModel, title: str, report: ImportReport, license: str) -> str:
    """The imported model's card, with the proof.

    Args:
        foreign: Where it came from.
        title: Its name.
        report: The proof.
        license: The weights' licence.

    Returns:
        Markdown.
    """
    left_out = [f"`{name}` ({why})" for name, why in foreign.taken.left_out.items()]
    tokenizer = foreign.source_tokenizer
    return CARD.format(
        title=title,
        system=foreign.system,
        license=license,
        report=report,
        left_out=", ".join(left_out) or "nothing",
        absent=", ".join(f"`{name}`" for name in foreign.taken.absent_biases) or "none",
        tokenizer="none was given" if tokenizer is None else f"`{type(tokenizer).__name__}`",
    )
