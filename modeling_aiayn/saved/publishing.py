"""Upload a trained model's folder to the Hub, without files that must not be public."""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from transformers.tokenization_utils_base import FULL_TOKENIZER_FILE
from transformers.utils import ADAPTER_CONFIG_NAME, GENERATION_CONFIG_NAME

from ..tokenization import TARGET_TOKENIZER_FOLDER
from .folders import WEIGHT_FILES, check_directory, find_base, find_int8_weights, model_files

CARD = "README.md"
# Files that a training run writes beside its model.
REPORT_FILES = (CARD, "scores.json", "curves.png", "attention.png", "confusion.png")
# Files of an earlier model, to delete from the repository: loaders would prefer some of them.
REPLACED = (
    *WEIGHT_FILES,
    *(GENERATION_CONFIG_NAME, FULL_TOKENIZER_FILE, f"{TARGET_TOKENIZER_FOLDER}/*", *REPORT_FILES),
)


def files_to_publish(folder: str | Path) -> list[Path]:
    """List the files of a finished run's folder that belong on the Hub, sorted.

    Anything else stays local: training_args.bin may hold a token, and checkpoints, logs and other
    files of the user are private.
    """
    folder = Path(folder)
    check_directory(folder)
    reports = [folder / name for name in REPORT_FILES if (folder / name).is_file()]
    find_int8_weights(folder)  # raises if there is another model
    base = find_base(folder, {})
    if base is not None and (Path(base).is_absolute() or Path(base).exists()):
        raise ValueError(
            f"{folder} holds an adapter of the folder {base}, which nobody else has. Publish the "
            f"base model, and write its repository into {ADAPTER_CONFIG_NAME} as "
            "base_model_name_or_path. Or train with --merge_lora true, and publish the whole model."
        )
    return sorted([*model_files(folder), *reports])


def model_operations(folder: str | Path, repo_id: str) -> list[CommitOperationAdd]:
    """Add a finished run's files to a commit; the example in its card names the repository."""
    files = files_to_publish(folder)
    card = published_card(Path(folder), repo_id).encode()
    return [
        CommitOperationAdd(path.relative_to(folder).as_posix(), card if path.name == CARD else path)
        for path in files
    ]


def upload(
    operations: Sequence[CommitOperationAdd],
    repo_id: str,
    *,
    space_sdk: str | None = None,
    revision: str | None = None,
    private: bool = False,
    message: str = "Upload model",
) -> str:
    """Upload files to the Hub in one commit, and return its URL; create the repository if needed.

    In the folder of each card, files of an earlier model are deleted. The token comes from
    `hf auth login` or HF_TOKEN. With space_sdk, such as "gradio", the repository is a Space.
    revision is a branch, which is created if it does not exist.
    """
    api = HfApi()
    where: dict[str, Any] = {"repo_id": repo_id, "repo_type": "space" if space_sdk else "model"}
    api.create_repo(**where, space_sdk=space_sdk, private=private, exist_ok=True)
    if revision is not None:
        api.create_branch(**where, branch=revision, exist_ok=True)
    added = {operation.path_in_repo for operation in operations}
    where["revision"] = revision
    present = set(api.list_repo_files(**where)) - added
    places = [path.removesuffix(CARD) for path in added if path.endswith(CARD)]
    earlier = [f"{place}{pattern}" for place in places for pattern in REPLACED]
    deleted = [path for path in present if any(fnmatchcase(path, name) for name in earlier)]
    changes: list[Any] = [*operations, *map(CommitOperationDelete, deleted)]
    return str(api.create_commit(**where, operations=changes, commit_message=message).commit_url)


def published_card(folder: Path, repo_id: str) -> str:
    """Read a folder's model card; in its example, the repository replaces the model's name."""
    card = (folder / CARD).read_text("utf-8")
    title = re.search(r"^# ([^:\n]+)", card, re.MULTILINE)
    name = re.escape(title[1].strip() if title else folder.resolve().name)
    # The example of an adapter needs hub=True, because it now loads a repository.
    card = re.sub(rf'(Translator.from_pretrained\("{name}")\)', r"\1, hub=True)", card)
    calls = rf'(from_pretrained\(|pipeline\("[a-z-]+", )"{name}"'
    return re.sub(calls, lambda call: f'{call[1]}"{repo_id}"', card)
