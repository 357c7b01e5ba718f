"""A file, and what the command line lays over it, as a configuration with everything said of it."""

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import JsonValue, ValidationError

from trinity.config import keys
from trinity.config.bounds import misread_bounds
from trinity.config.complaints import complaints
from trinity.config.notices import Notice
from trinity.config.renaming import Renaming
from trinity.config.root import Config
from trinity.config.sifting import take_planned_values, take_unread
from trinity.config.source import COMMAND_LINE, Source
from trinity.config.status import Status
from trinity.errors import UserError

_UNSET_VARIABLE = re.compile(r"Environment variable '(\w+)' not found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a file says."""

    source: Source
    written: Mapping[str, JsonValue]
    """What the user gave, interpolated, by the names that it has here."""
    config: Config | None
    """Only what acts, without what is mistaken; None where that cannot be told apart."""
    mistakes: tuple[str, ...]
    notices: tuple[Notice, ...]

    @property
    def planned(self) -> tuple[Notice, ...]:
        """What a run refuses."""
        return tuple(notice for notice in self.notices if notice.status is Status.PLANNED)


def read_config(path: Path, overrides: Mapping[str, JsonValue] | None = None) -> Reading:
    """Everything there is to say of a file; raises UserError only if it is no configuration."""
    source, tree = _tree(Source.read(path), overrides or {})
    renaming = Renaming(tree, source)
    renaming.apply()
    source = source.with_moved(renaming.moved)
    notices = [*renaming.notices, *take_planned_values(tree, source)]
    mistakes = [*renaming.mistakes, *misread_bounds(source)]
    written = copy.deepcopy(tree)
    config, wrong = _validated(tree, source)
    if config is not None:
        notices += take_unread(tree, config, source)
        config = Config.model_validate(tree)
    return Reading(
        source=source,
        written=written,
        config=config,
        mistakes=(*mistakes, *wrong),
        notices=tuple(sorted(notices, key=lambda notice: notice.line)),
    )


def _validated(tree: dict[str, Any], source: Source) -> tuple[Config | None, Sequence[str]]:
    """The configuration of what is right in the tree, from which the rest is dropped."""
    try:
        return Config.model_validate(tree), ()
    except ValidationError as error:
        mistakes = tuple(complaints(error, tree, source))
        for details in error.errors(include_url=False):
            keys.drop(tree, keys.existing(tree, details["loc"]))
    try:
        return Config.model_validate(tree), mistakes
    except ValidationError:
        return None, mistakes


def _tree(
    source: Source, overrides: Mapping[str, JsonValue]
) -> tuple[Source, dict[str, JsonValue]]:
    try:
        tree = OmegaConf.create(source.text)
        if OmegaConf.is_list(tree):
            raise UserError(f"{source.path} is a list: write `key: value` lines")
        if not tree and not overrides:
            raise UserError(f"{source.path} is empty: write `key: value` lines")
        source = source.with_overridden(frozenset(overrides))
        for key, value in overrides.items():
            _override(tree, key, value)
        values = OmegaConf.to_container(tree, resolve=True, throw_on_missing=True)
    except yaml.YAMLError as error:
        raise UserError(_yaml_complaint(error, source)) from error
    except OmegaConfBaseException as error:
        key = error.full_key or "the file"
        raise UserError(f"`{key}` {source.at(key)}: {_reason(error)}") from error
    assert isinstance(values, dict)
    return source, values


def _override(tree: DictConfig, key: str, value: JsonValue) -> None:
    try:
        OmegaConf.update(tree, key, value, force_add=True)
    except (OmegaConfBaseException, IndexError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"`{key}` on {COMMAND_LINE} leads nowhere ({str(error).splitlines()[0]}): "
            "write it as algorithm.optimizer.lr or stages[0].trainer.total_steps"
        ) from error


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
