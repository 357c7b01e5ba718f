"""A file, and what the command line lays over it, as a configuration with everything said of it."""

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
