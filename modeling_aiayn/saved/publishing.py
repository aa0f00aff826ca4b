"""Upload a trained model's folder to the Hub, without files that must not be public."""

import importlib
import logging
import re
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    ModelCard,
    close_session,
    get_session,
)
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled
from transformers.utils import ADAPTER_CONFIG_NAME, CONFIG_NAME

from ..tokenization import TARGET_TOKENIZER_FOLDER
from .adapters import adapter_base
from .folders import check_directory, check_weight_files
from .int8 import INT8_WEIGHTS_NAME, check_one_model

logger = logging.getLogger(__name__)

# Status codes after which a request may be tried again.
BUSY = (408, 429, 500, 502, 503, 504)
# The longest wait that the Hub may ask for, in seconds.
MAX_WAIT = 300.0
# Slower uploads count as lost.
MIN_BYTES_PER_SECOND = 10_000
# Files of tokenizers: ours, and those of imported models.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "source.spm",
    "target.spm",
    "vocab.json",
    "target_vocab.json",
    "vocab-src.json",
    "vocab-tgt.json",
    "merges.txt",
)
# All files except weights that are needed to load a model and its tokenizers.
MODEL_FILES = (
    "config.json",
    "generation_config.json",
    *TOKENIZER_FILES,
    *(f"{TARGET_TOKENIZER_FOLDER}/{name}" for name in TOKENIZER_FILES),
    "attention.py",
    "blockwise_attention.py",
    "blockwise_operation.py",
    # Folders that earlier versions saved have this file.
    "checks.py",
    "chunked_loss.py",
    "configuration_aiayn.py",
    "dropout.py",
    "generation.py",
    "inputs.py",
    "layers.py",
    "losses.py",
    "modeling_aiayn.py",
    "pretrained.py",
    "stacks.py",
    "translation_pipeline.py",
)
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*-of-*.safetensors",
    INT8_WEIGHTS_NAME,
    "adapter_config.json",
    "adapter_model.safetensors",
)
# Anything else stays local: training_args.bin may hold a token, and checkpoints, logs and other
# files of the user are private.
PUBLISHED = (
    *MODEL_FILES,
    *WEIGHT_FILES,
    "README.md",
    "scores.json",
    "curves.png",
    "attention.png",
    "confusion.png",
)
# Patterns of needed files; one of each group must exist.
NEEDED = (
    ("README.md",),
    ("config.json", "adapter_config.json"),
    ("*.safetensors",),
    ("tokenizer_config.json",),
)
# Files that may hold the vocabulary; one of them must exist.
VOCABULARIES = ("tokenizer.json", "source.spm", "vocab-src.json")


def files_to_publish(folder: str | Path) -> list[Path]:
    """List the files of a finished run's folder that belong on the Hub, sorted.

    Raises:
        OSError: There is no such folder, or a file with weights is missing or damaged.
        ValueError: A needed file is missing, or the model card is not filled in.
    """
    folder = Path(folder)
    check_directory(folder)
    files = sorted(path for pattern in PUBLISHED for path in folder.glob(pattern))
    for patterns in NEEDED:
        if not any(path.match(pattern) for path in files for pattern in patterns):
            raise ValueError(
                f"{folder} has no {patterns[0]}: a model on the Hub needs a card, a configuration, "
                "weights and a tokenizer. aiayn train-translation writes all of them."
            )
    check_weight_files(folder)
    check_one_model(folder)
    check_base(folder)
    if not any((folder / name).is_file() for name in VOCABULARIES):
        raise ValueError(f"{folder} has no vocabulary: none of {', '.join(VOCABULARIES)}.")
    # The text may quote a sentence with braces; a template's placeholder stands for the metadata.
    metadata = read_card_metadata(folder / "README.md")
    if "{{" in str(metadata) or not metadata.get("license"):
        raise ValueError(
            f"{folder}/README.md must be a filled model card, with a license in its metadata and "
            "no '{{' there. Fill it in."
        )
    for path in files:
        if path.resolve() != folder.resolve() / path.relative_to(folder):
            raise ValueError(
                f"{path} is a link to {path.resolve()}. Copy the file itself into the folder."
            )
    return files


def read_card_metadata(path: str | Path) -> dict[str, Any]:
    """Read the metadata of a model card.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not UTF-8, or its metadata is not valid YAML.
    """
    try:
        metadata: dict[str, Any] = ModelCard.load(path).data.to_dict()
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{path} must be a model card in UTF-8 with valid YAML between its first two lines "
            f"'---' ({reason}). Correct it."
        ) from error
    return metadata


