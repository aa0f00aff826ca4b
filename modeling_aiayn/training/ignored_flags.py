"""Flags that would have no effect beside the other flags are named."""

import logging
from dataclasses import fields
from typing import Any

logger = logging.getLogger(__name__)


def default_of(arguments: Any, name: str) -> Any:
    """The default of a field of a dataclass."""
    return next(each.default for each in fields(arguments) if each.name == name)


def reject_ignored(arguments: Any, name: str, reason: str, *, is_ignored: bool) -> None:
    """Check that a field of a dataclass has its default if it would be ignored.

    Args:
        arguments: The dataclass.
        name: The field.
        reason: Ends the sentence that the name begins, as in "needs dataset_name".
        is_ignored: Whether the field has no effect beside the others.

    Raises:
        ValueError: The field is ignored, and set.
    """
    default = default_of(arguments, name)
    if is_ignored and getattr(arguments, name) != default:
        remedy = "" if default is None else f", or pass its default, {default}"
        raise ValueError(f"{name} {reason}. Leave it out{remedy}.")


def warn_of_ignored_size(arguments: Any) -> None:
    """Warn of a size that is for the other kind of vocabulary: recipes set sizes.

    Args:
        arguments: A dataclass with "vocabulary", and with "vocab_size", which limits bpe, and
            "min_frequency", which limits words.
    """
    is_bpe = arguments.vocabulary == "bpe"
    name, kind = ("min_frequency", "words") if is_bpe else ("vocab_size", "bpe")
    value = getattr(arguments, name)
    if value != default_of(arguments, name):
        logger.warning("%s=%s has no effect: it is for a vocabulary of %s.", name, value, kind)
