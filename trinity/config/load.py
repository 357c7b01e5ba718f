"""A configuration from its YAML file."""

import re
from collections.abc import Mapping
from pathlib import Path

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import JsonValue, ValidationError

from trinity.config.bounds import misread_bounds
from trinity.config.complaints import Source, complaints
from trinity.config.root import Config
from trinity.errors import UserError

_UNSET_VARIABLE = re.compile(r"Environment variable '(\w+)' not found")


def load_config(path: str | Path, overrides: Mapping[str, JsonValue] | None = None) -> Config:
    """The file's configuration, interpolated; `overrides` go on top, by dotted key or nested.

    load_config("gsm8k.yaml", {"buffer.total_steps": 10})
    """
    source = Source.read(Path(path))
    values = _values(source, overrides or {})
    if misread := list(misread_bounds(source)):
        raise UserError("\n".join(misread))
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise UserError("\n".join(complaints(error, source))) from error


def _values(source: Source, overrides: Mapping[str, JsonValue]) -> JsonValue:
    try:
        tree = OmegaConf.create(source.text)
        if OmegaConf.is_list(tree):
            raise UserError(f"{source.path} is a list: write `key: value` lines")
        if not tree and not overrides:
            raise UserError(f"{source.path} is empty: write `key: value` lines")
        for key, value in overrides.items():
            OmegaConf.update(tree, key, value, force_add=True)
        values: JsonValue = OmegaConf.to_container(tree, resolve=True, throw_on_missing=True)
    except yaml.YAMLError as error:
        raise UserError(_yaml_complaint(error, source)) from error
    except OmegaConfBaseException as error:
        key = error.full_key or "the file"
        raise UserError(f"`{key}` in {source.at(key)}: {_reason(error)}") from error
    return values


def _yaml_complaint(error: yaml.YAMLError, source: Source) -> str:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f"{source.path} is not valid YAML: {' '.join(str(error).split())}"
    what = ", ".join(part for part in (error.context, error.problem) if part)
    return f"{source.path}:{error.problem_mark.line + 1} is not valid YAML: {what}"


def _reason(error: OmegaConfBaseException) -> str:
    text = str(error).partition("\n")[0]
    if missing := _UNSET_VARIABLE.search(text):
        name = missing[1]
        return (
            f"the environment variable {name} is not set: set it, or write a default as in "
            f"${{oc.env:{name},value}}"
        )
    return text
