"""Write folders with weights in 8 bits, for `Translator`."""

import json
from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData
from transformers.utils import CONFIG_NAME

from ..saved.folders import INT8_WEIGHTS_NAME
from ..saved.int8 import save_int8_weights
from ..saved.whole_files import new_folder, write_file
from ..translation import Translator
from .library_models import save_tokenizers, single_model

CARD = """\
---
{metadata}
---

# {title}

A translation model whose matrices have 8 bits and a scale for each row, written by
`aiayn quantize`. It needs the package modeling_aiayn, which also computes in 8 bits on a CPU:

```python
from modeling_aiayn.translation import Translator

translator = Translator.from_pretrained("{title}")  # of a repository: hub=True
```
"""
# Fields of the original card that also apply to the rounded weights.
KEPT_METADATA = ("language", "license", "datasets", "base_model")


def export_int8(translator: Translator, folder: str | Path, card: str | Path | None = None) -> int:
    """Write a model and its tokenizers as a folder that `Translator` opens.

    The folder must be new or empty. card is the original model's card; the new card copies its
    languages, license, data and base model. Returns the size of the written weights in bytes.

    Raises:
        ValueError: The translator is an ensemble, or runs an exported model.
        OSError: The folder is not empty, or cannot be written.
    """
    model = single_model(translator)
    with new_folder(Path(folder)) as unfinished:
        save_int8_weights(model, unfinished / INT8_WEIGHTS_NAME)
        # Add no code, as save_pretrained would do: AutoModel cannot read these weights.
        config = model.config.to_dict()
        for name in ("auto_map", "_name_or_path"):  # the latter may be a local path
            config.pop(name, None)
        config["dtype"] = "float32"  # weights are loaded in this type
        write_file(unfinished / CONFIG_NAME, json.dumps(config, indent=2) + "\n")
        model.generation_config.save_pretrained(unfinished)
        save_tokenizers(translator, unfinished)
        original = ModelCard.load(card).data.to_dict() if card and Path(card).is_file() else {}
        kept = {name: original[name] for name in KEPT_METADATA if name in original}
        new = {"pipeline_tag": "translation", "tags": ["aiayn", "int8"]}
        metadata = ModelCardData(**{"license": "other", **kept, **new}).to_yaml().strip()
        text = CARD.format(metadata=metadata, title=Path(folder).resolve().name)
        write_file(unfinished / "README.md", text)
    return Path(folder, INT8_WEIGHTS_NAME).stat().st_size
