"""A trained model's folder to the Hub: what belongs there and nothing else."""

import logging
import time
from pathlib import Path

import httpx2
from huggingface_hub import CommitOperationAdd, HfApi, ModelCard, get_session
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from .loading import check_directory
from .tokenization import TARGET_TOKENIZER_FOLDER

logger = logging.getLogger(__name__)

# What tokenizers are kept in: ours, and those of imported models.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "source.spm",
    "target.spm",
    "vocab.json",
    "vocab-src.json",
    "vocab-tgt.json",
    "merges.txt",
)
# What a model's folder has beside weights: all that loads it and its tokenizers.
MODEL_FILES = (
    "config.json",
    "generation_config.json",
    *TOKENIZER_FILES,
    *(f"{TARGET_TOKENIZER_FOLDER}/{name}" for name in TOKENIZER_FILES),
    "attention.py",
    "chunked_loss.py",
    "configuration_aiayn.py",
    "dropout.py",
    "generation.py",
    "layers.py",
    "losses.py",
    "modeling_aiayn.py",
    "stacks.py",
)
# training_args.bin may hold the token; checkpoints, logs and people's own files stay here too.
PUBLISHED = (
    *MODEL_FILES,
    "README.md",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*-of-*.safetensors",
    "scores.json",
    "curves.png",
    "attention.png",
)
NEEDED = ("README.md", "config.json", "*.safetensors", "tokenizer_config.json")
# Where the vocabulary is, one of them.
VOCABULARIES = ("tokenizer.json", "source.spm", "vocab-src.json")


def files_to_publish(folder: str | Path) -> list[Path]:
    """The files of a model's folder that belong on the Hub, by an allow-list.

    Args:
        folder: A folder as the training script leaves it.

    Returns:
        Paths in the folder, sorted.

    Raises:
        OSError: There is no such folder.
        ValueError: It lacks what a model needs, or its card is not filled.
    """
    folder = Path(folder)
    check_directory(folder)
    files = sorted(path for pattern in PUBLISHED for path in folder.glob(pattern))
    for pattern in NEEDED:
        if not any(path.match(pattern) for path in files):
            raise ValueError(
                f"{folder} has no {pattern}: a model on the Hub needs card, configuration, weights "
                "and tokenizer. scripts/train_translation.py leaves them all."
            )
    if not any((folder / name).is_file() for name in VOCABULARIES):
        raise ValueError(f"{folder} has no vocabulary: none of {', '.join(VOCABULARIES)}.")
    card = ModelCard.load(folder / "README.md")
    if "{{" in card.content or not card.data.to_dict().get("license"):
        raise ValueError(
            f"{folder}/README.md is no filled model card: it needs metadata with a license, and no "
            "'{{' may be left in it."
        )
    return files


def publish(
    folder: str | Path,
    repo_id: str,
    *,
    revision: str | None = None,
    private: bool = False,
    message: str = "Upload model",
    timeout: float = 60.0,
    attempts: int = 3,
) -> str:
    """Put a model's folder on the Hub as one commit; the repository is made if there is none.

    The token is the one of `hf auth login`, or of HF_TOKEN.

    Args:
        folder: A folder as the training script leaves it.
        repo_id: Repository, as in "me/translator".
        revision: Branch, made if there is none. None: main.
        private: Whether a new repository is private.
        message: Of the commit.
        timeout: Seconds without an answer after which the connection counts as lost.
        attempts: How often a lost connection is tried, with growing pauses.

    Returns:
        The commit's address.

    Raises:
        ValueError: repo_id is none, or the folder is not complete.
        PermissionError: The Hub does not accept the token.
        ConnectionError: The Hub could not be reached, or did not answer.
    """
    operations = [
        CommitOperationAdd(path.relative_to(folder).as_posix(), path)
        for path in files_to_publish(folder)
        if path.name != "README.md"
    ]
    operations.append(CommitOperationAdd("README.md", _card_of(Path(folder), repo_id).encode()))
    session = get_session()
    patience, session.timeout = session.timeout, timeout
    try:
        for attempt in range(1, attempts + 1):
            try:
                return _commit(operations, repo_id, revision, private, message)
            except HFValidationError as error:
                raise ValueError(f"repo_id must be like me/translator, got {repo_id!r}.") from error
            except (HfHubHTTPError, httpx2.TransportError, RuntimeError) as error:
                # Where a large file fails, the library wraps what happened.
                cause = error.__cause__ if isinstance(error, RuntimeError) else error
                if not isinstance(cause, (HfHubHTTPError, httpx2.TransportError)):
                    raise
                failure = _explain(cause, repo_id)
                if isinstance(failure, PermissionError) or attempt == attempts:
                    raise failure from error
                logger.warning("%s Attempt %d of %d.", failure, attempt + 1, attempts)
                time.sleep(2 ** (attempt - 1))
    finally:
        session.timeout = patience
    raise ValueError(f"attempts must be at least 1, got {attempts}.")


def _card_of(folder: Path, repo_id: str) -> str:
    """The card, with the repository's name in its example for the folder's."""
    card = (folder / "README.md").read_text("utf-8")
    name = folder.resolve().name
    return card.replace(f'from_pretrained("{name}"', f'from_pretrained("{repo_id}"')


def _commit(
    operations: list[CommitOperationAdd],
    repo_id: str,
    revision: str | None,
    private: bool,
    message: str,
) -> str:
    api = HfApi()
    api.create_repo(repo_id, private=private, exist_ok=True)
    if revision is not None:
        api.create_branch(repo_id, branch=revision, exist_ok=True)
    commit = api.create_commit(repo_id, operations, commit_message=message, revision=revision)
    return str(commit.commit_url)


def _explain(error: HfHubHTTPError | httpx2.TransportError, repo_id: str) -> OSError:
    """What went wrong, without what the request held."""
    response = getattr(error, "response", None)
    if response is None:
        kind = (
            "did not answer in time" if isinstance(error, httpx2.TimeoutException) else "was lost"
        )
        return ConnectionError(f"The connection to the Hub {kind} ({type(error).__name__}).")
    if response.status_code in (401, 403):
        return PermissionError(
            f"The Hub refused the token for {repo_id} ({response.status_code}). It must be allowed "
            "to write there: `hf auth login`, or set HF_TOKEN."
        )
    return ConnectionError(f"The Hub answered with an error ({response.status_code}).")
