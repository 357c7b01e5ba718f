"""Moves values under older names and verl's names to the current ones; the file is not changed."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from trinity.config import keys
from trinity.config.keys import Location, dotted
from trinity.config.notices import Notice
from trinity.config.root import Config
from trinity.config.shape import section_at, written_sections
from trinity.config.source import Source
from trinity.config.status import NoEffect, Planned, Renamed, Status, mark_of
from trinity.config.trainer import TrainerConfig
from trinity.config.verl_keys import Happens, fate_of

VERL = "trainer_config"


@dataclass(slots=True)
class Renaming:
    """Moves the keys of a tree in place, and collects notices and errors about them."""

    tree: dict[str, Any]
    source: Source
    moved: dict[str, str] = field(default_factory=dict)
    """New key to the written key."""
    notices: list[Notice] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)

    def apply(self) -> None:
        """Moves every value that has an older name."""
        for at, trainer in list(_trainers(self.tree)):
            self._verl_keys(at, trainer)
        for at, section, written in list(written_sections(self.tree, Config)):
            for name in section.old_names.keys() & written.keys():
                self._move((*at, name), section.old_names[name])

    def _verl_keys(self, at: Location, trainer: dict[str, Any]) -> None:
        verl = trainer[VERL]
        for place, value in list(keys.leaves(verl)):
            location = (*at, VERL, *place)
            match fate_of(".".join(map(str, place)), value):
                case Renamed() as renamed:
                    self._move(location, renamed)
                case NoEffect(reason):
                    self._say(Status.NO_EFFECT, location, value, reason)
                case Planned(reason):
                    self._say(Status.PLANNED, location, value, reason)
                case Happens():
                    pass
        trainer[VERL] = {}

    def _move(self, old: Location, renamed: Renamed) -> None:
        value = keys.get(self.tree, old)
        keys.drop(self.tree, old)
        if value is None:
            return
        new = _target(old, renamed)
        if keys.has(self.tree, new) and keys.get(self.tree, new) is not None:
            self._twice(old, new, value)
            return
        try:
            keys.put(self.tree, new, value)
        except (KeyError, IndexError, TypeError):
            return  # a value that is not a section is in the way; that is reported elsewhere
        if not _happens_anyway(new, value, is_verls=VERL in old):
            self._say(Status.RENAMED, old, value, dotted(new))
        self.moved[dotted(new)] = self._written(old)

    def _twice(self, old: Location, new: Location, value: Any) -> None:
        other = keys.get(self.tree, new)
        if other == value:
            return
        self.mistakes.append(
            f"`{self._written(old)}: {value}` {self.source.at(self._written(old))} is another name "
            f"of `{self._written(new)}: {other}` {self.source.at(self._written(new))}: remove one"
        )

    def _written(self, location: Location) -> str:
        key = dotted(location)
        return self.moved.get(key, key)

    def _say(self, status: Status, location: Location, value: Any, text: str) -> None:
        key = self._written(location)
        place = self.source.at(key)
        line = self.source.line(key)
        notice = Notice(status=status, key=key, value=value, place=place, line=line, text=text)
        self.notices.append(notice)


def _happens_anyway(location: Location, value: Any, *, is_verls: bool) -> bool:
    """True if a verl key, or a key that does not act, has the value of its default.

    verl's configurations list all keys, so most values are defaults.
    """
    section = section_at(location[:-1], Config)
    field = section.model_fields.get(str(location[-1])) if section else None
    if field is None or not (is_verls or mark_of(field) is not None):
        return False
    return bool(field.get_default(call_default_factory=True) == value)


def _trainers(tree: dict[str, Any]) -> Iterator[tuple[Location, dict[str, Any]]]:
    for at, section, written in written_sections(tree, Config):
        if section is TrainerConfig and isinstance(written.get(VERL), dict):
            yield at, written


def _target(old: Location, renamed: Renamed) -> Location:
    if renamed.to.startswith("/"):
        return (*keys.top_of(old), *keys.parsed(renamed.to[1:]))
    return (*old[:-1], *keys.parsed(renamed.to))
