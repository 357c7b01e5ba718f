"""Reads a file's values, applies overrides and fills in `${...}`."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Set
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import JsonValue

from trinity.config.loading import keys
from trinity.config.loading.keys import Location
from trinity.config.loading.source import COMMAND_LINE, ConfigSource
from trinity.config.loading.yaml import load_yaml, yaml_entries
from trinity.config.loading.yaml_errors import yaml_error_sentence
from trinity.config.schema.experiment import deep_merge
from trinity.errors import UserError

if TYPE_CHECKING:
    from omegaconf.errors import OmegaConfBaseException

_NO_KEY = re.compile(r"Interpolation key '([^']*)' not found")
_NO_RESOLVER = re.compile(r"Unsupported interpolation type (\S+)")
_UNSET_VARIABLE = re.compile(r"Environment variable '(\w+)' not found")

_VARIABLE = re.compile(r"\$\{oc\.env:(\w+)(?:,((?:[A-Za-z_]|\.{0,2}/)[\w./-]*|0|[1-9][0-9]*))?\}")
"""A variable, with an optional default that is a name, a path or a count."""
_KEY = re.compile(r"\$\{([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\}")
_VALUES = frozenset({"null", "true", "false", "nan", "inf"})
_MISSING = "???"
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def interpolate(tree: dict[str, Any], source: ConfigSource) -> tuple[dict[str, Any], list[str]]:
    """Fills in the tree as far as possible; returns it with an error for each key left out.

    Raises: UserError if a value that cannot be filled in cannot be left out, as in a list.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    errors: list[str] = []
    left_out: set[str] = set()
    while True:
        try:
            container = OmegaConf.create(tree)
            values = OmegaConf.to_container(container, resolve=True, throw_on_missing=True)
        except OmegaConfBaseException as error:
            key = error.full_key or "the file"
            if not _takes_from(error, left_out):  # the value that it takes has its own error
                errors.append(f"`{key}` {source.at(key)}: {_interpolation_reason(error)}")
            location = keys.parse_key(key)
            if not (keys.has(tree, location) and isinstance(location[-1], str)):
                raise UserError("\n".join(errors)) from error
            keys.drop(tree, location)
            left_out.add(key)
        else:
            assert isinstance(values, dict)
            return {str(key): value for key, value in values.items()}, errors


def _takes_from(error: "OmegaConfBaseException", left_out: Set[str]) -> bool:
    """True if a value is taken from one of these keys."""
    absent = _NO_KEY.search(str(error))
    return absent is not None and absent[1] in left_out


def _interpolation_reason(error: "OmegaConfBaseException") -> str:
    from omegaconf.errors import GrammarParseError

    text = str(error).partition("\n")[0]
    if missing := _UNSET_VARIABLE.search(text):
        name = missing[1]
        return (
            f"the environment variable {name} is not set: set it, or write a default as in "
            f"${{oc.env:{name},value}}"
        )
    if absent := _NO_KEY.search(text):
        return (
            f"there is no key `{absent[1]}` to take the value from: name one from the top of the "
            "file, as in ${model.model_path}, or a variable, as in ${oc.env:NAME}"
        )
    if text.startswith("Recursive interpolation"):
        return "it takes its value from itself: write a value, or take it from another key"
    if text.startswith("Missing mandatory value"):
        return "`???` stands for a value that is still to be given: write it"
    if unknown := _NO_RESOLVER.match(text):
        return (
            f"`${{{unknown[1]}:` is not known here: write ${{model.model_path}} for a key's value, "
            "or ${oc.env:NAME,default} for a variable's"
        )
    if isinstance(error, GrammarParseError):
        return (
            "what follows `${` is neither a key nor a variable: write ${model.model_path} or "
            "${oc.env:NAME,default}, or \\${ for the characters themselves"
        )
    return text


