"""Upload a trained model's folder to the Hub, without files that must not be public."""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from transformers.tokenization_utils_base import FULL_TOKENIZER_FILE, TOKENIZER_CONFIG_FILE
from transformers.utils import ADAPTER_CONFIG_NAME, CONFIG_NAME, GENERATION_CONFIG_NAME

from ..tokenization import TARGET_TOKENIZER_FOLDER
from .adapters import find_base
from .folders import INT8_WEIGHTS_NAME, WEIGHT_FILES, check_directory, check_one_model, model_files

CARD = "README.md"
# What a training run writes beside its model.
REPORT_FILES = (CARD, "scores.json", "curves.png", "attention.png", "confusion.png")
# Patterns of needed files; one of each group must exist.
NEEDED = (
    (CARD,),
    (CONFIG_NAME, ADAPTER_CONFIG_NAME),
    ("*.safetensors",),
    (TOKENIZER_CONFIG_FILE,),
)
# Files of an earlier model in the repository: loaders prefer some of them to the new ones.
REPLACED = (
    *WEIGHT_FILES,
    *(GENERATION_CONFIG_NAME, FULL_TOKENIZER_FILE, f"{TARGET_TOKENIZER_FOLDER}/*", *REPORT_FILES),
)


def files_to_publish(folder: str | Path) -> list[Path]:
    """List the files of a finished run's folder that belong on the Hub, sorted.

    Anything else stays local: training_args.bin may hold a token, and checkpoints, logs and other
    files of the user are private.

    Raises:
        OSError: There is no such folder, or it holds two models.
        ValueError: A needed file is missing, or an adapter's base model is a local folder.
    """
    folder = Path(folder)
    check_directory(folder)
    reports = [folder / name for name in REPORT_FILES if (folder / name).is_file()]
    files = sorted([*model_files(folder), *reports])
    for patterns in NEEDED:
        if not any(path.match(pattern) for path in files for pattern in patterns):
            raise ValueError(
                f"{folder} has no {patterns[0]}: a model on the Hub needs a card, a configuration, "
                "weights and a tokenizer. aiayn train-translation writes all of them."
            )
    check_one_model(folder, INT8_WEIGHTS_NAME)
    base = find_base(folder, {})
    if base is not None and Path(base).exists():
        raise ValueError(
            f"{folder} holds an adapter of the folder {base}, which nobody else has. Publish the "
            f"base model, and write its repository into {ADAPTER_CONFIG_NAME} as "
            "base_model_name_or_path. Or train with --merge_lora true, and publish the whole model."
        )
    return files


def model_operations(folder: str | Path, repo_id: str) -> list[CommitOperationAdd]:
    """The files of a finished run's folder; the example in its card names the repository."""
    files = files_to_publish(folder)
    card = published_card(Path(folder), repo_id).encode()
    return [
        CommitOperationAdd(path.relative_to(folder).as_posix(), card if path.name == CARD else path)
        for path in files
    ]


def publish(folder: str | Path, repo_id: str, **options: Any) -> str:
    """Upload a model's folder to the Hub, with the options of `upload`; return the commit's URL.

    Raises:
        OSError: There is no such folder, it holds two models, or the upload failed.
        ValueError: repo_id is invalid, or the folder is incomplete.
    """
    return upload(model_operations(folder, repo_id), repo_id, **options)


def upload(
    operations: Sequence[CommitOperationAdd],
    repo_id: str,
    *,
    space_sdk: str | None = None,
    revision: str | None = None,
    private: bool = False,
    message: str = "Upload model",
) -> str:
    """Upload files to the Hub in one commit, and create the repository if needed.

    Beside each card, files of a model that was there before are deleted. The token is that of
    `hf auth login` or HF_TOKEN.

    Args:
        operations: The files, as `model_operations` lists them.
        repo_id: Repository, as in "me/translator".
        space_sdk: What runs the repository, a Space, as in "gradio". None: it is a model.
        revision: Branch, created if needed. None: main.
        private: Whether a new repository is private.
        message: Message of the commit.

    Returns:
        URL of the commit.

    Raises:
        ValueError: repo_id is invalid.
        OSError: The Hub rejects the token, or answers with another error.
    """
    api = HfApi()
    where: dict[str, Any] = {
        "repo_id": repo_id,
        "repo_type": "model" if space_sdk is None else "space",
    }
    api.create_repo(**where, space_sdk=space_sdk, private=private, exist_ok=True)
    if revision is not None:
        api.create_branch(**where, branch=revision, exist_ok=True)
    added = {operation.path_in_repo for operation in operations}
    present = set(api.list_repo_files(**where, revision=revision)) - added
    places = [path.removesuffix(CARD) for path in added if path.endswith(CARD)]
    earlier = [f"{place}{pattern}" for place in places for pattern in REPLACED]
    deleted = [path for path in present if any(fnmatchcase(path, name) for name in earlier)]
    changes: list[Any] = [*operations, *map(CommitOperationDelete, deleted)]
    commit = api.create_commit(
        **where, operations=changes, commit_message=message, revision=revision
    )
    return str(commit.commit_url)


def published_card(folder: Path, repo_id: str) -> str:
    """A folder's model card, with a repository in its example, which names the title's model."""
    card = (folder / CARD).read_text("utf-8")
    title = re.search(r"^# ([^:\n]+)", card, re.MULTILINE)
    name = re.escape(title[1].strip() if title else folder.resolve().name)
    # An adapter of a local model, which is now a repository.
    card = re.sub(rf'(Translator.from_pretrained\("{name}")\)', r"\1, hub=True)", card)
    calls = rf'(from_pretrained\(|pipeline\("[a-z-]+", )"{name}"'
    return re.sub(calls, lambda call: f'{call[1]}"{repo_id}"', card)
