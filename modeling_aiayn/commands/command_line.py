"""Read flags and recipes, run a job, and report user errors in one line."""

import gc
import json
import logging
import os
import select
import signal
import sys
import textwrap
from argparse import Action, ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from torch import distributed
from transformers.hf_argparser import HfArgumentParser

from ..data.parsing import parse_yaml
from ..tokenization import is_tokenizer_failure

RECIPES = Path(__file__).parent.parent / "recipes"
RECIPE_HELP = """
The first argument may be a recipe: a YAML file that sets flags by name. Flags after the recipe
override it, and its entry `required` lists flags that must follow it. If the path does not exist,
NAME.yaml and recipes/NAME.yaml mean a recipe of the package:
"""
# Modules whose errors mean damaged files or a failed network.
LIBRARIES = {"safetensors", "safetensors_rust", "zlib", "httpx", "httpx2"}


class _HelpFormatter(ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter):
    def _get_help_string(self, action: Action) -> str | None:
        # "(default: None)" is wrong for required flags, and contradicts "Default: ..." in the help.
        return action.help if action.default is None else super()._get_help_string(action)


def parse_arguments(description: str, *dataclass_types: type, **defaults: Any) -> tuple[Any, ...]:
    """Fill dataclasses from a recipe, if the first argument is one, and from flags.

    description is the text of --help; defaults override the default values of flags.
    """
    usage = None
    # A training command. Importing TrainingArguments, to ask for it, takes a seventh of a second.
    if any(hasattr(dataclass_type, "max_steps") for dataclass_type in dataclass_types):
        usage = "%(prog)s [RECIPE.yaml] [--FLAG VALUE ...]"
        description += RECIPE_HELP + textwrap.fill(f"{', '.join(recipe_names())}.", 99)
    parser = HfArgumentParser(
        dataclass_types,
        prog=Path(sys.argv[0]).name,
        usage=usage,
        description=description,
        epilog="An error is one line. --debug at the end of the command shows its traceback.",
        formatter_class=_HelpFormatter,
    )
    parser.set_defaults(**defaults)
    arguments, required = sys.argv[1:], []
    if arguments and arguments[0].endswith((".yaml", ".yml")):
        path = find_recipe(arguments[0])
        recipe = parse_yaml(path.read_text("utf-8"), str(path))
        required = recipe.pop("required", [])  # flags that users must give
        arguments = [*recipe_flags(recipe), *arguments[1:]]
    *filled, unknown = parser.parse_args_into_dataclasses(arguments, return_remaining_strings=True)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    for name in required:
        if all(getattr(flags, name, None) is None for flags in filled):
            parser.error(f"the recipe {sys.argv[1]} needs --{name}. Add it after the recipe.")
    return tuple(filled)


def recipe_names() -> list[str]:
    return sorted(path.name for path in RECIPES.glob("*.yaml"))


def find_recipe(path: str) -> Path:
    """Find a recipe: an existing file, or else NAME.yaml or recipes/NAME.yaml of the package."""
    recipe = Path(path)
    if recipe.is_file():
        return recipe
    if recipe.parent in (Path(), Path("recipes")) and recipe.name in recipe_names():
        return RECIPES / recipe.name
    names = ", ".join(recipe_names())
    raise FileNotFoundError(f"No such recipe: {path}. Pass a YAML file or one of {names}.")


def recipe_flags(recipe: dict[str, Any]) -> list[str]:
    flags = []
    for name, value in recipe.items():
        # Write a mapping as JSON, which is also YAML: transformers reads its own flags as JSON.
        text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value
        if text is not None:  # the parser rejects an empty list
            values = text if isinstance(text, list) else [text]
            flags += [f"--{name}", *(str(word).strip() for word in values)]
    return flags


def typed_command() -> list[str]:
    """Return the words of the command line that started this job, to show to users."""
    program, *arguments = sys.argv
    if program.endswith(".py"):
        return ["python", program, *arguments]
    return [*program.split(), *arguments]


def run_command(main: Callable[[], None]) -> None:
    """Run a job; write errors that a user can correct as one line to stderr, with exit code 1."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    # HTTP clients log whole URLs, with signatures; datasets logs the frameworks that it finds.
    for library in ("httpx", "httpx2", "datasets"):
        logging.getLogger(library).setLevel(logging.WARNING)
    words = [*sys.argv, "--"]
    # --debug with a value is one of transformers' training arguments.
    is_debugging = "--debug" in words and words[words.index("--debug") + 1].startswith("--")
    if is_debugging:
        sys.argv.remove("--debug")
    try:
        code = _exit_code(main)
        leave_other_processes()
        sys.stdout.flush()
        if code is not None:
            sys.exit(code)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except BaseException as error:
        if isinstance(error, BrokenPipeError) and _has_lost_its_reader():
            return
        message = None if is_debugging else _explanation(error)
        if message is None:
            raise
        sys.stderr.write(f"error: {' '.join(message.split())}\n")
        sys.exit(1)


def _exit_code(main: Callable[[], None]) -> str | int | None:
    """Run a job and return its exit code; a SystemExit would keep the job's trainer in memory."""
    try:
        main()
    except SystemExit as stop:
        return stop.code
    return None


def _has_lost_its_reader() -> bool:
    """Whether nobody reads stdout any more, as in `translate | head`; then drop the rest of it."""
    if os.name == "nt":  # it has no poll, and a reader that has gone is another error there
        return False
    poll = select.poll()
    poll.register(1, 0)
    is_lost = bool(poll.poll(0))
    if is_lost:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return is_lost


def leave_other_processes() -> None:
    """End the process group of a job with several processes, and its threads.

    Otherwise a gloo thread that frees a tensor while Python exits aborts the process after its work
    is done (https://github.com/pytorch/pytorch/issues/190489). `group` must be the last reference:
    it releases Python's lock while it waits for the threads, which need the lock. If a DDP model
    were the last reference, it would keep the lock, and the process would hang.
    """
    if _is_in_group():
        group = distributed.group.WORLD
        distributed.destroy_process_group()
        gc.collect()
        del group


def _is_in_group() -> bool:
    return distributed.is_available() and distributed.is_initialized()


def _explanation(error: BaseException) -> str | None:
    """Return the message of an error that a user can correct; None for a bug in this package."""
    if isinstance(error, StrictDataclassError):
        return str(error.__cause__ or error)
    kind = type(error)
    is_of_library = kind.__module__.partition(".")[0] in LIBRARIES
    if is_of_library or isinstance(error, (ValueError, OSError, ImportError, EOFError)):
        # The name of a library's class may say more than its message.
        return str(error) if kind.__module__ == "builtins" else f"{kind.__name__}: {error}"
    signs = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer")
    is_of_group = isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)
    if is_of_group and _is_in_group():
        message = "Another process of this run has ended, so this one ends too. If that process "
        return message + "printed no error, it was killed, perhaps for lack of memory."
    from ..training.failures import is_out_of_memory  # slow import, seldom needed

    if is_out_of_memory(error):
        flags = "--batch_size, --max_tokens_per_batch or --per_device_train_batch_size"
        return f"Out of memory ({error}). Lower {flags}, or use a smaller model."
    return f"A library failed: {error}." if is_tokenizer_failure(error) else None
