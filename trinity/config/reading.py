"""Reads a file and command-line overrides into a configuration with errors and notices."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue, ValidationError

from trinity.config import keys
from trinity.config.bounds import misread_bounds
from trinity.config.complaints import complaints
from trinity.config.notices import Notice
from trinity.config.renaming import Renaming
from trinity.config.root import Config
from trinity.config.sifting import take_planned_values, take_unread
from trinity.config.source import Source
from trinity.config.status import Status
from trinity.config.tree import read_tree
from trinity.config.verls_files import lay_in_verls_files


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A file that was read, with its errors and notices."""

    source: Source
    written: Mapping[str, JsonValue]
    """The user's values, interpolated, under the current names."""
    config: Config | None
    """Only keys that act, without wrong ones; None if the wrong ones cannot be separated."""
    mistakes: tuple[str, ...]
    notices: tuple[Notice, ...]

    @property
    def planned(self) -> tuple[Notice, ...]:
        """Notices because of which a run is refused."""
        return tuple(notice for notice in self.notices if notice.status is Status.PLANNED)


def read_config(path: Path, overrides: Mapping[str, JsonValue] | None = None) -> Reading:
    """Reads a file; raises UserError only if it is not a configuration at all."""
    source = Source.read(path).with_overridden(frozenset(overrides or {}))
    tree, unfilled = read_tree(source, overrides or {})
    source, unread = lay_in_verls_files(tree, source)
    renaming = Renaming(tree, source)
    renaming.apply()
    source = source.with_moved(renaming.moved)
    notices = [*renaming.notices, *take_planned_values(tree, source)]
    mistakes = [*unfilled, *unread, *renaming.mistakes, *misread_bounds(source)]
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
    """Validates the tree, drops wrong keys from it, and returns the rest with the errors."""
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
