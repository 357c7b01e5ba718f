"""Values of a row by the name of their column, or by a path into one.

    column_value({"reward_model": {"ground_truth": "72"}}, "reward_model.ground_truth")  # "72"

A column whose name has a dot comes before a path. A path leads into the JSON text of an object,
too.
"""

import json
from collections.abc import Mapping
from typing import Any, TypeVar

Value = TypeVar("Value")


def column_value(row: Mapping[str, Value], path: str) -> Value:
    """Returns the value of a column, or of a key inside of it, each part of the path after a dot.

    Raises: KeyError when the row has none.
    """
    if path in row:
        return row[path]
    name, _, rest = path.partition(".")
    inner = _object_of(row[name]) if rest else row[name]
    if not rest or not isinstance(inner, Mapping):
        raise KeyError(path)
    found: Value = column_value(inner, rest)
    return found


def _object_of(value: Any) -> Any:
    """Returns the object that a JSON text holds; any other value as it is."""
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def has_column(row: Mapping[str, object], path: str) -> bool:
    """Returns true if the row has a value there, which may be null."""
    try:
        column_value(row, path)
    except KeyError:
        return False
    return True


def optional_column(row: Mapping[str, Value], path: str) -> Value | None:
    """Returns the value there, None if the row has none or null."""
    return column_value(row, path) if has_column(row, path) else None


def column_names(row: Mapping[str, object]) -> list[str]:
    """Returns the names that a row has, then paths to the keys inside of its columns."""
    return [*row, *(f"{name}.{key}" for name in row for key in _keys(row[name]))]


def _keys(value: object) -> list[str]:
    return [str(key) for key in value] if isinstance(value, Mapping) else []
