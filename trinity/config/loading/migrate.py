"""Moves renamed keys to their current names and strips unread ones, with a notice for each.

A file of verl's keys (`trainer.trainer_config_path`) is read as if it were written in its place.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trinity.config.loading import keys
from trinity.config.loading.keys import Location, to_dotted
from trinity.config.loading.source import (
    COMMAND_LINE,
    ConfigSource,
    section_at,
    written_sections,
)
from trinity.config.loading.tree import read_tree
from trinity.config.loading.verl_keys import (
    PREFIX,
    STRATEGIES,
    DefaultBehavior,
    key_treatment,
)
from trinity.config.schema.base import (
    OTHER_STRATEGIES,
    IgnoredKey,
    KeyStatus,
    PlannedKey,
    RenamedKey,
    Section,
    canonical_value,
    choices_of,
    format_value,
    mark_of,
)
from trinity.config.schema.experiment import Config
from trinity.config.schema.trainer import TrainerConfig
from trinity.errors import UserError

TRAINER_CONFIG_KEY = "trainer_config"
VERL_FILE_KEY = "trainer_config_path"
NAMES = ("project", "group", "name")
"""Names of folders, of which Trinity-RFT takes any."""
_OF_PATH = re.compile(r"[/\\]|^\.")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
_OVERRIDDEN = f"on {COMMAND_LINE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigNotice:
    """A key that does not act as written."""

    status: KeyStatus
    key: str
    """The key as the user wrote it."""
    value: Any
    place: str
    """`in file:line`."""
    line: int
    """0 for the command line."""
    text: str
    """The reason; for a renamed key, the new name."""

    @property
    def subject(self) -> str:
        """The key, with its value if that is short."""
        value = format_value(self.key, self.value)
        is_short = not isinstance(self.value, dict | list | tuple) and len(value) <= 40
        return f"`{self.key}: {value}`" if is_short else f"`{self.key}`"

    def __str__(self) -> str:
        if self.status is KeyStatus.RENAMED:
            return f"`{self.key}` is used as `{self.text}`"
        return f"{self.subject}: {self.text}"


@dataclass(slots=True)
class KeyMigration:
    """Moves the keys of a tree in place, and collects notices and errors about them."""

    tree: dict[str, Any]
    source: ConfigSource
    moved: dict[str, str] = field(default_factory=dict)
    """New key to the written key."""
    notices: list[ConfigNotice] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def apply(self) -> None:
        """Moves every value that has an older name."""
        for at, trainer in list(_trainers(self.tree)):
            self._verl_keys(at, trainer)
        for at, section, written in list(written_sections(self.tree, Config)):
            for name, renamed in section.old_names.items():
                place = tuple(name.split("."))
                if keys.has(written, place):
                    self._move((*at, *place), renamed)
        for name in NAMES:
            self._map_name(name)

    def _map_name(self, key: str) -> None:
        """Replaces characters of a run's name that Trinity-RFT takes, but those of a path."""
        name = self.tree.get(key)
        if not isinstance(name, str) or _OF_PATH.search(name):
            return
        mapped = _NOT_IN_NAMES.sub("-", name).strip("-")
        if mapped and mapped != name:
            self.tree[key] = mapped
            self._notify(KeyStatus.RENAMED, (key,), name, mapped)

    def _verl_keys(self, at: Location, trainer: dict[str, Any]) -> None:
        verl = trainer[TRAINER_CONFIG_KEY]
        is_replaced = str(trainer.get("trainer_strategy")).lower() in OTHER_STRATEGIES
        for place, value in list(keys.leaves(verl)):
            if value == {}:
                continue  # an empty section
            location = (*at, TRAINER_CONFIG_KEY, *place)
            key = ".".join(map(str, place))
            if key.removeprefix(f"{PREFIX}.") in STRATEGIES and value in OTHER_STRATEGIES:
                if not is_replaced:
                    self._notify(KeyStatus.NO_EFFECT, location, value, OTHER_STRATEGIES[value])
                is_replaced = True
                continue
            match key_treatment(key, value):
                case RenamedKey() as renamed:
                    self._move(location, renamed)
                case IgnoredKey(reason):
                    self._notify(KeyStatus.NO_EFFECT, location, value, reason)
                case PlannedKey(reason):
                    self._notify(KeyStatus.PLANNED, location, value, reason)
                case DefaultBehavior():
                    pass
        trainer[TRAINER_CONFIG_KEY] = {}

    def _move(self, old: Location, renamed: RenamedKey) -> None:
        value = keys.get(self.tree, old)
        keys.drop(self.tree, old)
        if value is None:
            return
        new = _target(old, renamed)
        if keys.has(self.tree, new) and keys.get(self.tree, new) is not None:
            self._report_conflict(old, new, value)
            return
        try:
            keys.put(self.tree, new, value)
        except (KeyError, IndexError, TypeError):
            return  # a value that is not a section is in the way; that is reported elsewhere
        if not _is_default(new, value, is_verls=TRAINER_CONFIG_KEY in old):
            self._notify(KeyStatus.RENAMED, old, value, to_dotted(new))
        self.moved[to_dotted(new)] = self._written_key(old)

    def _report_conflict(self, old: Location, new: Location, value: Any) -> None:
        other = keys.get(self.tree, new)
        if other == value:
            return
        places = [self.source.at(self._written_key(place)) for place in (old, new)]
        if places[0] == _OVERRIDDEN != places[1]:
            keys.put(self.tree, new, value)  # the command line is over the file under any name
            self.moved[to_dotted(new)] = self._written_key(old)
            return
        if places[1] == _OVERRIDDEN != places[0]:
            return
        old_key, new_key = self._written_key(old), self._written_key(new)
        self.errors.append(
            f"`{old_key}: {value}` {self.source.at(old_key)} is another name "
            f"of `{new_key}: {other}` {self.source.at(new_key)}: remove one"
        )

    def _written_key(self, location: Location) -> str:
        key = to_dotted(location)
        return self.moved.get(key, key)

    def _notify(self, status: KeyStatus, location: Location, value: Any, text: str) -> None:
        key = self._written_key(location)
        place = self.source.at(key)
        line = self.source.line(key)
        notice = ConfigNotice(
            status=status, key=key, value=value, place=place, line=line, text=text
        )
        self.notices.append(notice)


