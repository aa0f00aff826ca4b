"""Flags that would have no effect beside the other flags are named."""

from typing import Any


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
    default = getattr(type(arguments), name)
    if is_ignored and getattr(arguments, name) != default:
        remedy = "" if default is None else f", or pass its default, {default}"
        raise ValueError(f"{name} {reason}. Leave it out{remedy}.")
