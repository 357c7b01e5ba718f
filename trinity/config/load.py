"""A configuration from its YAML file."""

from collections.abc import Mapping
from pathlib import Path

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import JsonValue, ValidationError

from trinity.config.complaints import Source, complaints
from trinity.config.root import Config
from trinity.errors import UserError


def load_config(path: str | Path, overrides: Mapping[str, JsonValue] | None = None) -> Config:
    """The file's configuration, interpolated; `overrides` go on top, by dotted key or nested.

    load_config("gsm8k.yaml", {"buffer.total_steps": 10})
    """
    source = Source.read(Path(path))
    values = _values(source, overrides or {})
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise UserError("\n".join(complaints(error, source))) from error


def _values(source: Source, overrides: Mapping[str, JsonValue]) -> JsonValue:
    try:
        tree = OmegaConf.create(source.text) if source.text.strip() else OmegaConf.create({})
        if not OmegaConf.is_dict(tree):
            raise UserError(f"{source.path} is a list: write `key: value` lines")
        for key, value in overrides.items():
            OmegaConf.update(tree, key, value, force_add=True)
        values: JsonValue = OmegaConf.to_container(tree, resolve=True, throw_on_missing=True)
    except yaml.YAMLError as error:
        raise UserError(f"{source.path} is not valid YAML: {_one_line(error)}") from error
    except OmegaConfBaseException as error:
        key = error.full_key or "the file"
        reason = str(error).partition("\n")[0]
        raise UserError(f"`{key}` in {source.at(key)}: {reason}") from error
    return values


def _one_line(error: yaml.YAMLError) -> str:
    return " ".join(str(error).split())
