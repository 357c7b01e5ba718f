"""Reads a file and command-line overrides into a configuration with errors and notices."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue, ValidationError

from trinity.config.loading import keys
from trinity.config.loading.errors import validation_errors
from trinity.config.loading.migrate import (
    ConfigNotice,
    KeyMigration,
    strip_planned_values,
    strip_unread_keys,
)
from trinity.config.loading.source import ConfigSource
from trinity.config.loading.tree import read_tree, unquoted_bounds
from trinity.config.loading.verl_files import load_verl_files
from trinity.config.schema.base import KeyStatus
from trinity.config.schema.experiment import Config
from trinity.errors import UserError

MAX_DROPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedConfig:
    """A file that was read, with its errors and notices."""

    source: ConfigSource
    written: Mapping[str, JsonValue]
    """The user's values, interpolated, under the current names."""
    config: Config | None
    """Only keys that act, without wrong ones; None if the wrong ones cannot be separated."""
    errors: tuple[str, ...]
    notices: tuple[ConfigNotice, ...]

    @property
    def planned(self) -> tuple[ConfigNotice, ...]:
        """Notices because of which a run is refused."""
        return tuple(notice for notice in self.notices if notice.status is KeyStatus.PLANNED)


def read_config(path: Path, overrides: Mapping[str, JsonValue] | None = None) -> ParsedConfig:
    """Reads a file; raises UserError only if it is not a configuration at all."""
    source = ConfigSource.read(path).with_overridden(frozenset(overrides or {}))
    tree, unfilled = read_tree(source, overrides or {})
    source, unread = load_verl_files(tree, source)
    migration = KeyMigration(tree, source)
    migration.apply()
    source = source.with_moved(migration.moved)
    notices = [*migration.notices, *strip_planned_values(tree, source)]
    errors = [*unfilled, *unread, *migration.errors, *unquoted_bounds(source)]
    written = copy.deepcopy(tree)
    config, wrong = _validated(tree, source)
    if config is not None:
        notices += strip_unread_keys(tree, config, source)
        config = Config.model_validate(tree)
    return ParsedConfig(
        source=source,
        written=written,
        config=config,
        errors=(*errors, *wrong),
        notices=tuple(sorted(notices, key=lambda notice: notice.line)),
    )


def _validated(tree: dict[str, Any], source: ConfigSource) -> tuple[Config | None, Sequence[str]]:
    """Validates the tree, drops wrong keys from it, and returns the rest with the errors."""
    try:
        return Config.model_validate(tree), ()
    except ValidationError as error:
        errors = tuple(validation_errors(error, tree, source))
        _drop_wrong(tree, error)
    for _ in range(MAX_DROPS):
        try:
            return Config.model_validate(tree), errors
        except ValidationError as error:  # what is left lacks what was dropped
            _drop_wrong(tree, error)
    return None, errors


def _drop_wrong(tree: dict[str, Any], error: ValidationError) -> None:
    """Drops wrong keys, and of lists wrong items with those behind them: places stay the same."""
    wrong = [
        keys.existing_prefix(tree, details["loc"]) for details in error.errors(include_url=False)
    ]
    for location in wrong:
        keys.drop(tree, location)
    for location in wrong:
        keys.cut_list(tree, location)


def load_config(path: str | Path, overrides: Mapping[str, JsonValue] | None = None) -> Config:
    """Returns the file's interpolated configuration; `overrides` go on top, by dotted key.

    load_config("gsm8k.yaml", {"buffer.total_steps": 10})

    Raises: UserError with a sentence for each error, or one for all planned keys.
    """
    return require_runnable(read_config(Path(path), overrides))


def require_runnable(reading: ParsedConfig) -> Config:
    """Returns the configuration if it has no errors and asks for nothing that is only planned."""
    if reading.errors:
        raise UserError("\n".join(reading.errors))
    assert reading.config is not None
    if reading.planned:
        asked = ", ".join(
            f"{notice.subject} {notice.place} ({notice.text})" for notice in reading.planned
        )
        raise UserError(
            f"{asked} {'does' if len(reading.planned) == 1 else 'do'} not act yet: "
            f"remove, or see `trinity config check {reading.source.path}`"
        )
    return reading.config