def check_base(folder: Path) -> None:
    """Check that the base model of an adapter is not a folder of this machine.

    Raises:
        ValueError: The base model is a local folder.
    """
    path = folder / ADAPTER_CONFIG_NAME
    if not path.is_file() or (folder / CONFIG_NAME).is_file():
        return
    base = adapter_base(path)
    if Path(base).is_absolute() or Path(base).exists():
        raise ValueError(
            f"{path} names the folder {base} as the base model, which nobody else has. Publish the "
            "base model, and write its repository there as base_model_name_or_path. Or train with "
            "--merge_lora true, and publish the whole model."
        )


def model_operations(folder: str | Path, repo_id: str) -> list[CommitOperationAdd]:
    """The files of a finished run's folder; the example in its card names the repository.

    Raises:
        OSError: A file with weights is missing or damaged.
        ValueError: The folder is incomplete.
    """
    operations = [
        CommitOperationAdd(path.relative_to(folder).as_posix(), path)
        for path in files_to_publish(folder)
        if path.name != "README.md"
    ]
    card = renamed_card(Path(folder), repo_id, hub=True).encode()
    return [*operations, CommitOperationAdd("README.md", card)]


def publish(folder: str | Path, repo_id: str, **options: Any) -> str:
    """Upload a model's folder to the Hub, with the options of `upload`; return the commit's URL.

    Raises:
        OSError: A file with weights is missing or damaged, or the upload failed.
        ValueError: repo_id is invalid, or the folder is incomplete.
    """
    return upload(model_operations(folder, repo_id), repo_id, **options)


def upload(
    operations: list[CommitOperationAdd],
    repo_id: str,
    *,
    space_sdk: str | None = None,
    revision: str | None = None,
    private: bool = False,
    message: str = "Upload model",
    timeout: float = 60.0,
    attempts: int = 3,
) -> str:
    """Upload files to the Hub in one commit, and create the repository if needed.

    Files of a model that was there before are deleted. The token is that of `hf auth login` or
    HF_TOKEN.

    Args:
        operations: The files, as `model_operations` lists them.
        repo_id: Repository, as in "me/translator".
        space_sdk: What runs the repository, a Space, as in "gradio". None: it is a model.
        revision: Branch, created if needed. None: main.
        private: Whether a new repository is private.
        message: Message of the commit.
        timeout: Seconds to wait for each answer; the time for sending files is added.
        attempts: Number of attempts if the connection is lost or the Hub is busy, with growing
            pauses between them, or as long as the Hub asks for.

    Returns:
        URL of the commit.

    Raises:
        ValueError: repo_id is invalid.
        PermissionError: The Hub rejects the token.
        ConnectionError: The Hub cannot be reached, or does not answer.
    """
    size = sum(operation.upload_info.size for operation in operations)
    for attempt in range(1, attempts + 1):
        try:
            with bounded_session(timeout, size):
                return _commit(operations, repo_id, space_sdk, revision, private, message)
        except HFValidationError as error:
            raise ValueError(f"repo_id must be like me/translator, got {repo_id!r}.") from error
        except (HubError, HfHubHTTPError, RuntimeError) as error:
            # huggingface_hub wraps the error of a large file in a RuntimeError.
            cause = error.__cause__ if isinstance(error, RuntimeError) else error
            if isinstance(cause, HfHubHTTPError):
                raise _readable_error(cause, repo_id) from error
            if not isinstance(cause, HubError):
                raise
            wait = 2.0 ** (attempt - 1) if cause.wait is None else cause.wait
            if attempt == attempts or wait > MAX_WAIT:
                raise ConnectionError(str(cause)) from error
            logger.warning("%s Attempt %d of %d in %.0f s.", cause, attempt + 1, attempts, wait)
            time.sleep(wait)
    raise ValueError(f"attempts must be at least 1, got {attempts}.")


def renamed_card(folder: Path, new_name: str, hub: bool = False) -> str:
    """A folder's model card, with another folder or, with hub, a repository in its example.

    The example names the folder, or the name in the title if the folder was renamed.
    """
    card = (folder / "README.md").read_text("utf-8")
    title = re.search(r"^# ([^:\n]+)", card, re.MULTILINE)
    for name in {folder.resolve().name, *([title[1].strip()] if title else [])}:
        if hub:  # an adapter of a local model, which is now a repository
            local = f'Translator.from_pretrained("{name}")'
            card = card.replace(local, f'Translator.from_pretrained("{new_name}", hub=True)')
        calls = rf'(from_pretrained\(|pipeline\("[a-z-]+", )"{re.escape(name)}"'
        card = re.sub(calls, lambda call: f'{call[1]}"{new_name}"', card)
    return card


