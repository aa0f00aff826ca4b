"""Recipes: YAML files that set the flags of a command by name."""

import json
import textwrap
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from ..data.parsing import parse_yaml

RECIPES = Path(__file__).parent.parent / "recipes"
RECIPE_HELP = """\
The first argument may be a recipe: a YAML file that sets flags by name. Flags after the recipe
override it, and its entry `required` lists flags that must follow it. If the path does not exist,
NAME.yaml and recipes/NAME.yaml mean a recipe of the package:
{names}.
"""
# Entry of a recipe that lists flags without a value in it, which users must give.
REQUIRED = "required"


def recipe_help() -> str:
    """The part of --help about recipes."""
    return RECIPE_HELP.format(names=textwrap.fill(", ".join(recipe_names()), 99))


def recipe_names() -> list[str]:
    """File names of the package's recipes."""
    return sorted(path.name for path in RECIPES.glob("*.yaml"))


def find_recipe(path: str) -> Path:
    """Find a recipe: an existing file, or else NAME.yaml or recipes/NAME.yaml of the package."""
    recipe = Path(path)
    if recipe.is_file():
        return recipe
    if recipe.parent in (Path(), Path("recipes")) and recipe.name in recipe_names():
        return RECIPES / recipe.name
    raise FileNotFoundError(
        f"No such recipe: {path}. Pass a YAML file or one of {', '.join(recipe_names())}."
    )


def read_recipe(path: Path) -> dict[str, Any]:
    """Read the entries of a recipe.

    Raises:
        ValueError: It is not UTF-8 or no mapping, or `required` is no list of names.
    """
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8. Save the recipe as UTF-8.") from error
    recipe = parse_yaml(text, str(path))
    if not isinstance(recipe, dict):
        raise ValueError(f"{path}: a recipe must be a YAML mapping from flags to values.")
    names = recipe.get(REQUIRED, [])
    if not (isinstance(names, list) and all(isinstance(each, str) for each in names)):
        raise ValueError(f"{path}: {REQUIRED} must be a list of names of flags, got {names!r}.")
    return recipe


def find_fault(recipe: dict[str, Any], parser: ArgumentParser) -> str | None:
    """Describe the first entry of a recipe that no flag of the parser takes, or return None."""
    options = {name: each for each in parser._actions for name in each.option_strings}
    for name, value in recipe.items():
        option = options.get(f"--{name}")
        if option is None:
            return f"there is no flag --{name}."
        if isinstance(value, list) and option.nargs is None:
            return f"{name} takes one value, got {value!r}."
        if value == [] or (isinstance(value, list) and None in value):
            return f"{name} has an empty value, got {value!r}. Fill it in, or remove the entry."
    return None


def recipe_flags(recipe: dict[str, Any]) -> list[str]:
    """The command-line words of the flags that a recipe sets."""
    flags = []
    for name, value in recipe.items():
        # A mapping as JSON, which is YAML too: transformers reads its own flags as JSON.
        text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value
        values = text if isinstance(text, list) else [] if text is None else [text]
        if values:
            flags += [f"--{name}", *(str(each).strip() for each in values)]
    return flags
