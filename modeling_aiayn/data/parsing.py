"""Parse JSON and YAML; an error names the file, the line or the flag."""

import dataclasses
import difflib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from ..configuration_aiayn import AiaynConfig


def parse_json(text: str, where: str) -> Any:
    """Parse JSON; where is the file or the line in error messages."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not valid JSON ({error}).") from error


def read_json_object(path: str | Path) -> dict[str, Any]:
    """Read a JSON file that holds an object."""
    return parse_json(Path(path).read_text("utf-8"), str(path))


class _PlainLoader(yaml.SafeLoader):
    """Reads YAML 1.2's scalars: only true and false are booleans, 1e-5 is a number, 010 is ten."""


_BOOLEAN, _FLOAT, _INTEGER = (f"tag:yaml.org,2002:{kind}" for kind in ("bool", "float", "int"))
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
    """Parse YAML; where is the file or the flag in error messages."""
    try:
        return yaml.load(text, Loader=_PlainLoader)
    except yaml.YAMLError as error:
        raise ValueError(f"{where}: not valid YAML ({error}).") from error


def parse_mapping(flag: str, text: str | None) -> dict[str, Any]:
    """Parse the YAML mapping in a flag; None gives an empty mapping."""
    mapping = parse_yaml(text or "{}", flag)
    if not isinstance(mapping, dict):
        raise ValueError(f"{flag} must be a YAML mapping, as in '{{a: 1, b: 2}}', got {text!r}.")
    return mapping


def check_config_fields(names: Iterable[str], where: str) -> None:
    """Check that AiaynConfig has the fields that a user names; it would ignore unknown ones."""
    fields = {field.name for field in dataclasses.fields(AiaynConfig)}
    # Every configuration of transformers takes attn_implementation, although it is not a field.
    known = fields | AiaynConfig.attribute_map.keys() | {"attn_implementation"}
    for name in names:
        if name not in known:
            similar = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {similar[0]!r}?" if similar else ""
            raise ValueError(f"{where}: AiaynConfig has no field {name!r}.{hint}")