def _commit(
    operations: list[CommitOperationAdd],
    repo_id: str,
    space_sdk: str | None,
    revision: str | None,
    private: bool,
    message: str,
) -> str:
    api = HfApi()
    kind = "model" if space_sdk is None else "space"
    api.create_repo(repo_id, repo_type=kind, space_sdk=space_sdk, private=private, exist_ok=True)
    if revision is not None:
        api.create_branch(repo_id, repo_type=kind, branch=revision, exist_ok=True)
    present = api.list_repo_files(repo_id, repo_type=kind, revision=revision)
    changes: list[Any] = [*operations, *deletions_of_earlier(present, operations)]
    commit = api.create_commit(
        repo_id, changes, repo_type=kind, commit_message=message, revision=revision
    )
    return str(commit.commit_url)


def deletions_of_earlier(
    present: Iterable[str], operations: Sequence[CommitOperationAdd]
) -> list[CommitOperationDelete]:
    """Delete an earlier model's files in a repository: loaders prefer some to the new ones.

    Args:
        present: Paths of the files in the repository.
        operations: The files to upload, with a card beside each model.
    """
    added = {operation.path_in_repo for operation in operations}
    folders = [path.removesuffix("README.md") for path in added if path.endswith("README.md")]
    names = {f"{folder}{pattern}" for folder in map(escape, folders) for pattern in PUBLISHED}
    return [
        CommitOperationDelete(path)
        for path in present
        if path not in added
        # "*" matches "/" too.
        and any(path.count("/") == name.count("/") and fnmatchcase(path, name) for name in names)
    ]


class HubError(OSError):
    """A request that may be tried again after `wait` seconds; None: the Hub did not say when.

    huggingface_hub does not know this error, and so does not repeat the request by itself.
    """

    def __init__(self, message: str, wait: float | None = None) -> None:
        super().__init__(message)
        self.wait = wait


@contextmanager
def bounded_session(timeout: float, largest_upload: int) -> Iterator[None]:
    """Bound the time of each request of huggingface_hub; a request that fails is a HubError.

    Without this, the library repeats each request up to six times, and a server that sends a byte
    now and then keeps it waiting for ever. A request may take `timeout` seconds, and more for its
    body: as long as it takes at MIN_BYTES_PER_SECOND. largest_upload is the most bytes that a body
    of unknown length may have.
    """
    session: Any = get_session()
    http = _http_library(session)
    usual_timeout, session.timeout = session.timeout, timeout
    send = session.send

    def send_once(request: Any, **options: Any) -> Any:
        is_chunked = "Transfer-Encoding" in request.headers
        size = largest_upload if is_chunked else int(request.headers.get("Content-Length", 0))
        is_expired = threading.Event()

        def expire() -> None:
            is_expired.set()
            close_session()

        expiry = threading.Timer(timeout + size / MIN_BYTES_PER_SECOND, expire)
        expiry.daemon = True
        expiry.start()
        try:
            response = send(request, **options)
        except OfflineModeIsEnabled:
            raise
        except (http.TransportError, http.StreamError, OSError) as error:
            is_late = isinstance(error, http.TimeoutException) or is_expired.is_set()
            kind = "did not answer in time" if is_late else "was lost"
            text = f"The connection to the Hub {kind} ({type(error).__name__})."
            raise HubError(text) from error
        finally:
            expiry.cancel()
        if response.status_code in BUSY:
            raise HubError(
                f"The Hub answered with an error ({response.status_code}).", _wait_of(response)
            )
        return response

    session.send = send_once
    try:
        yield
    finally:
        session.send, session.timeout = send, usual_timeout


def _wait_of(response: Any) -> float | None:
    """The seconds after which the Hub wants to be asked again; None if it does not say."""
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isascii() and value.isdigit() else None


def _http_library(session: Any) -> Any:
    """The library that huggingface_hub connects with: httpx2 since its version 2, httpx before."""
    client = type(session).__mro__[-2]  # a session may be of a class that the user derived
    return importlib.import_module(client.__module__.partition(".")[0])


def _readable_error(error: HfHubHTTPError, repo_id: str) -> OSError:
    """An error with a clear message, which leaves out the request and its token."""
    status = error.response.status_code
    if status in (401, 403):
        return PermissionError(
            f"The Hub rejected the token for {repo_id} ({status}). Log in with a "
            "token that may write there: `hf auth login`, or set HF_TOKEN."
        )
    return ConnectionError(f"The Hub answered with an error ({status}).")
