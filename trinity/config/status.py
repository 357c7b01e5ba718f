"""What becomes of a key that users know: it acts, has no effect here, is renamed, or is planned."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic.fields import FieldInfo


class Status(StrEnum):
    """Every key has one; a key without a mark acts."""

    ACTS = "acts"
    NO_EFFECT = "accepted, without effect here"
    RENAMED = "renamed"
    PLANNED = "planned"


@dataclass(frozen=True, slots=True)
class Planned:
    """Not there yet; the default is what happens meanwhile, so giving just that is no mistake.

    param_offload: Annotated[bool, Planned("weights stay on the device")] = False
    """

    reason: str


@dataclass(frozen=True, slots=True)
class NoEffect:
    """Accepted for the sake of files that have it; what it asks for is settled otherwise here."""

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
    """Why a field does not act; None for one that does."""
    return next((one for one in field.metadata if isinstance(one, Planned | NoEffect)), None)


def choices_of(field: FieldInfo) -> Choices:
    """The values beside those of its type."""
    return next((one for one in field.metadata if isinstance(one, Choices)), Choices())


def status_of(field: FieldInfo) -> Status:
    """Whether a field acts."""
    match mark_of(field):
        case Planned():
            return Status.PLANNED
        case NoEffect():
            return Status.NO_EFFECT
    return Status.ACTS
