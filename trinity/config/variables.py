"""Fills in the common `${...}`: environment variables, and single values of other keys."""

import os
import re
from collections.abc import Callable
from typing import Any

from trinity.config import keys

_VARIABLE = re.compile(r"\$\{oc\.env:(\w+)(?:,((?:[A-Za-z_]|\.{0,2}/)[\w./-]*|0|[1-9][0-9]*))?\}")
"""A variable, with an optional default that is a name, a path or a count."""
_KEY = re.compile(r"\$\{([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\}")
_VALUES = frozenset({"null", "true", "false", "nan", "inf"})
_MISSING = "???"


def is_open(value: Any) -> bool:
    """True if anything in the value is still to be filled in."""
    if isinstance(value, dict):
        return any(is_open(item) for item in value.values())
    if isinstance(value, list):
        return any(is_open(item) for item in value)
    return isinstance(value, str) and ("${" in value or value == _MISSING)


def filled(tree: Any) -> Any:
    """The tree with these filled in; the rest is left unchanged for OmegaConf."""
    known = _each_text(tree, _with_variables)
    return _each_text(known, lambda text: _with_key(text, known))


def _each_text(value: Any, change: Callable[[str], Any]) -> Any:
    if isinstance(value, dict):
        return {key: _each_text(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_each_text(item, change) for item in value]
    return change(value) if isinstance(value, str) else value


def _with_variables(text: str) -> str:
    if "\\" in text or "${" in _VARIABLE.sub("", text):
        return text
    values = [_variable(match) for match in _VARIABLE.finditer(text)]
    return text if None in values else _VARIABLE.sub(lambda match: str(_variable(match)), text)


def _variable(match: re.Match[str]) -> str | None:
    name, default = match.groups()
    is_text = default is not None and default.lower() not in _VALUES
    return os.environ.get(name, default if is_text else None)


def _with_key(text: str, tree: Any) -> Any:
    key = _KEY.fullmatch(text)
    location = keys.parsed(key[1]) if key else ()
    value = keys.get(tree, location) if key and keys.has(tree, location) else {}
    return text if isinstance(value, dict | list) or is_open(value) else value
