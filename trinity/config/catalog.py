"""Catalog of all configuration keys: path, status, description, type and default."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_origin

from pydantic.fields import FieldInfo

from trinity.config.meanings import meaning_of
from trinity.config.root import Config
from trinity.config.section import Section
from trinity.config.shape import is_by_name, section_of
from trinity.config.stages import StageConfig
from trinity.config.status import Renamed, Status, choices_of, mark_of, status_of
from trinity.config.type_words import type_in_words


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key, or an older name of one."""

    path: str
    """`buffer.explorer_input.eval_tasksets[].name`, `...auxiliary_buffers.<name>.path`."""
    section: type[Section]
    name: str
    status: Status
    reason: str = ""
    """Why it does not act; for an older name, the current key."""
    field: FieldInfo | None = None
    """None for an older name."""

    @property
    def meaning(self) -> str:
        """Description of the key."""
        return meaning_of(self.section, self.name)

    @property
    def type(self) -> str:
        """Type, in words."""
        return type_in_words(self.field) if self.field else ""

    @property
    def is_required(self) -> bool:
        """True if the key has no default."""
        return self.field is not None and self.field.is_required()

    @property
    def default(self) -> Any:
        """Value of a key that is left out."""
        assert self.field is not None
        return self.field.get_default(call_default_factory=True)

    @property
    def is_section(self) -> bool:
        """True if it has keys below it and no value of its own."""
        return self.field is not None and _is_section(self.field)

    @property
    def planned_values(self) -> dict[str, str]:
        """Planned values, with their descriptions."""
        return dict(choices_of(self.field).planned) if self.field else {}

    @property
    def other_values(self) -> dict[str, str]:
        """Aliases of values, with the names used here."""
        return dict(choices_of(self.field).aliases) if self.field else {}


def all_keys() -> Iterator[Key]:
    """Yields all keys, a section before its keys; a stage has the sections of the top level."""
    for key in _keys(Config, "", None):
        yield key
        if key.path == "stages":
            names = ("stage_name", "mode")
            yield from (_key(StageConfig, "stages[].", name, None) for name in names)


def _keys(section: type[Section], prefix: str, above: Key | None) -> Iterator[Key]:
    for name, field in section.model_fields.items():
        key = _key(section, prefix, name, above)
        yield key
        inner = section_of(field.annotation)
        if inner is not None and name != "stages":
            yield from _keys(inner, f"{key.path}{_below(field)}.", key)
    yield from _older(section, prefix)


def _key(section: type[Section], prefix: str, name: str, above: Key | None) -> Key:
    """Describes a key; keys below one that does not act do not act either."""
    field = section.model_fields[name]
    mark, status = mark_of(field), status_of(field)
    reason = mark.reason if mark else ""
    if above is not None and above.status is not Status.ACTS:
        status, reason = above.status, above.reason
    return Key(
        path=f"{prefix}{name}",
        section=section,
        name=name,
        status=status,
        reason=reason,
        field=field,
    )


def _older(section: type[Section], prefix: str) -> Iterator[Key]:
    for name, renamed in section.old_names.items():
        yield Key(
            path=f"{prefix}{name}",
            section=section,
            name=name,
            status=Status.RENAMED,
            reason=_new_name(prefix, renamed),
        )


def _new_name(prefix: str, renamed: Renamed) -> str:
    return renamed.to[1:] if renamed.to.startswith("/") else f"{prefix}{renamed.to}"


def _below(field: FieldInfo) -> str:
    if is_by_name(field):
        return ".<name>"
    return "[]" if get_origin(field.annotation) is tuple else ""


def _is_section(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, Section)
