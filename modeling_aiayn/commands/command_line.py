"""Read flags and recipes, run a job, and report user errors in one line."""

import logging
import signal
import sys
from argparse import Action, ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import HfArgumentParser, TrainingArguments

from ..saved.memory import is_out_of_memory
from ..tokenization import is_tokenizer_failure
from .process_group import is_loss_of_process, leave_other_processes
from .recipes import REQUIRED, find_fault, find_recipe, read_recipe, recipe_flags, recipe_help
from .streams import STREAMS, protect_streams


class _HelpFormatter(ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter):
    """Show default values, and keep the line breaks of examples."""

    def _get_help_string(self, action: Action) -> str | None:
        # "(default: None)" is wrong for required flags, and contradicts "Default: ..." in a help.
        return action.help if action.default is None else super()._get_help_string(action)


def parse_arguments(description: str, *dataclass_types: type, **defaults: Any) -> tuple[Any, ...]:
    """Fill dataclasses from a recipe, if the first argument is one, and from flags.

    The fields of the dataclasses are the flags; description is the text of --help. defaults replace
    default values of flags.
    """
    usage = None
    if any(issubclass(each, TrainingArguments) for each in dataclass_types):
        usage = "%(prog)s [RECIPE.yaml] [--FLAG VALUE ...]"
        description += f"\n{recipe_help()}"
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
        recipe = read_recipe(find_recipe(arguments[0]))
        required = recipe.pop(REQUIRED, [])
        if fault := find_fault(recipe, parser):
            parser.error(f"the recipe {arguments[0]}: {fault}")
        arguments = [*recipe_flags(recipe), *arguments[1:]]
    *filled, unknown = parser.parse_args_into_dataclasses(arguments, return_remaining_strings=True)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    for name in required:
        if all(getattr(each, name, None) is None for each in filled):
            parser.error(f"the recipe {sys.argv[1]} needs --{name}. Add it after the recipe.")
    return tuple(filled)


def typed_command() -> list[str]:
    """The words of the command line that started this job, to show to users."""
    program, *arguments = sys.argv
    if program.endswith(".py"):
        return ["python", program, *arguments]
    return [*program.split(), *arguments]


def run_command(main: Callable[[], None], *, is_stdout_log: bool = False) -> None:
    """Run a job; write errors that a user can correct as one line to stderr, with exit code 1.

    A --debug flag without a value also shows the traceback. If the reader of stdout goes away, as
    in `translate | head`, the job ends without an error; with is_stdout_log, it continues.
    """
    protect_streams(is_stdout_log)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    # Clients log whole addresses, with signatures, and datasets the frameworks that it finds.
    for library in ("httpx", "httpx2", "datasets"):
        logging.getLogger(library).setLevel(logging.WARNING)
    words = [*sys.argv, "--"]
    # --debug with a value is a flag of the library's training arguments.
    is_debugging = "--debug" in words and words[words.index("--debug") + 1].startswith("--")
    if is_debugging:
        sys.argv.remove("--debug")
    try:
        code = _own_exit_code(main)
        leave_other_processes()
        sys.stdout.flush()
        if code is not None:
            sys.exit(code)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except BaseException as error:
        if isinstance(error, BrokenPipeError) and error.filename == STREAMS[1]:
            return
        message = _explanation(error)
        if is_debugging or message is None:
            raise
        sys.stderr.write(f"error: {' '.join(message.split())}\n")
        sys.exit(1)


def _own_exit_code(main: Callable[[], None]) -> str | int | None:
    """Run a job and return the exit code that it gave itself, as after a signal, or None.

    The exception of an exit would keep the job's trainer.
    """
    try:
        main()
    except SystemExit as stop:
        return stop.code
    return None


def _explanation(error: BaseException) -> str | None:
    """The text of an error that a user can correct; None for a bug of ours."""
    if isinstance(error, StrictDataclassError):
        return str(error.__cause__ or error)
    if isinstance(error, (ValueError, OSError, ImportError)):
        return str(error)
    if is_loss_of_process(error):
        return (
            "Another process of this run has ended, so this one ends too. If that process printed "
            "an error, it says why; otherwise it was killed, perhaps for lack of memory."
        )
    if is_out_of_memory(error):
        return (
            f"Out of memory ({error}). Lower --batch_size, --max_tokens_per_batch or "
            "--per_device_train_batch_size, or use a smaller model."
        )
    return f"A library failed: {error}." if is_tokenizer_failure(error) else None
