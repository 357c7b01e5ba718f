"""Status of a key: it acts, has no effect here, is renamed, or is planned."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic.fields import FieldInfo


class Status(StrEnum):
    """Status of a key; a key without a mark acts."""

    ACTS = "acts"
    NO_EFFECT = "accepted, without effect here"
    RENAMED = "renamed"
    PLANNED = "planned"


@dataclass(frozen=True, slots=True)
class Planned:
    """Not supported yet; the default describes today's behaviour, so giving it is no error.

    param_offload: Annotated[bool, Planned("weights stay on the device")] = False
    """

    reason: str


@dataclass(frozen=True, slots=True)
class NoEffect:
    """Accepted for files that have it; its purpose is served in another way here."""

    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """Values that users know beside those that the field's type allows."""

    planned: Mapping[str, str] = field(default_factory=dict)
    """Value to what is missing."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other name of a value to the name here."""


@dataclass(frozen=True, slots=True)
class Renamed:
    """An older name, whose value is used under the new one."""

    to: str
    """The key beside it, or with a `/` in front the key from the top of the file or stage."""


Mark = Planned | NoEffect


def mark_of(field: FieldInfo) -> Mark | None:
    """The mark that says why a field does not act; None if it acts."""
    return next((mark for mark in field.metadata if isinstance(mark, Planned | NoEffect)), None)


def choices_of(field: FieldInfo) -> Choices:
    """The values beside those of its type."""
    return next((mark for mark in field.metadata if isinstance(mark, Choices)), Choices())


def status_of(field: FieldInfo) -> Status:
    """The status of a field, by its mark."""
    match mark_of(field):
        case Planned():
            return Status.PLANNED
        case NoEffect():
            return Status.NO_EFFECT
    return Status.ACTS
