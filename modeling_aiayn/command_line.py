"""What every script does: read arguments, run, and end with one line where something is wrong."""

import logging
import sys
from collections.abc import Callable
from typing import Any

import torch
import yaml
from huggingface_hub.errors import StrictDataclassError
from torch import distributed
from transformers import AutoConfig, HfArgumentParser

from .loading import check_model_folder

logger = logging.getLogger(__name__)


def parse_arguments(description: str, *dataclass_types: type) -> tuple[Any, ...]:
    """Arguments as dataclasses, from flags, and before them from a recipe.

    `script.py recipe.yaml --seed 2` reads the recipe's lines as flags; later flags win.

    Args:
        description: The script's docstring, for --help.
        *dataclass_types: What to fill.

    Returns:
        The filled dataclasses.

    Raises:
        OSError: The recipe cannot be read.
        ValueError: It is no YAML mapping.
    """
    parser = HfArgumentParser(dataclass_types, description=description)
    arguments = sys.argv[1:]
    if arguments and arguments[0].endswith((".yaml", ".yml")):
        arguments = [*_flags_of(arguments[0]), *arguments[1:]]
    *filled, unknown = parser.parse_args_into_dataclasses(arguments, return_remaining_strings=True)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return tuple(filled)


def _flags_of(path: str) -> list[str]:
    with open(path, encoding="utf-8") as file:
        try:
            recipe = yaml.safe_load(file)
        except yaml.YAMLError as error:
            raise ValueError(f"{path}: not valid YAML ({error}).") from error
    if not isinstance(recipe, dict):
        raise ValueError(f"{path}: a recipe must be a YAML mapping from flags to values.")
    flags = []
    for name, value in recipe.items():
        # A nested mapping is a YAML text to its flag, as config_overrides is.
        text = yaml.safe_dump(value, default_flow_style=True) if isinstance(value, dict) else value
        values = text if isinstance(text, list) else [] if text is None else [text]
        if values:
            flags += [f"--{name}", *(str(each).strip() for each in values)]
    return flags


def default_device(device: str | None) -> str:
    """The device that a flag names, or a GPU where there is one.

    Args:
        device: The flag's value.

    Returns:
        A name that torch knows.

    Raises:
        ValueError: torch knows no such device.
    """
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return str(torch.device(device))
    except RuntimeError as error:
        raise ValueError(f"device must be one that torch knows, got {device!r}.") from error


def check_head(folder: str, head: str) -> None:
    """Refuse a folder that holds no model with a head.

    Args:
        folder: A model's folder.
        head: The class that the model must have been saved as.

    Raises:
        OSError: There is no such folder, or no model in it.
        ValueError: The model is another one.
    """
    check_model_folder(folder)
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    heads = config.architectures or ["none"]
    if head not in heads:
        raise ValueError(f"{folder} must hold a model saved as {head}, got {heads[0]}.")


def run_script(main: Callable[[], None]) -> None:
    """Run a script's main; what a user can mend ends in one line on stderr and exit code 1.

    With a bare --debug among the arguments the traceback comes too.

    Args:
        main: The script.
    """
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    words = [*sys.argv, "--"]
    # With a word behind it, it is the trainers' own flag.
    is_debugging = "--debug" in words and words[words.index("--debug") + 1].startswith("--")
    if is_debugging:
        sys.argv.remove("--debug")
    try:
        main()
        if distributed.is_available() and distributed.is_initialized():
            # Else a process that is done early may abort in the middle of another's work.
            distributed.destroy_process_group()
    except BrokenPipeError:
        # The reader went away; nothing more can be said to it.
        sys.stderr.close()
    except KeyboardInterrupt:
        sys.exit(130)
    except (ValueError, OSError, ImportError, StrictDataclassError) as error:
        if is_debugging:
            raise
        cause = error.__cause__ if isinstance(error, StrictDataclassError) else error
        sys.stderr.write(f"error: {' '.join(str(cause or error).split())}\n")
        sys.exit(1)