def _is_default(location: Location, value: Any, *, is_verls: bool) -> bool:
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
        if section is TrainerConfig and isinstance(written.get(TRAINER_CONFIG_KEY), dict):
            yield at, written


def _target(old: Location, renamed: RenamedKey) -> Location:
    if renamed.to.startswith("/"):
        return (*keys.stage_location(old), *keys.parse_key(renamed.to[1:]))
    return (*old[:-1], *keys.parse_key(renamed.to))


def strip_planned_values(tree: dict[str, Any], source: ConfigSource) -> Iterator[ConfigNotice]:
    """Takes out values that no type allows; their keys fall back to the default."""
    for at, section, written in list(written_sections(tree, Config)):
        for name in list(written.keys() & section.model_fields.keys()):
            choices = choices_of(section.model_fields[name])
            value = canonical_value(section, name, written[name])
            for status, reasons in (
                (KeyStatus.PLANNED, choices.planned),
                (KeyStatus.NO_EFFECT, choices.replaced),
            ):
                if isinstance(value, str) and value in reasons:
                    del written[name]
                    key = to_dotted((*at, name))
                    yield _notice(status, key, value, reasons[value], source)


def strip_unread_keys(
    tree: dict[str, Any], config: Config, source: ConfigSource
) -> Iterator[ConfigNotice]:
    """Takes out keys with a mark; yields a notice if their value is not the default."""
    for location, section, name in list(_unread_keys(tree, config)):
        field = type(section).model_fields[name]
        mark = mark_of(field)
        assert mark is not None
        status = KeyStatus.PLANNED if isinstance(mark, PlannedKey) else KeyStatus.NO_EFFECT
        value = getattr(section, name)
        if value != field.get_default(call_default_factory=True):
            written = keys.get(tree, location)
            yield _notice(status, to_dotted(location), written, mark.reason, source)
        keys.drop(tree, location)


def _unread_keys(tree: dict[str, Any], config: Config) -> Iterator[tuple[Location, Section, str]]:
    """Yields the outermost marked keys; keys below an unread key are not read either."""
    taken: list[Location] = []
    for at, _, written in written_sections(tree, Config):
        if any(at[: len(outer)] == outer for outer in taken):
            continue
        section = _value(config, at)
        for name in written:
            if mark_of(type(section).model_fields[name]) is not None:
                taken.append((*at, name))
                yield (*at, name), section, name


def _value(config: Config, location: Location) -> Any:
    value: Any = config
    for part in location:
        is_key = isinstance(value, Section)
        value = getattr(value, str(part)) if is_key else value[part]
    return value


def _notice(
    status: KeyStatus, key: str, value: Any, text: str, source: ConfigSource
) -> ConfigNotice:
    written = source.as_written(key)
    return ConfigNotice(
        status=status,
        key=written,
        value=value,
        place=source.at(key),
        line=source.line(key),
        text=text,
    )


def load_verl_files(tree: dict[str, Any], source: ConfigSource) -> tuple[ConfigSource, list[str]]:
    """Puts the files' keys into the tree; each is located at the line that names its file."""
    errors: list[str] = []
    lines, overridden = dict(source.lines), set(source.overridden)
    for at, trainer in list(_with_files(tree)):
        key, place = to_dotted((*at, VERL_FILE_KEY)), (*at, TRAINER_CONFIG_KEY)
        path = trainer.pop(VERL_FILE_KEY)
        said = f"`{key}: {path}` {source.at(key)}"
        if trainer.get(TRAINER_CONFIG_KEY):
            errors.append(f"{said} is given beside `{to_dotted(place)}`: keep one of the two")
            continue
        try:
            trainer[TRAINER_CONFIG_KEY], unfilled = read_tree(ConfigSource.read(Path(path)), {})
        except UserError as error:
            errors.append(f"{said}: {error}")
            continue
        errors += [f"{said}: {error}" for error in unfilled]
        if line := source.line(key):
            lines |= {
                to_dotted((*place, *leaf)): line
                for leaf, _ in keys.leaves(trainer[TRAINER_CONFIG_KEY])
            }
        else:
            overridden.add(to_dotted(place))
    return replace(source, lines=lines, overridden=frozenset(overridden)), errors


def _with_files(tree: dict[str, Any]) -> Iterator[tuple[Location, dict[str, Any]]]:
    for at, section, written in written_sections(tree, Config):
        if (
            section is TrainerConfig
            and isinstance(written.get(VERL_FILE_KEY), str)
            and written[VERL_FILE_KEY]
        ):
            yield at, written