def has_interpolation(value: Any) -> bool:
    """True if anything in the value is still to be filled in."""
    if isinstance(value, dict):
        return any(has_interpolation(item) for item in value.values())
    if isinstance(value, list):
        return any(has_interpolation(item) for item in value)
    return isinstance(value, str) and ("${" in value or value == _MISSING)


def fill_variables(tree: Any) -> Any:
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
    location = keys.parse_key(key[1]) if key else ()
    value = keys.get(tree, location) if key and keys.has(tree, location) else {}
    return text if isinstance(value, dict | list) or has_interpolation(value) else value


def read_tree(
    source: ConfigSource, overrides: Mapping[str, JsonValue]
) -> tuple[dict[str, Any], list[str]]:
    """Returns all values, and an error for each one that cannot be filled in.

    Raises: UserError if the file is not a configuration at all.
    """
    try:
        tree = load_yaml(source.text)
    except yaml.YAMLError as error:
        raise UserError(yaml_error_sentence(error, source.path, source.text)) from error
    tree = {} if tree is None else tree
    if not isinstance(tree, dict) or not (tree or overrides):
        what = "empty" if not tree else "a list" if isinstance(tree, list) else "one value"
        raise UserError(f"{source.path} is {what}: write `key: value` lines")
    for key, value in overrides.items():
        _override(tree, key, value)
    for key in overrides:
        _check_stages(tree, key)
    values: dict[str, Any] = fill_variables(tree)
    return interpolate(tree, source) if has_interpolation(values) else (values, [])


def _override(tree: dict[str, Any], key: str, value: object) -> None:
    try:
        location = _location(tree, keys.parse_key(key))
        if any(
            isinstance(part, int) and not keys.has(tree, location[:place])
            for place, part in enumerate(location)
        ):
            raise IndexError(key)
        old = keys.get(tree, location) if keys.has(tree, location) else None
        if isinstance(old, dict) and isinstance(value, dict):
            value = deep_merge(old, value)
        keys.put(tree, location, value)
    except (KeyError, IndexError, TypeError) as error:
        raise UserError(
            f"`{key}` on {COMMAND_LINE} leads nowhere ({_override_reason(error)}): "
            "write it as algorithm.optimizer.lr or stages[0].trainer.total_steps"
        ) from error


def _check_stages(tree: dict[str, Any], key: str) -> None:
    """Raises UserError for an override that a stage would not see."""
    stages, location = tree.get("stages"), _location(tree, keys.parse_key(key))
    for place, stage in enumerate(stages if isinstance(stages, list) else ()):
        if isinstance(stage, dict) and keys.has(stage, location):
            raise UserError(
                f"`{key}` on {COMMAND_LINE} does not reach stages[{place}], which sets its own: "
                f"write stages[{place}].{key}, or that of the stage that is meant"
            )


def _location(tree: Any, written: Location) -> Location:
    """Converts numbers after a dot to list positions: `stages.0.mode`."""
    found: list[str | int] = []
    for part in written:
        is_position = isinstance(tree, list) and isinstance(part, str) and part.isdecimal()
        found.append(int(part) if is_position else part)
        tree = keys.get(tree, (found[-1],)) if keys.has(tree, (found[-1],)) else None
    return tuple(found)


def _override_reason(error: Exception) -> str:
    match error:
        case KeyError():
            return f"there is no section at `{error.args[0]}`"
        case IndexError():
            return "there is no such list, or it is shorter"
    return "no key of a section"


def unquoted_bounds(source: ConfigSource) -> Iterator[str]:
    """Yields a sentence for each unquoted pair of bounds that YAML would misread."""
    for entry in yaml_entries(source.text):
        if "rollout_correction." not in entry.key or not isinstance(entry.value, yaml.ScalarNode):
            continue
        text = entry.value.value
        if "_" in text and entry.value.tag in _NUMBERS:
            yield (
                f"`{entry.key}: {text}` in {source.path}:{entry.line} is one number to YAML: "
                f'put the bounds in quotes, "{text}"'
            )
