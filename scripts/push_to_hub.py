"""Put a trained translator on the Hub: card, weights, tokenizers, code, scores and pictures alone.

    python scripts/push_to_hub.py --model runs/multi30k --repo_id me/translator

The token is that of `hf auth login`, or of HF_TOKEN.
"""

import shlex
import sys
from dataclasses import dataclass, field

from modeling_aiayn.command_line import parse_arguments, run_script
from modeling_aiayn.publishing import publish


@dataclass
class PushArguments:
    """What to push, and where to."""

    model: str = field(metadata={"help": "A trained model's folder."})
    repo_id: str = field(metadata={"help": "Repository on the Hub, as in me/translator."})
    revision: str | None = field(
        default=None, metadata={"help": "Branch, made if there is none; default: main."}
    )
    private: bool = field(default=False, metadata={"help": "Whether a new repository is private."})
    message: str = field(default="Upload model", metadata={"help": "Of the commit."})
    timeout: float = field(
        default=60.0,
        metadata={"help": "Seconds without an answer that count as a lost connection."},
    )


def main() -> None:
    """Push, and print the commit's address."""
    (arguments,) = parse_arguments(__doc__, PushArguments)
    try:
        address = publish(
            arguments.model,
            arguments.repo_id,
            revision=arguments.revision,
            private=arguments.private,
            message=arguments.message,
            timeout=arguments.timeout,
        )
    except (ConnectionError, PermissionError) as error:
        command = shlex.join(["python", *sys.argv])
        raise OSError(f"{error} The folder is as it was; to try again: {command}") from error
    sys.stdout.write(f"{address}\n")


if __name__ == "__main__":
    run_script(main)
