"""Reads a file's values, with those of the command line over them, interpolated."""

from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import JsonValue

from trinity.config import keys
from trinity.config.interpolation import interpolated
from trinity.config.keys import Location
from trinity.config.merging import deep_merge
from trinity.config.source import COMMAND_LINE, Source
from trinity.config.variables import filled, is_open
from trinity.config.yaml_tree import load_yaml
from trinity.errors import UserError


def read_tree(
    source: Source, overrides: Mapping[str, JsonValue]
) -> tuple[dict[str, Any], list[str]]:
    """Returns all values, and an error for each one that cannot be filled in.

    Raises: UserError if the file is not a configuration at all.
    """
    try:
        tree = load_yaml(source.text)
    except yaml.YAMLError as error:
        raise UserError(_complaint(error, source)) from error
    tree = {} if tree is None else tree
    if not isinstance(tree, dict) or not (tree or overrides):
        what = "empty" if not tree else "a list" if isinstance(tree, list) else "one value"
        raise UserError(f"{source.path} is {what}: write `key: value` lines")
    for key, value in overrides.items():
        _override(tree, key, value)
    values: dict[str, Any] = filled(tree)
    return interpolated(tree, source) if is_open(values) else (values, [])


def _override(tree: dict[str, Any], key: str, value: object) -> None:
    try:
        location = _location(tree, keys.parsed(key))
        old = keys.get(tree, location) if keys.has(tree, location) else None
        if isinstance(old, dict) and isinstance(value, dict):
            value = deep_merge(old, value)
        keys.put(tree, location, value)
    except (KeyError, IndexError, TypeError) as error:
        raise UserError(
            f"`{key}` on {COMMAND_LINE} leads nowhere ({_reason(error)}): "
            "write it as algorithm.optimizer.lr or stages[0].trainer.total_steps"
        ) from error


def _location(tree: Any, written: Location) -> Location:
    """Converts numbers after a dot to list positions: `stages.0.mode`."""
    found: list[str | int] = []
    for part in written:
        is_position = isinstance(tree, list) and isinstance(part, str) and part.isdecimal()
        found.append(int(part) if is_position else part)
        tree = keys.get(tree, (found[-1],)) if keys.has(tree, (found[-1],)) else None
    return tuple(found)


def _reason(error: Exception) -> str:
    match error:
        case KeyError():
            return f"there is no section at `{error.args[0]}`"
        case IndexError():
            return "the list is shorter"
    return "no key of a section"


def _complaint(error: yaml.YAMLError, source: Source) -> str:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f"{source.path} is not valid YAML: {' '.join(str(error).split())}"
    what = ", ".join(part for part in (error.context, error.problem) if part)
    return f"{source.path}:{error.problem_mark.line + 1} is not valid YAML: {what}"
