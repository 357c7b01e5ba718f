"""Takes planned values and keys without effect out of a tree, each with a notice."""

from collections.abc import Iterator
from typing import Any

from trinity.config import keys
from trinity.config.keys import Location, dotted
from trinity.config.notices import Notice
from trinity.config.root import Config
from trinity.config.section import Section, known_value
from trinity.config.shape import written_sections
from trinity.config.source import Source
from trinity.config.status import Planned, Status, choices_of, mark_of


def take_planned_values(tree: dict[str, Any], source: Source) -> Iterator[Notice]:
    """Takes out values that no type allows yet; their keys fall back to the default."""
    for at, section, written in list(written_sections(tree, Config)):
        for name in list(written.keys() & section.model_fields.keys()):
            planned = choices_of(section.model_fields[name]).planned
            value = known_value(section, name, written[name])
            if isinstance(value, str) and value in planned:
                key = dotted((*at, name))
                del written[name]
                yield _notice(Status.PLANNED, key, value, planned[value], source)


def take_unread(tree: dict[str, Any], config: Config, source: Source) -> Iterator[Notice]:
    """Takes out keys with a mark; yields a notice if their value is not the default."""
    for location, section, name in list(_marked(tree, config)):
        field = type(section).model_fields[name]
        mark = mark_of(field)
        assert mark is not None
        status = Status.PLANNED if isinstance(mark, Planned) else Status.NO_EFFECT
        value = getattr(section, name)
        if value != field.get_default(call_default_factory=True):
            written = keys.get(tree, location)
            yield _notice(status, dotted(location), written, mark.reason, source)
        keys.drop(tree, location)


def _marked(tree: dict[str, Any], config: Config) -> Iterator[tuple[Location, Section, str]]:
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


def _notice(status: Status, key: str, value: Any, text: str, source: Source) -> Notice:
    written = source.as_written(key)
    return Notice(
        status=status,
        key=written,
        value=value,
        place=source.at(key),
        line=source.line(key),
        text=text,
    )
