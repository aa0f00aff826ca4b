"""Write a foreign model as a folder that AutoModelForSeq2SeqLM, Translator and trainers open."""

from dataclasses import replace
from pathlib import Path

import torch
from huggingface_hub import ModelCardData
from transformers import PreTrainedModel

from ..saved.languages import saved_languages
from ..saved.whole_files import check_unused, new_folder
from ..tokenization import TARGET_TOKENIZER_FOLDER
from .foreign_model import ForeignModel, convert
from .parity import SOURCES, Examples, ImportReport, compare_models
from .reference import ReferenceModel

CARD = """---
{metadata}
---

# {title}

Weights of {system}, imported by modeling_aiayn. It is the same model with other parameter names and
in the paper's layout; it was not trained further.

```python
from modeling_aiayn.translation import Translator

translator = Translator.from_pretrained("{title}")  # of a repository: hub=True
```

## Comparison with the original

```
{report}
```

Left out: {left_out}.
Biases that the source does not have, set to 0: {absent}.
Tokenizer: {tokenizer}.
"""


def import_model(
    foreign: ForeignModel,
    folder: str | Path,
    *,
    sources: int = SOURCES,
    dtype: torch.dtype | None = None,
    license: str = "other",
    examples: Examples | None = None,
    show_progress: bool = False,
) -> ImportReport:
    """Convert a foreign model, check that the outputs are the same, and write it.

    Args:
        foreign: The model that one of the readers returned.
        folder: The folder to create. It must be new or empty.
        sources: Number of random sources to compare on.
        dtype: Type of the written weights. None: the type that they were stored in.
        license: The license of the weights, for the model card.
        examples: Outputs of the original module, to compare with.
        show_progress: Whether to show a progress bar on stderr.

    Returns:
        The comparison with the original.

    Raises:
        OSError: The folder is not empty, or cannot be written.
        ValueError: The converted model differs from the original, or fields that the weights do not
            show are not given. Nothing is written in this case.
    """
    folder = Path(folder)
    check_unused(folder)
    fields = foreign.assumed_fields
    assumed = ", ".join(f"{field}: {getattr(foreign.config, field)!r}" for field in fields)
    if assumed and examples is None:
        raise ValueError(
            f"These fields cannot be inferred from the weights ({assumed} would be assumed). Pass "
            "them with --config, or outputs of the original with --check."
        )
    model = convert(foreign)
    if foreign.peer is None:
        reference: PreTrainedModel = ReferenceModel(foreign)
        name, precision = "the same tensors in torch.nn's Transformer layers", torch.float64
    else:
        reference, precision = foreign.peer, torch.float32  # FSMT cannot compute in float64
        name = f"transformers' {type(reference).__name__}"
    positions = len(foreign.position_encodings("encoder"))
    report = compare_models(model, reference, name, sources, show_progress, positions, precision)
    proof = None if examples is None else examples.check(model, assumed)
    report = replace(report, examples=proof)
    report.check()
    with new_folder(folder) as unfinished:
        model.to(dtype or foreign.dtype).save_pretrained(unfinished)
        if foreign.source_tokenizer is not None:
            foreign.source_tokenizer.save_pretrained(unfinished)
        if foreign.target_tokenizer is not None:
            foreign.target_tokenizer.save_pretrained(unfinished / TARGET_TOKENIZER_FOLDER)
        write_imported_card(foreign, unfinished, report, license)
    return report


def write_imported_card(
    foreign: ForeignModel, folder: Path, report: ImportReport, license: str
) -> None:
    """Write the imported model's card, with the comparison, into its folder."""
    metadata = ModelCardData(
        language=list(saved_languages(folder) or ()) or None,
        base_model=foreign.repo_id,
        license=license,
        library_name="transformers",
        pipeline_tag="translation",
        tags=["translation", "aiayn"],
    )
    left_out = [f"`{name}` ({why})" for name, why in foreign.taken.left_out.items()]
    tokenizer = foreign.source_tokenizer
    card = CARD.format(
        title=folder.name,
        system=foreign.system,
        metadata=metadata.to_yaml(),
        report=report,
        left_out=", ".join(left_out) or "nothing",
        absent=", ".join(f"`{name}`" for name in foreign.taken.absent_biases) or "none",
        tokenizer="none was given" if tokenizer is None else f"`{type(tokenizer).__name__}`",
    )
    (folder / "README.md").write_text(card, "utf-8")
