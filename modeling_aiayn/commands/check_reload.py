"""Check that a saved translation model loads with transformers alone, in a fresh process.

aiayn check-reload --model runs/demo --text "The old man sees the dog."

This package is hidden from the process, and the code beside the weights is used, as for a user who
downloads the folder.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from transformers.hf_argparser import HfArg

from ..saved.folders import check_directory, load_config
from .command_line import parse_arguments
from .flags import check_head


@dataclass
class ReloadFlags:
    """The model folder, and sentences to translate."""

    model: str = HfArg(help="Folder of a trained translation model.")
    text: list[str] = HfArg(help="Sentences to translate.")


def main() -> None:
    """Load and translate in a fresh process, and print what it prints."""
    (flags,) = parse_arguments(__doc__, ReloadFlags)
    check_directory(flags.model)
    check_head(flags.model, "AiaynForConditionalGeneration")
    if not getattr(load_config(flags.model), "auto_map", None):
        raise ValueError(
            f"{flags.model} holds no code, so only this package can load it. Folders of `aiayn "
            "quantize` and the bundled models are of this kind."
        )
    program = Path(__file__).with_name("reload_without_package.py")
    # -P: the folder of the program must not be searched for imports.
    command = [sys.executable, "-P", str(program), flags.model, *flags.text]
    environment = os.environ | {"PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, encoding="utf-8", env=environment, check=False
    )
    sys.stdout.write(done.stdout)
    code = done.returncode
    sys.exit(code if code >= 0 else 128 - code)  # negative: ended by a signal
