"""Upload a trained translation model to the Hub.

aiayn push-to-hub --model runs/multi30k --repo_id me/translator

Only the card, weights, tokenizers, model code, scores and pictures are uploaded. The token is the
one of `hf auth login` or of HF_TOKEN.
"""

import shlex
import sys
from dataclasses import dataclass

from transformers.hf_argparser import HfArg

from ..publishing import publish
from .command_line import parse_arguments, typed_command


@dataclass
class PushFlags:
    """The folder to upload, and the repository."""

    model: str = HfArg(help="Folder of a trained model.")
    repo_id: str = HfArg(help="Repository on the Hub, as in me/translator.")
    revision: str | None = HfArg(
        default=None, help="Branch, created if it does not exist. Default: main."
    )
    private: bool = HfArg(default=False, help="Make a new repository private.")
    message: str = HfArg(default="Upload model", help="Commit message.")
    timeout: float = HfArg(
        default=60.0, help="Seconds without an answer after which the connection counts as lost."
    )


def main() -> None:
    """Upload, and print the commit's address."""
    (flags,) = parse_arguments(__doc__, PushFlags)
    try:
        address = publish(
            flags.model,
            flags.repo_id,
            revision=flags.revision,
            private=flags.private,
            message=flags.message,
            timeout=flags.timeout,
        )
    except (ConnectionError, PermissionError) as error:
        command = shlex.join(typed_command())
        raise OSError(f"{error} The folder is unchanged; to try again: {command}") from error
    sys.stdout.write(f"{address}\n")
