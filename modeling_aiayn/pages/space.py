"""A Space of the Hugging Face Hub: a trained model with its page, run by the Hub."""

import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import requires, version
from pathlib import Path

from huggingface_hub import CommitOperationAdd, ModelCard, SpaceCardData
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from transformers.tokenization_utils_base import TOKENIZER_CONFIG_FILE

from ..data.parsing import read_json_object
from ..saved.folders import check_model_folder
from ..saved.publishing import model_operations

PACKAGE = "modeling_aiayn"
SPACE_SDK = "gradio"
# Classes of imported tokenizers, and the packages that they need.
TOKENIZER_PACKAGES = {
    **dict.fromkeys(("MarianTokenizer", "M2M100Tokenizer"), "sentencepiece"),
    "FSMTTokenizer": "sacremoses",
}
# Parts of the package that a page does not need.
LEFT_OUT = ("checkpoints", "recipes", "__pycache__")
CARD = """---
{metadata}
---
# {title}

Try the model in `{model}`. The page is that of `aiayn app`; this repository holds the model, the
package that runs it, and the versions it was tried with.
"""
APP = '''"""The page of a model."""

from modeling_aiayn.commands.app import BOUNDS, AppFlags, listen
from modeling_aiayn.commands.flags import ModelFlags, ServerFlags, SourceFlags

server = ServerFlags(host="0.0.0.0", **BOUNDS)
listen(ModelFlags(model=[{model!r}]), SourceFlags(), server, AppFlags(examples={examples!r}))
'''


def space_operations(
    folder: str | Path, repo_id: str, examples: Sequence[str]
) -> list[CommitOperationAdd]:
    """Return the files of a Space for the model in a finished run's folder, with example texts."""
    check_model_folder(folder)  # with an adapter alone, the page could not load its base model
    name = repo_id.rsplit("/", 1)[-1]
    model = f"models/{name}"
    # The card still calls the model by the name of its folder.
    operations = model_operations(folder, Path(folder).resolve().name)
    for operation in operations:
        operation.path_in_repo = f"{model}/{operation.path_in_repo}"
    license = ModelCard.load(Path(folder, "README.md")).data.license
    texts = {
        "README.md": CARD.format(metadata=_metadata(name, license), title=name, model=model),
        "app.py": APP.format(model=model, examples=list(examples)),
        "requirements.txt": "".join(f"{line}\n" for line in pinned_requirements(folder)),
    }
    operations += [CommitOperationAdd(path, text.encode()) for path, text in texts.items()]
    package = Path(__file__).parent.parent
    operations += [
        CommitOperationAdd(f"{PACKAGE}/{path.relative_to(package).as_posix()}", path)
        for path in sorted(package.rglob("*"))
        if path.is_file() and not set(LEFT_OUT) & set(path.relative_to(package).parts)
    ]
    return operations


def _metadata(title: str, license: str | None) -> str:
    """Return the settings with which the Hub runs the Space."""
    data = SpaceCardData(
        title=title,
        emoji="🔎",
        sdk=SPACE_SDK,
        sdk_version=version(SPACE_SDK),
        python_version=f"{sys.version_info.major}.{sys.version_info.minor}",
        app_file="app.py",
        license=license,
    )
    return str(data.to_yaml())


def pinned_requirements(folder: str | Path) -> list[str]:
    """Return a model page's requirements, pinned to installed versions. The Hub adds Gradio."""
    names = set(_required_packages("app")) - {SPACE_SDK}
    tokenizer_class = read_json_object(Path(folder, TOKENIZER_CONFIG_FILE)).get("tokenizer_class")
    if tokenizer_class in TOKENIZER_PACKAGES:
        names.add(TOKENIZER_PACKAGES[tokenizer_class])
    # A local version, such as 2.13.0+cpu, is not on a public index.
    return sorted(f"{name}=={version(name).partition('+')[0]}" for name in names)


def _required_packages(extra: str) -> Iterator[str]:
    """Yield the packages that an extra of this package needs; it may include other extras."""
    for requirement in map(Requirement, requires(PACKAGE) or []):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        if canonicalize_name(requirement.name) == canonicalize_name(PACKAGE):
            for other in requirement.extras:
                yield from _required_packages(other)
        else:
            yield requirement.name
