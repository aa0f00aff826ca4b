"""Parse JSON and YAML; an error names the place, whatever is wrong with the text."""

import dataclasses
import difflib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from ..configuration_aiayn import AiaynConfig

SURROGATE = re.compile(r"\\ud[89a-f]", re.IGNORECASE)


def parse_json(text: str, where: str) -> Any:
    """Parse JSON; where is the file or the line in error messages.

    Raises:
        ValueError: The text is not JSON, is nested too deeply, or holds half of a surrogate pair.
    """
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError(f"{where}: the JSON is nested too deeply.") from error
    except ValueError as error:
        # For a number with thousands of digits, Python adds its own advice after ";".
        reason = str(error).partition(";")[0]
        raise ValueError(f"{where}: not valid JSON ({reason}).") from error
    if SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{where}: holds half of a surrogate pair, which is not a character. Remove it."
            ) from error
    return value


def read_json_object(path: str | Path) -> dict[str, Any]:
    """Read a JSON file that must hold an object.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is not UTF-8 or not JSON, or holds something else.
    """
    try:
        text = Path(path).read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8. Copy or download the file again.") from error
    value = parse_json(text, str(path))
    if not isinstance(value, dict):
        kind = "null" if value is None else type(value).__name__
        raise ValueError(f"{path} must hold a JSON object, got {kind}.")
    return value


class _PlainLoader(yaml.SafeLoader):
    """Reads YAML without aliases: a few lines of them can stand for billions of values.

    As in YAML 1.2, only true and false are booleans (no is Norwegian), 1e-5 is a number, 010 is
    ten, and a key must not be repeated.
    """

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        repeated = next((key for number, key in enumerate(keys) if key in keys[:number]), None)
        if repeated is not None:
            raise yaml.YAMLError(f"the key {repeated!r} is there twice")
        return super().construct_mapping(node, deep)

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases such as *name are not supported")
        return super().compose_node(parent, index)


_BOOLEAN, _FLOAT = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:float"
_INTEGER = "tag:yaml.org,2002:int"
_PlainLoader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag != _INTEGER and (tag != _BOOLEAN or first in "tTfF")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_PlainLoader.add_implicit_resolver(_INTEGER, re.compile(r"[-+]?[0-9]+$"), list("-+0123456789"))
_PlainLoader.add_constructor(_INTEGER, lambda _, node: int(node.value))
_PlainLoader.add_implicit_resolver(
    _FLOAT, re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML without aliases; where is the file or the flag in error messages.

    Raises:
        ValueError: The text is not such YAML.
    """
    try:
        return yaml.load(text, Loader=_PlainLoader)
    except RecursionError as error:
        raise ValueError(f"{where}: the YAML is nested too deeply.") from error
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split()).partition(";")[0]
        raise ValueError(f"{where}: not valid YAML ({reason}).") from error


def parse_mapping(flag: str, text: str | None) -> dict[str, Any]:
    """Parse the YAML mapping in a flag; None gives an empty mapping."""
    expected = f"{flag} must be a YAML mapping, as in '{{a: 1, b: 2}}', got {text!r}."
    try:
        mapping = parse_yaml(text or "{}", flag)
    except ValueError as error:
        raise ValueError(f"{expected} {error}") from error
    if not isinstance(mapping, dict):
        raise ValueError(expected)
    return mapping


def check_config_fields(names: Iterable[str], where: str) -> None:
    """Check that AiaynConfig has the fields that a user names; it keeps unknown ones unused.

    Raises:
        ValueError: It has no such field.
    """
    fields = {each.name for each in dataclasses.fields(AiaynConfig)}
    # Every configuration of transformers takes attn_implementation, which is no field.
    known = fields | AiaynConfig.attribute_map.keys() | {"attn_implementation"}
    for name in names:
        if name not in known:
            similar = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {similar[0]!r}?" if similar else ""
            raise ValueError(f"{where}: AiaynConfig has no field {name!r}.{hint}")
